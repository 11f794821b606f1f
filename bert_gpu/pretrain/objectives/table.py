"""The table of pretraining objectives. A new one is a module with a class `Objective`
(interface.py says what it has), and a row here. Imports no TensorFlow.
"""

import typing

from bert_gpu.base.environment import LazyModule


class Row(typing.NamedTuple):
    """A pretraining objective.

    summary: for --help. module: the one that has its class `Objective`. by_default: whether it is
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


def summaries(rows):
    """The rows of the table in words: "mlm = masked words, ..."."""
    return "; ".join(f"{name} = {row.summary}" for name, row in rows.items())
