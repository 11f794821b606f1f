"""Runs where torch and transformers are installed: writes folders, tensors and outputs of random
models of BERT's relatives.

python relatives_oracle.py FOLDER FOLDER/batch.npz -> FOLDER/NAME/ and FOLDER/NAME.npz, with
"weights/NAME" and "outputs/NAME"; NAME is a class or CLASS-SHAPE. Rows are cut to the positions of
the model and padded with its own id
"""

import inspect
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
ROBERTA = dict(
    hidden_act="gelu", layer_norm_eps=1e-5, type_vocab_size=1, max_position_embeddings=18
)
SHAPES = [
    {},
    dict(vocab_size=73, hidden_size=32, num_hidden_layers=1, num_attention_heads=2),
    dict(hidden_size=16, num_hidden_layers=4, num_attention_heads=4, intermediate_size=50),
]
DISTIL = dict(
    hidden_size="dim", num_hidden_layers="n_layers", num_attention_heads="n_heads",
    intermediate_size="hidden_dim", hidden_dropout_prob="dropout",
    attention_probs_dropout_prob="attention_dropout",
)  # fmt: skip
MODERN = {name: SIZES[name] for name in list(SIZES)[:6]} | dict(attn_implementation="eager")
NO_IDS = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
for index, shape in enumerate(SHAPES):
    for family in ("Roberta", "XLMRoberta"):
        MODELS[f"{family}ForMaskedLM-{index}"] = ROBERTA | shape
    own = dict(activation=("gelu", "relu")[index % 2], max_position_embeddings=16 + index)
    sizes = {DISTIL.get(name, name): value for name, value in (SIZES | shape).items()}
    MODELS[f"DistilBertForMaskedLM-{index}"] = sizes | own
    # embeddings narrower and wider than the hidden states, and as wide
    width = (10, 40, SHAPES[index].get("hidden_size"))[index]
    MODELS[f"ElectraForMaskedLM-{index}"] = dict(hidden_act="gelu", embedding_size=width) | shape
    # rows are longer than the windows; the first model is written as files of transformers 4 are
    old = dict(
        norm_eps=1e-6, local_attention=4 + 2 * index, pad_token_id=0, decoder_bias=index < 2,
        classifier_pooling=("cls", "mean")[index % 2], **NO_IDS,
    )  # fmt: skip
    MODELS[f"ModernBertForMaskedLM-{index}"] = (
        MODERN
        | shape
        | old
        | (
            dict(global_attn_every_n_layers=2, global_rope_theta=90.0, local_rope_theta=30.0)
            if index == 0
            else {}
        )
    )
MODELS["ElectraForPreTraining"] = dict(hidden_act="gelu", embedding_size=10)
# rows of the table of positions before that of the first token
UNUSED = {"roberta-prelayernorm": 1, "roberta": 2, "xlm-roberta": 2}


def rows_for(model, batch):
    """The batch for a model: as many tokens as it has positions, padding and segments as its."""
    config = model.config
    length = config.max_position_embeddings - UNUSED.get(config.model_type, 0)
    rows = {name: values[:, :length] for name, values in batch.items()}
    is_token = rows["attention_mask"] > 0
    rows["input_ids"] = torch.where(is_token, rows["input_ids"], config.pad_token_id)
    if getattr(config, "type_vocab_size", 2) == 1:
        rows["token_type_ids"] = torch.zeros_like(rows["token_type_ids"])
    taken = inspect.signature(model.forward).parameters
    return {name: values for name, values in rows.items() if name in taken}


def main(folder):
    torch.manual_seed(0)
    batch = {name: torch.tensor(values) for name, values in np.load(f"{folder}/batch.npz").items()}
    for name, options in MODELS.items():
        model = getattr(transformers, name.partition("-")[0])
        sizes = {} if name.startswith(("Distil", "Modern")) else SIZES
        model = model(model.config_class(**sizes | options)).eval()
        with torch.no_grad():
            # so that no norm or bias is 0 or 1; sinusoids are frozen
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.copy_(0.2 * torch.randn(parameter.shape))
            for key, parameter in model.named_parameters():
                if name.startswith("Nomic") and key.endswith("transform.dense.bias"):
                    parameter.zero_()  # ours has no such bias
            outputs = model(**rows_for(model, batch), output_hidden_states=True)
        model.save_pretrained(f"{folder}/{name}")
        values = {f"weights/{key}": value.numpy() for key, value in model.state_dict().items()}
        values["outputs/hidden"] = outputs.hidden_states[-1].numpy()
        values |= {
            f"outputs/{key}": value.numpy()
            for key, value in outputs.items()
            if isinstance(value, torch.Tensor)
        }
        np.savez(f"{folder}/{name}.npz", **values)


if __name__ == "__main__":
    main(*sys.argv[1:])
