"""The settings of pretraining and of fill-mask, and the model that follows from them."""

import dataclasses

from bert_gpu.data.config import InputConfig
from bert_gpu.model.config import PRESETS, ModelConfig, preset, read_config
from bert_gpu.recipes import differences
from bert_gpu.settings import Settings, UserError, complaint, fields_of, setting
from bert_gpu.train.config import RunSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(Settings):
    """The run."""

    output_dir: str = setting(
        "runs/pretrain",
        "Folder of the run: checkpoints, metrics.jsonl, TensorBoard, and model/ at the end.",
    )
    model: str | None = setting(
        None, "Size of the model. Default: base on GPUs, tiny on the CPU.", choices=tuple(PRESETS)
    )
    bert_config_file: str | None = setting(
        None,
        "The model's shape, as a config.json of Google's or Hugging Face's, instead of --model.",
    )
    init_checkpoint: str | None = setting(
        None,
        "Start from the weights in this folder: one of our model/ folders or a Hugging Face BERT.",
    )
    vocab_file: str | None = setting(
        None,
        "Vocabulary file for records without dataset.json; checked against the "
        "model and copied to model/.",
    )
    max_predictions_per_seq: int | None = setting(
        None, "Masked tokens per row that the data must have. Default: what the data says.", low=1
    )
    seed: int = setting(
        12345, "Seed of the initial weights, the order of the data and dropout.", low=0, high=2**62
    )
    do_train: bool | None = setting(None, "Train. Default: yes, unless only --do_eval is given.")
    do_eval: bool | None = setting(
        None,
        "Alone or with --nodo_train: only evaluate the newest checkpoint on the "
        "validation records.",
    )
    eval_batch_size: int = setting(32, "Sequences that one GPU validates at once.", low=1)
    max_eval_steps: int | None = setting(
        None, "Maximum batches per validation. Default: all validation records.", low=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainSettings(RunSettings):
    """All settings of a pretraining. architecture: {field of ModelConfig: value} that win over
    --model and --bert_config_file.
    """

    run: PretrainConfig = PretrainConfig()
    inputs: InputConfig = InputConfig()
    architecture: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        super().__post_init__()
        fields = {field.name: field for field in dataclasses.fields(ModelConfig)}
        for name, value in self.architecture.items():
            if name not in fields:
                raise UserError(
                    f"architecture: unknown field {name!r}; known are {', '.join(fields)}"[:300]
                )
            if problem := complaint(fields[name], value):
                raise UserError(problem)


# of the settings in a run.json
RUN_FIELDS = fields_of(*PretrainSettings.kinds().values(), ModelConfig)


def check_predictions(config, num_predictions):
    """UserError when the data and a PretrainConfig differ in predictions per row."""
    if config.max_predictions_per_seq not in (None, num_predictions):
        flag = f"--max_predictions_per_seq={config.max_predictions_per_seq}"
        raise UserError(
            f"{flag}: the data has {num_predictions} per row; "
            f"give --max_predictions_per_seq={num_predictions}, or build the data again"
        )


def recipe_problem(recipe, info):
    """A warning that lists how a data set (a Manifest) differs from the recipe's; None when it does
    not, or when either is None.
    """
    if recipe is None or info is None:
        return None
    odd = differences(recipe, info.settings)
    return (
        (f"--recipe={recipe}: the data was not built with the recipe: {'; '.join(odd)}")
        if odd
        else None
    )


def resolve_model(settings, max_seq_length, vocab_size, kind):
    """The ModelConfig of PretrainSettings: a preset or a file, changed by the data and by single
    fields.

    Args:
      max_seq_length: of the data's rows. vocab_size: of the data, None if unknown. kind: "GPU" or
        "CPU", which decides the size when none is named.
    """
    run, architecture = settings.run, settings.architecture
    if run.model is not None and run.bert_config_file is not None:
        raise UserError(
            f"--model={run.model} and --bert_config_file={run.bert_config_file}: give one of them"
        )
    if run.bert_config_file is not None:
        source = run.bert_config_file
        model = dataclasses.replace(read_config(source), **architecture)
    else:
        name = run.model or ("base" if kind == "GPU" else "tiny")
        source = f"--model={name}"
        sizes = {} if vocab_size is None else dict(vocab_size=vocab_size)
        if max_seq_length > ModelConfig().max_position_embeddings:
            sizes["max_position_embeddings"] = max_seq_length
        model = preset(name, **sizes | architecture)
    if "vocab_size" in architecture:
        source = f"--vocab_size={model.vocab_size}"
    if vocab_size is not None and model.vocab_size != vocab_size:
        raise UserError(
            f"{source}: a vocabulary of {model.vocab_size}, but that "
            f"of the data has {vocab_size} pieces; they must be equal"
        )
    if max_seq_length > model.max_position_embeddings:
        raise UserError(
            f"max_position_embeddings={model.max_position_embeddings}: "
            f"fewer than the {max_seq_length} tokens of the data's rows; "
            "raise it, or build the data with a smaller --max_seq_length"
        )
    return model


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMaskConfig(Settings):
    """The model, and how many words to guess."""

    model: str = setting(
        "runs/pretrain/model", "A model/ folder, a run's folder or a Hugging Face BERT folder."
    )
    vocab_file: str | None = setting(None, "Vocabulary file. Default: the model's vocab.txt.")
    do_lower_case: bool | None = setting(
        None,
        "Lower-case the text. Default: as in the model's tokenizer_config.json, else yes.",
    )
    top_k: int = setting(5, "How many words to print for each [MASK].", low=1)
