"""Runs where torch and transformers are installed: classifies pairs of texts with a folder's model
and tokenizer.

    python classifier_oracle.py MODEL TSV OUTPUT.npz
        TSV: a header, then lines of id, text_a, text_b -> probabilities (rows, labels), labels

Kept apart from the test, because torch and TensorFlow need not live in one environment.
"""

import pathlib
import sys

import numpy as np
import torch
import transformers


def main(folder, table, output):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [line.split("\t") for line in pathlib.Path(table).read_text().splitlines()[1:]]
    firsts, seconds = [row[1] for row in rows], [row[2] for row in rows]
    encoded = tokenizer(firsts, seconds, padding=True, return_tensors="pt")
    with torch.no_grad():
        probabilities = torch.softmax(model(**encoded).logits, -1).numpy()
    labels = [model.config.id2label[index] for index in sorted(model.config.id2label)]
    np.savez(output, probabilities=probabilities, labels=np.array(labels))


if __name__ == "__main__":
    main(*sys.argv[1:])
