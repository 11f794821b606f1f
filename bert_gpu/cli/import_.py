"""python -m bert_gpu import: a model in the format of another project -> one that is trained on
here.
"""

from bert_gpu.base import console
from bert_gpu.cli import flags
from bert_gpu.interop.config import ImportConfig

SUMMARY = (
    "Reads a model of another project, checks all of it, and writes it as a model's folder of "
    "ours. The training scripts read the same formats themselves, with --init_checkpoint."
)
EXAMPLE = (
    "python -m bert_gpu import --from=bert-base-uncased --to=models/base",
    "python run_classifier.py --init_checkpoint=models/base",
)
CLASSES = [ImportConfig]


def main(argv, in_program=False):
    """Returns a line on the folder and what opens it; in_program: of flags.parse."""
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, in_program=in_program)
    return transfer(parsed, parsed.make(ImportConfig))


def transfer(parsed, config, *form):
    """Reads a model and writes it, as an ImportConfig or an ExportConfig says; returns a line
    on it. form: to which format.
    """
    config.check_paths()
    with parsed.imports():
        from bert_gpu.interop import models
        from bert_gpu.runs.card_facts import facts_beside
    return models.transfer(config, console.warn, *form, describe=facts_beside)
