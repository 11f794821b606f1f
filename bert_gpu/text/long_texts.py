"""What a model reads of a text that is longer than a row.

Legend: N texts, M rows of all texts.
"""

import typing
from collections.abc import Callable
from typing import Any

import numpy as np

CUT, WINDOWS, HEAD_TAIL = RULES = ("cut", "windows", "head_tail")
HEAD_PARTS = 4  # the head of head_tail is one of 4 parts of a row
SETTINGS = ("long_texts", "doc_stride", "max_windows")  # the fields of LongTexts, as flags


class LongTexts(typing.NamedTuple):
    """How rows are made of a text that is longer than a row; of a pair, of the second text.

    rule: cut = its first tokens; head_tail = its first and its last tokens, a quarter and three
    quarters of the row, as in Sun et al. 2019 (arXiv 1905.05583, section 5.3.1); windows = several
    rows, whose scores are averaged. stride: tokens from one window to the next, at most; None = as
    many as a window has. max_windows: the most windows of a text. The windows are spread evenly
    over the text.
    """

    rule: str = CUT
    stride: int | None = None
    max_windows: int = 8

    @classmethod
    def given(cls, value_of: Callable[[str], Any]) -> typing.Self:
        """Return the rules of settings, whose value is value_of(name), None = the default."""
        values: list[Any] = [
            value_of(name) or value for name, value in zip(SETTINGS, cls(), strict=True)
        ]
        return cls(*values)

    def parts(
        self, rooms: np.ndarray, excess: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return which tokens of a text each of its rows holds: the number of rows of each text,
        (N,), and for each row the number of the text's first tokens, (M,), and the number of tokens
        that are then left out, (M,), all int64.

        rooms, excess: int64 (N,), tokens of each text that a row holds, and those that it does not.
        """
        if self.rule == HEAD_TAIL:
            return np.ones_like(rooms), rooms // HEAD_PARTS, excess
        steps = np.maximum(np.minimum(rooms, self.stride or rooms), 1)
        counts = np.minimum(
            -(-excess // steps) + 1, self.max_windows if self.rule == WINDOWS else 1
        )
        texts = np.repeat(np.arange(len(counts)), counts)
        indices = np.arange(len(texts)) - (np.cumsum(counts) - counts)[texts]
        skipped = indices * excess[texts] // np.maximum(counts - 1, 1)[texts]
        return counts, np.zeros_like(texts), skipped

    def describe(self, max_seq_length: int) -> str:
        """Return what is read of a long text, and who reads otherwise; "" where texts are cut."""
        who = (
            ", in run_classifier.py and a SavedModel of strings; programs that make rows "
            "themselves, as transformers' pipelines do, cut them"
        )
        return {
            CUT: "",
            HEAD_TAIL: f"a row of {max_seq_length} tokens, their first and their last ones{who}",
            WINDOWS: f"up to {self.max_windows} rows of {max_seq_length} tokens each, whose scores "
            f"are averaged{who}",
        }[self.rule]


FIRST_TOKENS = LongTexts()
