"""Runs where torch and transformers are installed: writes folders, tensors and outputs of random
models of BERT's relatives.

python relatives_oracle.py FOLDER FOLDER/batch.npz -> FOLDER/CLASS/ and FOLDER/CLASS.npz, with
"weights/NAME" and "outputs/NAME"
"""

import sys

import numpy as np
import torch
import transformers

SIZES = dict(
    vocab_size=70, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
    max_position_embeddings=16, type_vocab_size=2, layer_norm_eps=1e-6, attn_implementation="eager",
    hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
)  # fmt: skip
MODELS = {
    "MegatronBertForMaskedLM": dict(hidden_act="gelu"),
    "RoFormerForMaskedLM": dict(hidden_act="gelu", embedding_size=10, rotary_value=False),
    "AlbertForMaskedLM": dict(
        hidden_act="gelu_new",
        embedding_size=10,
        num_hidden_layers=4,
        num_hidden_groups=2,
        inner_group_num=1,
    ),
    "RobertaPreLayerNormForMaskedLM": dict(
        hidden_act="gelu", pad_token_id=0, max_position_embeddings=17
    ),
    "NomicBertForMaskedLM": dict(
        hidden_act="silu", rope_parameters=dict(rope_type="default", rope_theta=10000.0)
    ),
}


def main(folder):
    torch.manual_seed(0)
    batch = {name: torch.tensor(values) for name, values in np.load(f"{folder}/batch.npz").items()}
    for name, options in MODELS.items():
        model = getattr(transformers, name)
        model = model(model.config_class(**SIZES | options)).eval()
        with torch.no_grad():
            # so that no norm or bias is 0 or 1; sinusoids are frozen
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.copy_(0.2 * torch.randn(parameter.shape))
            for key, parameter in model.named_parameters():
                if name.startswith("Nomic") and key.endswith("transform.dense.bias"):
                    parameter.zero_()  # ours has no such bias
            outputs = model(**batch)
        model.save_pretrained(f"{folder}/{name}")
        values = {f"weights/{key}": value.numpy() for key, value in model.state_dict().items()}
        values |= {
            f"outputs/{key}": value.numpy()
            for key, value in outputs.items()
            if isinstance(value, torch.Tensor)
        }
        np.savez(f"{folder}/{name}.npz", **values)


if __name__ == "__main__":
    main(*sys.argv[1:])
