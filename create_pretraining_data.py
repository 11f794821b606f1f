#!/usr/bin/env python3
"""See `python create_pretraining_data.py --help`."""

import sys

from bert_gpu.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["bert-gpu", "data", *sys.argv[1:]]))
