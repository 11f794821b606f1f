"""Reads --grid of the two training commands: settings to try in every combination."""

import itertools
from collections.abc import Mapping

from bert_gpu.base.errors import UserError

# {flag that no --grid can vary: what to do instead}
ONCE = dict(
    overwrite="give it once, beside --grid",
    output_dir="each trial has a folder of its own in it",
    grid="write all settings into one",
)


def read_grid(text: str, refused: Mapping[str, str]) -> list[str]:
    """Return the cells of a grid, such as "learning_rate=2e-5 seed=1", in their order. A cell is
    one combination of values.

    Args:
      text: of --grid. refused: {flag that the grid cannot vary: what to do instead}.
    """
    axes: dict[str, list[str]] = {}
    for part in text.split():
        name, is_set, values = part.removeprefix("--").partition("=")
        if name in refused:
            raise UserError(f"--grid cannot vary {name}", refused[name])
        if not is_set or not name:
            raise UserError(
                f"{part[:40]} is not of the form name=value,value",
                'write --grid="learning_rate=2e-5,5e-5 num_train_epochs=2,3"',
                setting="grid",
                value=text[:100],
            )
        if not all(values.split(",")):
            raise UserError(
                f"{part[:40]} has an empty value",
                "write values with single commas between them, and settings with a space",
                setting="grid",
                value=text[:100],
            )
        if name in axes:
            raise UserError(
                f"has {name[:40]} more than once",
                "write its values into one list, with commas",
                setting="grid",
                value=text[:100],
            )
        axes[name] = [f"{name}={value}" for value in values.split(",")]
    if not axes:
        raise UserError("is empty", 'write --grid="learning_rate=2e-5,5e-5"', setting="grid")
    return [" ".join(cell) for cell in itertools.product(*axes.values())]


def words_of(cell: str) -> list[str]:
    """Return the flags of a cell, such as ["--learning_rate=2e-5", "--seed=1"]."""
    return [f"--{part}" for part in cell.split()]
