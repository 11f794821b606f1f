"""python -m bert_gpu runs: prints a table of the runs under a folder."""

import json

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.cli import flags
from bert_gpu.watch.config import RunsConfig

SUMMARY = (
    "Lists the runs under a folder, by default runs: whether each is running, stopped, finished or "
    "diverged, its step, losses, speed, hours and when it last wrote a file."
)
EXAMPLE = (
    "python -m bert_gpu runs",
    "python -m bert_gpu runs runs/sweep --json",
)


def main(argv: list[str]) -> None:
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, [RunsConfig], positionals="[FOLDER]")
    config = parsed.make(RunsConfig)
    if len(parsed.positionals) > 1:
        raise UserError(
            f"takes one folder, not {len(parsed.positionals)}",
            "name a folder that contains all the runs",
            where="runs",
        )
    from bert_gpu.watch import runs

    folder = parsed.positionals[0] if parsed.positionals else "runs"
    rows = [runs.run_status(path) for path in runs.find(folder)]
    if config.json:
        console.answer(json.dumps(rows, indent=1, allow_nan=False))
    elif rows:
        console.answer("\n".join(runs.table(rows)))
    else:
        console.answer(f"{folder}: no runs in it")
