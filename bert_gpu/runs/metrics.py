"""Reads metrics.jsonl, whose lines {"step": step, name: value, ...} JsonLines (monitor/sinks)
writes.
"""

import dataclasses
import os

from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.files import parse_json, readable, write_text
from bert_gpu.base.settings import Settings, fields_of, setting, stored_complaint


def cut_lines(path, step):
    """Drops from a metrics.jsonl, if there is one, the lines after `step` (all for None) and a last
    line that was not finished. UserError as for `read_lines`.
    """
    if os.path.exists(path):
        lines = read_lines(path, "correct or remove it, or --overwrite")
        kept = [line for values, line in lines if step is not None and values["step"] <= step]
        write_text(path, "".join(kept))


def read_lines(path, remedy="correct or remove it"):
    """[(object, its text)] of the lines of a metrics.jsonl, [] without one; without the last line
    if it has no end.

    remedy: what to do about a damaged line. UserError names the line, and the key, when it is not
    what `JsonLines` writes, and when the file cannot be read.
    """
    if not os.path.exists(path):
        return []
    with readable(path), open(path, encoding="utf-8", errors="replace") as file:
        lines = [line for line in file if line.endswith("\n")]
    return [
        (parse_line(line, f"{path}, line {number}", remedy), line)
        for number, line in enumerate(lines, 1)
    ]


def parse_line(line, where, remedy="correct or remove it"):
    """The object of a line of a metrics.jsonl. UserError, which says `where` the line stands, when
    it is not what `JsonLines` writes.
    """
    try:
        values = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON ({error})", remedy, where=where) from None
    if error := metrics_complaint(values):
        raise error.within(where, remedy)
    return values


def metrics_complaint(values) -> UserError | None:
    """The error of the JSON value of a line, None when it is right."""
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
    name, value = odd[0][:60], shortened(values[odd[0]])
    return UserError("must be a number or null", setting=name, value=value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsLine(Settings):
    """What a line of metrics.jsonl holds besides metrics, which are numbers or null."""

    step: int = setting(0, "Finished steps.", low=0, high=1 << 53)  # floats skip larger ones
