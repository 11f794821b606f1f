"""The table of pretraining objectives. To add one, write a module with a class `Objective`, a
subclass of interface.PretrainingObjective, and add a row here. Imports no TensorFlow.
"""

import typing
from collections.abc import Mapping

from bert_gpu.base.environment import LazyModule


class Row(typing.NamedTuple):
    """A pretraining objective.

    summary: for --help. module: a LazyModule with the class `Objective`. by_default: whether it is
    trained wherever the records have its features, without being named.
    """

    summary: str
    module: typing.Any
    by_default: bool = False


OBJECTIVES = {
    "mlm": Row(
        "masked words", LazyModule("bert_gpu.pretrain.objectives.masked_words"), by_default=True
    ),
    "nsp": Row(
        "next sentence or order",
        LazyModule("bert_gpu.pretrain.objectives.next_sentence"),
        by_default=True,
    ),
}


def summaries(rows: Mapping[str, Row]) -> str:
    """Return the rows of the table in words: "mlm = masked words; ..."."""
    return "; ".join(f"{name} = {row.summary}" for name, row in rows.items())
