"""Reads metrics.jsonl, whose lines {"step": step, name: value, ...} are written by JsonLines
(monitor/sinks).
"""

import dataclasses
import os
from typing import Any

from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.files import parse_json, readable, write_text
from bert_gpu.base.settings import Settings, fields_of, setting, stored_complaint

ENERGY = "energy_kwh"  # the metric with the energy of a run until then, over all sessions


def cut_lines(path: str, step: int | None) -> None:
    """Drop from the metrics.jsonl at `path`, if there is one, the lines of later steps than `step`
    (None = all lines) and an unfinished last line. Raise UserError as `read_lines` does.
    """
    if os.path.exists(path):
        lines = read_lines(path, "correct or remove it, or --overwrite")
        texts = [text for values, text in lines if step is not None and values["step"] <= step]
        write_text(path, "".join(texts))


def read_lines(path: str, remedy: str = "correct or remove it") -> list[tuple[dict[str, Any], str]]:
    """Return (values, text) of each line of a metrics.jsonl; [] without a file. An unfinished last
    line is left out. values: {name: value}.

    Raise UserError when the file cannot be read; for a line that `JsonLines` does not write, the
    error names line and key and ends with the remedy.
    """
    if not os.path.exists(path):
        return []
    with readable(path), open(path, encoding="utf-8", errors="replace") as file:
        lines = [line for line in file if line.endswith("\n")]
    return [
        (parse_line(line, f"{path}, line {number}", remedy), line)
        for number, line in enumerate(lines, 1)
    ]


def parse_line(line: str, where: str, remedy: str = "correct or remove it") -> dict[str, object]:
    """Return {name: value} of a line of a metrics.jsonl. Raise UserError for a line that
    `JsonLines` does not write. where: the place of the line, for the error.
    """
    try:
        values = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON ({error})", remedy, where=where) from None
    if problem := metrics_complaint(values):
        raise problem.within(where, remedy)
    return values


def metrics_complaint(values: object) -> UserError | None:
    """Return the error for a JSON value that is no valid line of a metrics.jsonl; None for a valid
    one.
    """
    if not isinstance(values, dict):
        return UserError("not a JSON object")
    if "step" not in values:
        return UserError("has no 'step'")
    if error := stored_complaint(values, fields_of(MetricsLine)):
        return error
    odd = [
        name
        for name, value in values.items()
        if value is not None and type(value) not in (int, float)
    ]
    if not odd:
        return None
    value = shortened(values[odd[0]])
    return UserError("must be a number or null", setting=odd[0][:60], value=value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsLine(Settings):
    """The fixed entries of a line of metrics.jsonl; all other entries are metrics, each a number or
    null.
    """

    # a float cannot hold every larger integer
    step: int = setting(0, "Finished steps.", low=0, high=1 << 53)
