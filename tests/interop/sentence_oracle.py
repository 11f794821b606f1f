"""Runs where sentence-transformers is installed; the texts come from standard input as JSON.

    python sentence_oracle.py FOLDER ENCODER LENGTH NAME ...

opens each folder FOLDER/NAME, and makes others, cls-theirs and mean-theirs, around an encoder as
the library writes them. The vectors of encode, encode_query and encode_document of each go to
FOLDER/NAME.npz.
"""

import json
import sys

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules


def save_vectors(model: SentenceTransformer, folder: str, texts: list[str]) -> None:
    queries, passages = model.encode_query(texts), model.encode_document(texts)
    np.savez(f"{folder}.npz", texts=model.encode(texts), queries=queries, passages=passages)


def main(folder: str, encoder: str, length: str, *names: str) -> None:
    texts = json.load(sys.stdin)
    for name in names:
        is_code = name == "variant"
        model = SentenceTransformer(f"{folder}/{name}", device="cpu", trust_remote_code=is_code)
        save_vectors(model, f"{folder}/{name}", texts)
    for pooling in ("cls", "mean"):
        transformer = modules.Transformer(encoder)
        transformer.max_seq_length = int(length)
        parts = [transformer, modules.Pooling(transformer.get_embedding_dimension(), pooling)]
        parts += [modules.Normalize()] if pooling == "mean" else []
        prompts = dict(query="do ", document="ba be ")
        model = SentenceTransformer(modules=parts, prompts=prompts, device="cpu")
        model.save_pretrained(f"{folder}/{pooling}-theirs")
        save_vectors(model, f"{folder}/{pooling}-theirs", texts)


main(*sys.argv[1:])
