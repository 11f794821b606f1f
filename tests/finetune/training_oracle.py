"""Runs where transformers is installed: trains a classifier on given batches with torch's AdamW.

python training_oracle.py FOLDER...
    FOLDER/start: the model. FOLDER/settings.json: learning_rates of the steps, weight_decay,
    epsilon, clip_norm, dropout, the seed of that. FOLDER/batch-I.npz: the batch of step I.
    FOLDER/test.npz: examples that are predicted at the end -> FOLDER/losses.npy, of each step;
    FOLDER/probabilities.npy
"""

import json
import pathlib
import sys

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

NAMES = dict(
    input_ids="input_ids",
    input_mask="attention_mask",
    segment_ids="token_type_ids",
    labels="labels",
)

DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def read(path):
    arrays = np.load(path)
    return {
        theirs: torch.tensor(arrays[ours], dtype=torch.int64)
        for ours, theirs in NAMES.items()
        if ours in arrays
    }


def train(folder):
    settings = json.loads((folder / "settings.json").read_text())
    torch.manual_seed(settings["seed"])
    dropout = dict.fromkeys(DROPOUT, settings["dropout"])
    model = AutoModelForSequenceClassification.from_pretrained(
        folder / "start", trust_remote_code=True, **dropout
    ).train()
    still = ("bias", "LayerNorm.weight")
    groups = [
        dict(
            params=[x for name, x in model.named_parameters() if name.endswith(still) == is_still],
            weight_decay=0.0 if is_still else settings["weight_decay"],
        )
        for is_still in (False, True)
    ]
    optimizer = torch.optim.AdamW(groups, eps=settings["epsilon"])
    losses = []
    for step, learning_rate in enumerate(settings["learning_rates"]):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        loss = model(**read(folder / f"batch-{step}.npz")).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip_norm"])
        optimizer.step()
        losses.append(loss.item())
    np.save(folder / "losses.npy", losses)
    with torch.no_grad():
        logits = model.eval()(**read(folder / "test.npz")).logits
    np.save(folder / "probabilities.npy", torch.softmax(logits, -1).numpy())


for name in sys.argv[1:]:
    train(pathlib.Path(name))
