"""Runs where torch and transformers are installed: makes or opens Hugging Face models and writes
their outputs.

    python huggingface_oracle.py make|open FOLDER
        FOLDER/batch.npz -> FOLDER/CLASS/, FOLDER/CLASS.npz

"make" saves a random model of each class, "open" opens FOLDER/CLASS as the user would. Kept apart
from the test, because torch and TensorFlow need not live in one environment.
"""

import sys

import numpy as np
import torch
import transformers

CLASSES = (
    *("BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForSequenceClassification"),
    *("BertForTokenClassification", "BertForQuestionAnswering"),
)


def make(name, folder):
    num_labels = 2 if name == "BertForQuestionAnswering" else 3  # its first and last token
    config = transformers.BertConfig(
        vocab_size=70, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=40, max_position_embeddings=16, num_labels=num_labels,
    )  # fmt: skip
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in model.parameters():  # so that no norm or bias is 0 or 1
            parameter.copy_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return model


def main(mode, folder):
    torch.manual_seed(0)
    batch = {name: torch.tensor(values) for name, values in np.load(f"{folder}/batch.npz").items()}
    for name in CLASSES:
        path = f"{folder}/{name}"
        model = (
            make(name, path)
            if mode == "make"
            else getattr(transformers, name).from_pretrained(path)
        )
        with torch.no_grad():
            outputs = model.eval()(**batch)
        values = {
            key: value.numpy() for key, value in outputs.items() if isinstance(value, torch.Tensor)
        }
        values["labels"] = np.array(
            [model.config.id2label[index] for index in sorted(model.config.id2label)]
        )
        np.savez(f"{folder}/{name}.npz", **values)


if __name__ == "__main__":
    main(*sys.argv[1:])
