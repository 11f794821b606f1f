"""python -m bert_gpu export: a model -> the format of another project."""

from bert_gpu.base import console
from bert_gpu.base.environment import quick_imports
from bert_gpu.cli import flags
from bert_gpu.interop.config import ExportConfig

SUMMARY = (
    "Writes a model in the format of another project, with its vocabulary and a model card. "
    "The last line says what opens it there."
)
EXAMPLE = ("python -m bert_gpu export --from=runs/pretrain --to=my-bert",)


def main(argv):
    config = flags.parse(argv, SUMMARY, EXAMPLE, [ExportConfig]).make(ExportConfig)
    config.check_paths()
    with quick_imports():
        from bert_gpu.interop.models import transfer
        from bert_gpu.runs.card_facts import facts_beside
    console.answer(transfer(config, console.warn, config.format, describe=facts_beside))
    return 0
