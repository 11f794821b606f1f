"""The architecture of a BERT as settings, its named sizes, and the config.json files of Google and Hugging Face.

Field names and defaults are those of Google's bert_config.json (Devlin et al. 2018, BERT base), so that a file written for one of the
three systems says the same thing in the others. Reading is strict: a key that is neither ours nor one that Hugging Face is known to
write is an error, because an ignored key is an architecture that silently differs from the one asked for.
"""

import dataclasses
import json

import tensorflow as tf

from bert_gpu.settings import Settings, UserError, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(Settings):
    """Everything that decides the shape and the function of the encoder; B, S and the heads are not part of it."""

    vocab_size: int = setting(30522, "Number of entries of the vocabulary; the rows of the word embeddings.", low=1)
    hidden_size: int = setting(768, "Width H of the vectors that flow through the encoder; a multiple of the number of heads.", low=1)
    num_hidden_layers: int = setting(12, "Number of transformer layers: one attention and one feed-forward block each.", low=1)
    num_attention_heads: int = setting(12, "Number of attention heads N; each sees hidden_size / N dimensions.", low=1)
    intermediate_size: int = setting(3072, "Width of the feed-forward block between its two products, usually 4 x hidden_size.", low=1)
    hidden_act: str = setting(
        "gelu",
        "Activation of the feed-forward block: gelu (exact, with erf), gelu_new (its tanh approximation) or relu.",
        choices=("gelu", "gelu_new", "relu"),
    )
    hidden_dropout_prob: float = setting(
        0.1, "Share of the hidden values dropped after the embeddings and after every block while training.", low=0.0, below=1.0
    )
    attention_probs_dropout_prob: float = setting(0.1, "Share of the attention probabilities dropped while training.", low=0.0, below=1.0)
    max_position_embeddings: int = setting(512, "Longest sequence, in tokens, that the position embeddings reach.", low=1)
    type_vocab_size: int = setting(2, "Number of segment types: 2 tells the first text of a pair from the second.", low=1)
    initializer_range: float = setting(
        0.02, "Standard deviation of the truncated normal that kernels and embeddings start from.", above=0.0
    )
    layer_norm_eps: float = setting(1e-12, "Added to the variance in layer normalisation, against division by zero.", above=0.0)

    def __post_init__(self):
        super().__post_init__()
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"--hidden_size={self.hidden_size}: must be a multiple of --num_attention_heads={self.num_attention_heads}, "
                "so that every head gets the same share"
            )


# The sizes that Google published (Turc et al. 2019, "Well-Read Students Learn Better"; Devlin et al. 2018).
PRESETS = {
    name: dict(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden)
    for name, layers, hidden, heads in [
        ("tiny", 2, 128, 2),
        ("mini", 4, 256, 4),
        ("small", 4, 512, 8),
        ("medium", 8, 512, 8),
        ("base", 12, 768, 12),
        ("large", 24, 1024, 16),
    ]
}


def preset(name, **overrides):
    """The ModelConfig of a named size, with single fields replaced."""
    if name not in PRESETS:
        raise UserError(f"--model={name}: no such size; known are {', '.join(PRESETS)}")
    return ModelConfig(**{**PRESETS[name], **overrides})


# What Hugging Face writes beside the architecture. The first group changes what the network computes, so that only the one value that
# our encoder implements is accepted; the second is about serving, training or tokenizing and does not concern the weights.
_CHECKED_KEYS = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "pruned_heads": {},
}
_IGNORED_KEYS = frozenset(
    """
    architectures torch_dtype dtype transformers_version use_cache gradient_checkpointing classifier_dropout directionality
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type id2label label2id num_labels
    problem_type finetuning_task output_attentions output_hidden_states output_past return_dict torchscript chunk_size_feed_forward
    attn_implementation _attn_implementation _attn_implementation_autoset attention_implementation _name_or_path name_or_path name
    _commit_hash _num_labels language task_specific_params tokenizer_class prefix xla_device use_bfloat16 tf_legacy_loss
    pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id decoder_start_token_id
    cross_attention_hidden_size quantization_config auto_map
    """.split()
)


def read_json(path):
    """The JSON object in a file, as a dict. Refuses a missing file, anything but an object, a key given twice, NaN and infinities."""

    def refuse_constant(text):
        raise ValueError(f"{text} is not a JSON number")

    def refuse_duplicates(pairs):
        keys = [key for key, _ in pairs]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise ValueError(f"key {twice[0]!r} is given twice")
        return dict(pairs)

    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            text = file.read().decode("utf-8")
        values = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_duplicates)
    except tf.errors.NotFoundError:
        raise UserError(f"{path}: no such file") from None
    except tf.errors.OpError as error:
        raise UserError(f"{path}: cannot be read ({error.message})"[:300]) from None
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})"[:300]) from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: must hold a JSON object, like Google's bert_config.json")
    return values


def read_config(path):
    """Reads a bert_config.json of Google or a config.json of Hugging Face or of ours; keys that are absent keep BERT base's values.

    Raises:
      UserError: not a strict JSON object, an unknown key, a value of the wrong type or range, or an architecture that is not BERT's.
    """
    values = read_json(path)
    fields = {field.name for field in dataclasses.fields(ModelConfig)}
    for key, value in values.items():
        if key in _CHECKED_KEYS and value is not None and value != _CHECKED_KEYS[key]:
            raise UserError(f"{path}: {key}={value!r} is not supported, only {_CHECKED_KEYS[key]!r} is"[:300])
        if key not in fields and key not in _CHECKED_KEYS and key not in _IGNORED_KEYS:
            raise UserError(f"{path}: unknown key {key!r}; the model's are {', '.join(sorted(fields))}"[:300])
    try:
        return ModelConfig(**{key: value for key, value in values.items() if key in fields})
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix('--')}"[:300]) from None


def read_labels(path):
    """Names of a classifier's classes in the order of its logits, as Hugging Face's config.json keeps them; () when it has none."""
    labels = read_json(path).get("id2label") or {}
    try:
        return tuple(str(labels[key]) for key in sorted(labels, key=int))
    except (TypeError, ValueError):
        raise UserError(f"{path}: id2label must map class numbers to names") from None


def config_bytes(config, architecture, labels=()):
    """The text of a config.json that `transformers` opens and `read_config` reads back to the same config.

    Args:
      architecture: class of `transformers` that the folder is for, such as "BertForPreTraining".
      labels: names of the classes, in the order of the logits; their number tells transformers the width of the classifier.
    """
    values = {
        "architectures": [architecture],
        "model_type": "bert",
        "position_embedding_type": "absolute",
        "pad_token_id": 0,
        "torch_dtype": "float32",
        **config.to_dict(),
    }
    if labels:
        values["id2label"] = {str(index): label for index, label in enumerate(labels)}
        values["label2id"] = {label: index for index, label in enumerate(labels)}
    return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode("utf-8")


def write_config(path, config, architecture, labels=()):
    """Writes a config.json (see `config_bytes`)."""
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(config_bytes(config, architecture, labels))
