"""Runs where sentence-transformers is installed: its metrics of given vectors, and the gradient of
its CosineSimilarityLoss.

    python evaluators_oracle.py FOLDER
        FOLDER/in.npz: vectors (N, 2, H), text_ids (N, 2), labels, scores -> out.json, gradient.npy
"""

import json
import sys

import numpy as np
import torch
from sentence_transformers.sentence_transformer import evaluation
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from sentence_transformers.util import cos_sim


class Table(torch.nn.Module):
    """A model whose texts are the numbers of their vectors, as text."""

    similarity_fn_name = "cosine"
    similarity = staticmethod(cos_sim)

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.model_card_data = None

    def encode(self, texts, convert_to_tensor=False, **_):
        vectors = np.stack([self.table[int(text)] for text in texts])
        return torch.from_numpy(vectors) if convert_to_tensor else vectors

    encode_query = encode_document = encode

    def forward(self, features):
        return dict(sentence_embedding=features)


def main(folder):
    data = np.load(f"{folder}/in.npz")
    vectors, text_ids, labels, scores = (
        data[name] for name in ("vectors", "text_ids", "labels", "scores")
    )
    table = dict(
        zip(text_ids.ravel().tolist(), vectors.reshape(-1, vectors.shape[-1]), strict=True)
    )
    model = Table(table)
    first, second = ([str(one) for one in column] for column in text_ids.T.tolist())
    right = {}
    for query, document in text_ids.tolist():
        right.setdefault(query, set()).add(document)
    retrieval = evaluation.InformationRetrievalEvaluator(
        {query: str(query) for query in right},
        {document: str(document) for document in sorted(set(text_ids[:, 1].tolist()))},
        right,
        write_csv=False,
    )
    pairs = evaluation.BinaryClassificationEvaluator(
        first, second, labels.tolist(), write_csv=False
    )
    scored = evaluation.EmbeddingSimilarityEvaluator(
        first, second, (scores / 5).tolist(), write_csv=False
    )
    for evaluator in (retrieval, pairs, scored):
        evaluator.store_metrics_in_model_card_data = lambda *_: None
    found = {name.removeprefix("cosine_"): value for name, value in retrieval(model).items()}
    values = {name: found[name] for name in ("mrr@10", "recall@1", "recall@10", "ndcg@10")}
    found = pairs(model)
    values["accuracy"] = found["cosine_accuracy"]
    values["threshold"] = found["cosine_accuracy_threshold"]
    found = scored(model)
    values |= {name: found[f"{name}_cosine"] for name in ("pearson", "spearman")}
    tensors = [torch.tensor(vectors[:, side], requires_grad=True) for side in (0, 1)]
    loss = CosineSimilarityLoss(model)(tensors, torch.tensor(scores / 5, dtype=torch.float32))
    loss.backward()
    values["loss"] = loss.item()
    np.save(f"{folder}/gradient.npy", np.stack([tensor.grad.numpy() for tensor in tensors], 1))
    with open(f"{folder}/out.json", "w", encoding="utf-8") as file:
        json.dump({name: float(value) for name, value in values.items()}, file)


main(sys.argv[1])
