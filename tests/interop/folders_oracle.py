"""Runs where torch and transformers are installed: opens model folders as their users would and
writes what they compute.

    python folders_oracle.py FOLDER batch.npz
        FOLDER/NAME/ -> FOLDER/NAME.npz: outputs of the class that config.json names, through its
        Auto class, which it saves anew in FOLDER/NAME-saved/; refuses a folder whose tensors are
        not exactly those of the class. Masked-word models with code of their own are also trained
        for a step

Kept apart from the tests, because torch and TensorFlow need not live in one environment.
"""

import inspect
import json
import pathlib
import re
import sys

import numpy as np
import torch
import transformers


def open_folder(folder):
    said = json.loads((folder / "config.json").read_text())
    task = re.search(r"(For\w+|Model)$", said["architectures"][0])[1]
    auto = getattr(transformers, "AutoModel" if task == "Model" else f"AutoModel{task}")
    if task == "ForPreTraining" and not hasattr(auto, "from_pretrained"):
        raise SystemExit("no class for pretraining")
    model, info = auto.from_pretrained(
        folder,
        trust_remote_code="auto_map" in said,
        output_loading_info=True,
        attn_implementation="eager" if "auto_map" not in said else None,
    )
    problems = {key: list(value) for key, value in info.items() if value}
    assert not problems, (folder, problems)
    assert type(model).__name__ == said["architectures"][0], type(model)
    return model.eval()


def main(folder, batch_path):
    batch = {name: torch.tensor(values) for name, values in np.load(batch_path).items()}
    for path in [path for path in sorted(pathlib.Path(folder).iterdir()) if path.is_dir()]:
        model = open_folder(path)
        rows = rows_for(model, batch)
        with torch.no_grad():
            outputs = model(**rows)
        values = {name: x.numpy() for name, x in outputs.items() if isinstance(x, torch.Tensor)}
        if "sop_logits" in values:  # ALBERT's name
            values["seq_relationship_logits"] = values.pop("sop_logits")
        model.save_pretrained(f"{path}-saved")
        if type(model).__name__ == "BertGpuForMaskedLM":
            values |= train(model, rows)
        np.savez(f"{path}.npz", **values)


def rows_for(model, batch):
    """The batch as a model takes it: without segments that it does not have."""
    taken = inspect.signature(model.forward).parameters
    if getattr(model.config, "type_vocab_size", 2) == 1:
        batch = batch | dict(token_type_ids=torch.zeros_like(batch["token_type_ids"]))
    return {name: values for name, values in batch.items() if name in taken}


def train(model, batch):
    """Loss of the words at all tokens, and how many weights get a gradient that is not 0."""
    labels = torch.where(batch["attention_mask"] > 0, batch["input_ids"], -100)
    loss = model.train()(**batch, labels=labels).loss
    loss.backward()
    grads = [parameter.grad for parameter in model.parameters()]
    learns = sum(bool(grad is not None and grad.isfinite().all() and grad.any()) for grad in grads)
    return dict(loss=loss.item(), learns=learns, weights=len(grads))


if __name__ == "__main__":
    main(*sys.argv[1:])
