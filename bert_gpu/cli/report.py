"""python -m bert_gpu report: draws charts of runs in one HTML file."""

from bert_gpu.base import console
from bert_gpu.base.environment import quick_imports
from bert_gpu.base.errors import UserError
from bert_gpu.cli import flags
from bert_gpu.watch.config import ReportConfig

SUMMARY = (
    "Draws runs of pretraining and fine-tuning, several of them in the same charts: losses, "
    "learning rate, speed, GPUs, validation, settings and how these differ. Writes one HTML file "
    "that opens without a network. A folder of runs stands for all of them."
)
EXAMPLE = (
    "python -m bert_gpu report runs/pretrain",
    "python -m bert_gpu report runs/pretrain runs/other --output=compared.html",
)


def main(argv: list[str]) -> None:
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, [ReportConfig], positionals="RUN [RUN ...]")
    config = parsed.make(ReportConfig)
    if not parsed.positionals:
        raise UserError(
            "needs the folder of a run", "name one, such as runs/pretrain", where="report"
        )
    with quick_imports():
        from bert_gpu.watch import report, run_data
    runs = run_data.read_whole_runs(parsed.positionals, console.warn)
    report.write_report(runs, config.output)
    console.answer(config.output)
