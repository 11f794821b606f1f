"""Chooses the recipe "quick" for a call without settings on a machine without GPUs.

With a GPU, or with any flag that does more than name files or control the output, the defaults are
Google's.
"""

import os
from collections.abc import Iterable

from bert_gpu.base.errors import UserError
from bert_gpu.devices.nvml import count_gpus

QUICK = "quick"
NOTICE = (
    "no GPU and no settings given: using --recipe=quick, which takes minutes on a CPU; "
    "--recipe=bert or any other flag selects BERT's settings; "
    "add --recipe=quick to keep the quick ones with other flags"
)
# {script: flags that a call may have and still get the recipe "quick"}
OPEN = {
    "data": "input_file input_format text_field output_file output_dir num_workers ray_address "
    "strict show",
    "pretrain": "input_file output_dir tensorboard",
    "classify": "task_name task_kind data_dir train_file dev_file test_file "
    "dev_share test_share columns text_a text_b label output_dir do_train do_eval "
    "do_predict tensorboard",
}
COMMON = "overwrite quiet show_config"


def implied_recipe(script: str, flags: Iterable[str]) -> str | None:
    """Return the recipe of a call that names none: "quick" or None. flags: names of the flags that
    the user has set.
    """
    if set(flags) - set(f"{OPEN[script]} {COMMON}".split()) or count_gpus():
        return None
    return QUICK if script != "classify" or starts_quick() else None


def starts_quick() -> bool:
    """Return whether the model from which fine-tuning starts by default was trained with the recipe
    "quick".
    """
    from bert_gpu.finetune.config import DEFAULT_START
    from bert_gpu.runs.folder import RunFolder

    try:
        record = RunFolder(os.path.dirname(DEFAULT_START)).read_run()
    except UserError:
        return False
    return record is not None and record["free"].get("recipe") == QUICK
