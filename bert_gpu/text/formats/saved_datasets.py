"""Finds the tables in a folder that Hugging Face's `datasets` saved (save_to_disk).

Such a folder has Arrow streams, state.json, which names them, and dataset_info.json. A dictionary
of splits is saved as a folder of such folders, with dataset_dict.json. The library itself is not
needed.
"""

import os
from collections.abc import Sequence

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import read_json

STATE = "state.json"


def is_saved(names: Sequence[str]) -> bool:
    """Return whether a folder with these files is a saved data set or a saved dictionary of data
    sets.
    """
    return "dataset_dict.json" in names or {STATE, "dataset_info.json"} <= set(names)


def tables(folder: str, names: Sequence[str]) -> list[str]:
    """Return the paths of the tables that state.json names; none for a dictionary of splits, whose
    splits have folders of their own. Raises UserError.
    """
    if STATE not in names:
        return []
    path = os.path.join(folder, STATE)
    state = read_json(
        path, "the description of a data set that `datasets` saved", keys=["_data_files"]
    )
    try:
        files: list[str] | None = [file["filename"] for file in state["_data_files"]]
    except (TypeError, KeyError):
        files = None
    if files is None or state.get("_indices_data_files"):
        raise UserError(
            "is not as datasets 2 or later writes it", "save the data set again", where=path
        )
    missing = [name for name in files if name not in names]
    if missing:
        raise UserError(
            "is missing", "copy the folder again", where=os.path.join(folder, missing[0])
        )
    return [os.path.join(folder, name) for name in files]
