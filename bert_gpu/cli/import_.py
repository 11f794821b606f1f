"""python -m bert_gpu import: a model in the format of another project -> one that is trained on
here.
"""

from bert_gpu.base import console
from bert_gpu.base.environment import quick_imports
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


def main(argv):
    config = flags.parse(argv, SUMMARY, EXAMPLE, [ImportConfig]).make(ImportConfig)
    config.check_paths()
    with quick_imports():
        from bert_gpu.interop.models import transfer
        from bert_gpu.runs.card_facts import facts_beside
    console.answer(transfer(config, console.warn, describe=facts_beside))
    return 0
