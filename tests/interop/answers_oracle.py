"""Runs where torch and transformers are installed: scores the tokens of questions and contexts with
a folder's model and tokenizer.

    python answers_oracle.py MODEL FILE.json OUTPUT.npz
        FILE: of SQuAD's form -> for each question, by its id, (2, tokens): the scores of each as an
        answer's first and as its last

Kept apart from the test, because torch and TensorFlow need not live in one environment.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers


def main(folder, path, output):
    model = transformers.BertForQuestionAnswering.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = {}
    for article in json.loads(pathlib.Path(path).read_text())["data"]:
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                texts = (entry["question"], paragraph["context"])
                with torch.no_grad():
                    scores = model(**tokenizer(*texts, return_tensors="pt"))
                found[entry["id"]] = torch.cat([scores.start_logits, scores.end_logits]).numpy()
    np.savez(output, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
