"""python -m bert_gpu import: writes a model of another project as a model folder of ours."""

from collections.abc import Callable

from bert_gpu.base import console
from bert_gpu.cli import flags
from bert_gpu.interop.config import ImportConfig, TransferConfig
from bert_gpu.interop.formats import Model

SUMMARY = (
    "Reads a model of another project, checks all of it, and writes it as a model folder of "
    "bert-gpu. The training scripts read the same formats themselves, with --init_checkpoint."
)
EXAMPLE = (
    "python -m bert_gpu import --from=bert-base-uncased --to=models/base",
    "python run_classifier.py --init_checkpoint=models/base",
)
CLASSES = [ImportConfig]


def main(argv: list[str], in_program: bool = False) -> str:
    """Run the command; return a line that names the new folder and what opens it. in_program: as in
    flags.parse.
    """
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, in_program=in_program)
    return transfer(parsed, parsed.make(ImportConfig))


def transfer(
    parsed: flags.Parsed,
    config: TransferConfig,
    format_name: str | None = None,
    change: Callable[[Model], Model] = lambda model: model,
    precision: str = "float32",
) -> str:
    """Read a model and write it in the format `format_name`, None = bert-gpu's own; return a line
    that names the new folder and what opens it. change, precision: as for `models.transfer`.
    """
    config.check_paths()
    with parsed.imports():
        from bert_gpu.interop import models
        from bert_gpu.runs.card_facts import facts_beside
    return models.transfer(config, console.warn, format_name, facts_beside, change, precision)
