"""python -m bert_gpu evaluate: scores models on held-out text or on minimal pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bert_gpu.base import console
from bert_gpu.cli import flags
from bert_gpu.inference.config import EvaluateConfig

SUMMARY = (
    "Scores pretrained models on held-out text (masked words, pseudo-log-likelihood) or on minimal "
    "pairs, such as BLiMP."
)
EXAMPLE = (
    "python -m bert_gpu evaluate --model=runs/pretrain/model --input=held_out.txt",
    "python -m bert_gpu evaluate --model=runs/pretrain/marks,bert-base-uncased --input=blimp/data "
    "--output=scores.json",
)
CLASSES = [EvaluateConfig]


def main(argv: list[str], in_program: bool = False) -> list[dict[str, object]]:
    """Run the command; return the scores of each model. in_program: as in flags.parse."""
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, in_program=in_program)
    config = parsed.make(EvaluateConfig)
    with parsed.imports():
        from bert_gpu.inference.evaluation import evaluate
        from bert_gpu.runs.trials import markdown
    result = evaluate(config, parsed.console(config.quiet))
    if not parsed.in_program:
        console.answer(markdown(lines_of(result)))
    return result


def lines_of(result: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the cells of a table with a column for each model, and a line for each score and, for
    minimal pairs, for the pll_accuracy of each phenomenon.
    """
    names = [name for name in max(result, key=len) if name != "phenomena"]
    rows = [[name, *(show(row.get(name)) for row in result)] for name in names]
    for name in result[0].get("phenomena", ()):
        found = [row["phenomena"][name]["pll_accuracy"] for row in result]
        rows.append([f"pll_accuracy {name}", *map(show, found)])
    return rows


def show(value: float | str | None) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else value
