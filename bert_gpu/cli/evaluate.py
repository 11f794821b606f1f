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


def main(argv: list[str], in_program: bool = False) -> list[dict[str, Any]]:
    """Run the command; return the scores of each model. in_program: as in flags.parse."""
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, in_program=in_program)
    config = parsed.make(EvaluateConfig)
    with parsed.imports():
        from bert_gpu.inference.evaluation import evaluate
    result = evaluate(config, parsed.console(config.quiet))
    if not parsed.in_program:
        console.answer("\n".join(lines_of(result)))
    return result


def lines_of(result: Sequence[dict[str, Any]]) -> list[str]:
    """Return the scores of models as tables: a row for each model, and for minimal pairs a second
    table with a row for each phenomenon and a column for each model.
    """
    heading = [name for name in max(result, key=len) if name != "phenomena"]
    rows = [[row.get(name) for name in heading] for row in result]
    lines = aligned([heading, *rows])
    phenomena = result[0].get("phenomena", {})
    parts = [
        [name, scores["pairs"], *(row["phenomena"][name]["pll_accuracy"] for row in result)]
        for name, scores in phenomena.items()
    ]
    models = [f"{row['model']} (pll_accuracy)" for row in result]
    return lines + (["", *aligned([["phenomenon", "pairs", *models], *parts])] if parts else [])


def aligned(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a table with aligned columns; the first row is the heading."""
    texts = [list(map(show, row)) for row in rows]
    first, *widths = (max(map(len, column)) for column in zip(*texts, strict=True))
    return ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]) for row in texts]


def show(value: float | str | None) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else value
