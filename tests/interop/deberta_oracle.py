"""Runs where torch and transformers are installed: writes folders of random DeBERTas (v2's classes)
with their hidden states, scores, losses and gradients.

python deberta_oracle.py FOLDER -> FOLDER/NAME/, and FOLDER/NAME.npz with the texts ("ids/0", ...),
"labels/0", ..., "hidden/0", "logits/0", "loss" (a sum over all texts) and "gradients/TENSOR".
"""

import sys

import numpy as np
import torch
import transformers

SHARED = dict(
    vocab_size=70, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
    type_vocab_size=0, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    relative_attention=True, position_biased_input=False, share_att_key=True,
    norm_rel_ebd="layer_norm", pad_token_id=0,
)  # fmt: skip
# {name: (settings, lengths of the texts)}
MODELS = {
    "buckets": (
        dict(
            max_position_embeddings=40, position_buckets=8, pos_att_type="p2c|c2p",
            layer_norm_eps=1e-7,
        ),
        (37, 5, 21),
    ),
    "no buckets": (
        dict(max_position_embeddings=17, pos_att_type=["c2p"], legacy=False, hidden_act="relu"),
        (17, 9, 1),
    ),
    "far": (  # distances beyond the table
        dict(
            max_position_embeddings=24, max_relative_positions=6, pos_att_type="p2c",
            type_vocab_size=2, layer_norm_eps=1e-6,
        ),
        (23, 11),
    ),
    "long": (
        dict(
            max_position_embeddings=1024, position_buckets=256, pos_att_type="p2c|c2p",
            hidden_size=16, num_attention_heads=2, intermediate_size=20,
        ),
        (1024, 300),
    ),
}  # fmt: skip


def main(folder):
    torch.manual_seed(0)
    for name, (settings, lengths) in MODELS.items():
        config = transformers.DebertaV2Config(**SHARED | settings)
        model = transformers.DebertaV2ForMaskedLM(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(0.2 * torch.randn(parameter.shape))
        values = {}
        total = 0
        for index, length in enumerate(lengths):
            ids = torch.randint(1, config.vocab_size, (length,))
            labels = torch.where(
                torch.rand(length) < 0.3, torch.randint(1, config.vocab_size, (length,)), -100
            )
            labels[0] = 3
            segments = torch.arange(length) % max(1, config.type_vocab_size)
            outputs = model(ids[None], token_type_ids=segments[None], output_hidden_states=True)
            total += torch.nn.functional.cross_entropy(outputs.logits[0], labels, reduction="sum")
            values |= {
                f"ids/{index}": ids,
                f"labels/{index}": labels,
                f"segments/{index}": segments,
            }
            values[f"hidden/{index}"] = outputs.hidden_states[-1][0]
            values[f"logits/{index}"] = outputs.logits[0]
        total.backward()
        values["loss"] = total
        values |= {
            f"gradients/{key}": parameter.grad
            for key, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        np.savez(f"{folder}/{name}.npz", **{key: x.detach().numpy() for key, x in values.items()})
        model.save_pretrained(f"{folder}/{name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
