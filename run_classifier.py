#!/usr/bin/env python3
"""See `python run_classifier.py --help`."""

import sys

from bert_gpu.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["bert-gpu", "classify", *sys.argv[1:]]))
