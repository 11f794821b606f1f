"""Runs where torch and transformers are installed: tags the words of a CoNLL file with a folder's
model and tokenizer.

    python tagging_oracle.py MODEL FILE OUTPUT.npz
        FILE: words in the first column -> probabilities (words, tags) at first pieces, labels

Kept apart from the test, because torch and TensorFlow need not live in one environment.
"""

import pathlib
import sys

import numpy as np
import torch
import transformers


def main(folder, path, output):
    model = transformers.BertForTokenClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    blocks = pathlib.Path(path).read_text().split("\n\n")
    sentences = [[line.split()[0] for line in block.splitlines() if line] for block in blocks]
    found = []
    for words in sentences:
        if not words or words[0] == "-DOCSTART-":
            continue
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            shares = torch.softmax(model(**encoded).logits, -1)[0].numpy()
        owners = encoded.word_ids()
        found += [shares[owners.index(word)] for word in range(len(words))]
    labels = [model.config.id2label[index] for index in sorted(model.config.id2label)]
    np.savez(output, probabilities=np.array(found), labels=np.array(labels))


if __name__ == "__main__":
    main(*sys.argv[1:])
