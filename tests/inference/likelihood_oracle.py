"""Pseudo-log-likelihoods by transformers, one masked copy after another:

python likelihood_oracle.py TEXTS.json OUTPUT.json MODEL...
"""

import json
import pathlib
import sys

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

torch.set_num_threads(1)
texts, output, *models = sys.argv[1:]
scores = {}
for folder in models:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    scores[folder] = []
    for text in json.loads(pathlib.Path(texts).read_text()):
        encoded = tokenizer(text, return_tensors="pt")
        words, ids, sums = encoded.word_ids(), encoded.input_ids[0], [0.0, 0.0]
        for at in range(1, len(ids) - 1):
            later = [place for place in range(at, len(ids)) if words[place] == words[at]]
            for kind, hidden in enumerate(([at], later)):
                copy = ids.clone()
                copy[hidden] = tokenizer.mask_token_id
                with torch.no_grad():
                    logits = model(copy[None]).logits[0, at]
                sums[kind] += logits.log_softmax(-1)[ids[at]].item()
        scores[folder].append(sums)
pathlib.Path(output).write_text(json.dumps(scores))
