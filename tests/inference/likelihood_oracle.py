"""Pseudo-log-likelihoods by minicons:

python likelihood_oracle.py TEXTS.json OUTPUT.json MODEL...
"""

import json
import pathlib
import sys

import torch
from minicons.scorer import MaskedLMScorer

torch.set_num_threads(1)
texts, output, *models = sys.argv[1:]
texts = json.loads(pathlib.Path(texts).read_text())
scores = {}
for folder in models:
    scorer = MaskedLMScorer(folder)
    scorer.tokenizer.batch_encode_plus = scorer.tokenizer  # the name that transformers 5 dropped
    kinds = [
        [
            total
            for first in range(0, len(texts), 10)
            for total in scorer.sequence_score(
                texts[first : first + 10], lambda x: x.sum().item(), PLL_metric=metric
            )
        ]
        for metric in ("original", "within_word_l2r")
    ]
    scores[folder] = list(zip(*kinds, strict=True))
pathlib.Path(output).write_text(json.dumps(scores))
