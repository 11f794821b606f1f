"""python -m bert_gpu export: a model -> the format of another project."""

from bert_gpu.cli import flags
from bert_gpu.cli.import_ import transfer
from bert_gpu.interop.config import ExportConfig

SUMMARY = (
    "Writes a model in the format of another project, with its vocabulary and a model card. "
    "The last line says what opens it there."
)
EXAMPLE = ("python -m bert_gpu export --from=runs/pretrain --to=my-bert",)
CLASSES = [ExportConfig]


def main(argv, in_program=False):
    """Returns a line on the folder and what opens it; in_program: of flags.parse."""
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, in_program=in_program)
    config = parsed.make(ExportConfig)
    return transfer(parsed, config, config.format)
