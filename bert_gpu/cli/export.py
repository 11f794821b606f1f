"""python -m bert_gpu export: writes a model in the format of another project."""

from bert_gpu.cli import flags
from bert_gpu.cli.import_ import transfer
from bert_gpu.interop.config import ExportConfig

SUMMARY = (
    "Writes a model in the format of another project, with its vocabulary and a model card. "
    "The last line of the output names what opens it."
)
EXAMPLE = ("python -m bert_gpu export --from=runs/pretrain --to=my-bert",)
CLASSES = [ExportConfig]


def main(argv: list[str], in_program: bool = False) -> str:
    """Run the command; return a line that names the new folder and what opens it. in_program: as in
    flags.parse.
    """
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, in_program=in_program)
    config = parsed.make(ExportConfig)
    return transfer(parsed, config, config.format, precision=config.precision)
