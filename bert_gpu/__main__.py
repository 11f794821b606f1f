"""`python -m bert_gpu COMMAND`, installed as `bert-gpu`."""

import importlib
import sys

COMMANDS = {
    "data": "text -> TFRecords (create_pretraining_data.py)",
    "pretrain": "TFRecords -> BERT (run_pretraining_gpu.py)",
    "classify": "BERT -> downstream task (run_classifier.py)",
    "vocab": "learn a WordPiece or SentencePiece vocabulary",
    "fill-mask": "guess the words behind [MASK]",
}


def main(argv=None):
    argv = sys.argv if argv is None else argv
    command = argv[1] if len(argv) > 1 else "--help"
    if command in ("--help", "-h", "help"):
        print("usage: bert-gpu COMMAND [--flags]    (bert-gpu COMMAND --help lists the flags)\n")
        print("\n".join(f"  {name:<10} {what}" for name, what in COMMANDS.items()))
        return 0
    if command not in COMMANDS:
        print(
            f"{command[:100]!r}: no such command; known are {', '.join(COMMANDS)}", file=sys.stderr
        )
        return 2
    from bert_gpu.cli import flags

    module = importlib.import_module(f"bert_gpu.cli.{command.replace('-', '_')}")
    return flags.exit_code(module.main, [f"bert-gpu {command}", *argv[2:]])


if __name__ == "__main__":
    sys.exit(main())
