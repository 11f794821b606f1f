"""The settings of pretraining, and the model that follows from them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, complaint, fields_of, setting
from bert_gpu.data.config import InputConfig
from bert_gpu.interop import sources
from bert_gpu.interop.sources import NONE, find_model
from bert_gpu.model.config import NOT_IN_WEIGHTS, PRESETS, ModelConfig, ShapeConfig, preset
from bert_gpu.model.config_json import read_config, read_config_of
from bert_gpu.pretrain.objectives.table import OBJECTIVES, summaries
from bert_gpu.recipes.rules import differences
from bert_gpu.train.config import RunSettings

if TYPE_CHECKING:
    from bert_gpu.data.manifest import Manifest

MODEL = fields_of(ModelConfig)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(Settings):
    """The run."""

    output_dir: str = setting(
        "runs/pretrain",
        "Folder of the run: checkpoints, metrics.jsonl, TensorBoard, and model/ at the end.",
        path="one",
    )
    model: str | None = setting(
        None, "Size of the model. Default: base on GPUs, tiny on the CPU.", choices=tuple(PRESETS)
    )
    bert_config_file: str | None = setting(
        None,
        "The model's shape, as a config.json of Google's or Hugging Face's, instead of --model.",
        path="one",
    )
    init_checkpoint: str | None = setting(
        None,
        "Continue the pretraining of this model: a model/ folder, a run's folder or a Hugging Face "
        "BERT folder. Its config.json decides the model's shape, and the data must have its "
        "vocabulary. none = random weights, the default.",
        path="one",
    )
    vocab_file: str | None = setting(
        None,
        "Vocabulary file for records without dataset.json; checked against the "
        "model and copied to model/.",
        path="one",
    )
    max_predictions_per_seq: int | None = setting(
        None, "Masked tokens per row that the data must have. Default: what the data says.", low=1
    )
    train_objective: tuple[str, ...] = setting(
        (),
        f"What to train, separated by commas: {summaries(OBJECTIVES)}. Default: mlm, and nsp where "
        "the records have its labels.",
        choices=OBJECTIVES,
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

    @property
    def start(self) -> str | None:
        """The path or name of the model to continue from (--init_checkpoint); None for random
        weights.
        """
        return None if self.init_checkpoint == NONE else self.init_checkpoint

    @property
    def trains(self) -> bool:
        """True to train, False to evaluate only. Raises UserError when neither is to be done."""
        if self.do_train is False and not self.do_eval:
            raise UserError(
                "leaves nothing to do",
                "add --do_eval to evaluate the newest checkpoint",
                setting="nodo_train",
            )
        return bool(self.do_train or not self.do_eval)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridConfig(Settings):
    """Several short pretrainings in one call, each a run in a folder below --output_dir."""

    grid: str | None = setting(
        None,
        "Settings to try in every combination, the best by the last validation's MLM loss, or by "
        '--best_metric: "learning_rate=1e-3,2e-3,5e-3 optimizer=adamw,muon". Each trial has the '
        "steps or the --total_training_time of the call.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainSettings(RunSettings):
    """All settings of a pretraining. architecture: {field of ModelConfig: value}, which take
    precedence over --model and --bert_config_file.
    """

    run: PretrainConfig = PretrainConfig()
    inputs: InputConfig = InputConfig()
    architecture: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.architecture.items():
            if name not in fields_of(ShapeConfig):
                raise UserError(
                    f"unknown field {name!r}",
                    f"known are {', '.join(fields_of(ShapeConfig))}",
                    where="architecture",
                )
            if error := complaint(MODEL[name], value):
                raise error


# {setting: field} of all settings that run.json of a pretraining may hold
RUN_FIELDS = fields_of(*PretrainSettings.kinds().values(), ModelConfig)


def check_data(
    settings: PretrainSettings,
    num_predictions: int,
    info: "Manifest | None",
    warn: Callable[[str], None],
) -> None:
    """Raise UserError when the data has another number of predictions per row than the settings;
    warn when it was built with other settings than those of the recipe.
    """
    config = settings.run
    if config.max_predictions_per_seq not in (None, num_predictions):
        raise UserError(
            f"the data has {num_predictions} per row",
            f"give --max_predictions_per_seq={num_predictions}, or build the data again",
            setting="max_predictions_per_seq",
            value=config.max_predictions_per_seq,
        )
    if settings.recipe is None or info is None:
        return
    if changes := differences(settings.recipe, info.settings):
        warn(
            f"--recipe={settings.recipe}: the data was not built with the recipe: "
            f"{'; '.join(changes)}"
        )


def model_name(run: PretrainConfig, kind: str) -> str | None:
    """Return the name of the preset that --model names, or of the default one for the devices; None
    when a file or another model decides the shape. kind: "GPU" or "CPU".
    """
    if run.start is not None or run.bert_config_file is not None:
        return None
    return run.model or ("base" if kind == "GPU" else "tiny")


def resolve_model(
    settings: PretrainSettings,
    max_seq_length: int,
    vocab_size: int | None,
    kind: str,
    run_json: Mapping[str, object] | None = None,
) -> ModelConfig:
    """Return the model's config: a preset, a file or the model to continue from, changed to fit the
    data and by flags for single fields. Raises UserError when the config does not fit the data.

    Args:
      max_seq_length: tokens of the data's rows. vocab_size: of the data, None = not known. kind:
        "GPU" or "CPU"; it decides the size when no flag does. run_json: content of run.json of the
        run to resume, or None.
    """
    run = settings.run
    architecture = settings.architecture
    if run.model is not None and run.bert_config_file is not None:
        raise UserError(
            "give one of them",
            setting="model",
            value=f"{run.model} and --bert_config_file={run.bert_config_file}",
        )
    if run.start is not None:
        source = f"--init_checkpoint={run.start}"
        model = continued_model(settings, max_seq_length, run_json)
    elif run.bert_config_file is not None:
        source = run.bert_config_file
        model = dataclasses.replace(read_config(source), **architecture)
    else:
        name = model_name(run, kind)
        source = f"--model={name}"
        sizes = {} if vocab_size is None else dict(vocab_size=vocab_size)
        if max_seq_length > ModelConfig().max_position_embeddings:
            sizes["max_position_embeddings"] = max_seq_length
        model = preset(str(name), **sizes | architecture)
    if "vocab_size" in architecture and run.start is None:
        source = f"--vocab_size={model.vocab_size}"
    # the word embeddings of a model to continue may have more rows than its vocabulary has pieces
    is_continued = run.start is not None
    if (
        vocab_size is not None
        and vocab_size != model.vocab_size
        and not (is_continued and vocab_size < model.vocab_size)
    ):
        remedy = (
            f"{sources.OWN_WORDS}; build the data with create_pretraining_data.py and this flag"
            if is_continued
            else "they must be equal"
        )
        raise UserError(
            f"a vocabulary of {model.vocab_size}, but that of the data has {vocab_size} pieces",
            remedy,
            where=source,
        )
    if max_seq_length > model.num_positions:
        raise UserError(
            f"max_position_embeddings={model.max_position_embeddings}: fewer than "
            f"the {max_seq_length} tokens of the data's rows"
            + (f" and {model.first_position} unused rows" if model.first_position else ""),
            "raise it, or build the data with a smaller --max_seq_length",
        )
    for name in architecture:
        if problem := model.without_effect(name):
            console.warn_once(problem)
    return model


def continued_model(
    settings: PretrainSettings, max_seq_length: int, run_json: Mapping[str, Any] | None
) -> ModelConfig:
    """Return the config of the model to continue from, changed by flags and with positions for the
    data's rows; arguments as for `resolve_model`. Raises UserError for a flag that contradicts the
    weights.

    For a run to resume, the config is read from run.json, because the folder from which the run
    started may have been removed.
    """
    if run_json is not None:
        saved = run_json["settings"]
        model = ModelConfig(
            **{name: saved.get(name, field.default) for name, field in MODEL.items()}
        )
        overrides = model_overrides(settings, model)
    else:
        folder = find_model(str(settings.run.start), "init_checkpoint")
        model = sources.read_config(folder)
        overrides = model_overrides(settings, model)
        check_continues(overrides, model, folder)
    changed = {name: value for name, (value, _) in overrides.items()}
    if max_seq_length > model.num_positions:
        changed.setdefault("max_position_embeddings", max_seq_length + model.first_position)
    return dataclasses.replace(model, **changed)


def model_overrides(settings: PretrainSettings, model: ModelConfig) -> dict[str, tuple[Any, str]]:
    """Return {field of ModelConfig: (value, flag that sets it)} of the fields that flags beside
    --init_checkpoint set: --model, --bert_config_file and flags for single fields. model: the
    config of the model to continue from.
    """
    run = settings.run
    fields: Any = {}
    flag = ""
    if run.bert_config_file is not None:
        flag = f"--bert_config_file={run.bert_config_file}"
        fields = read_config_of(run.bert_config_file, model).to_dict()
    elif run.model is not None:
        flag = f"--model={run.model}"
        fields = PRESETS[run.model]
    overrides = {name: (value, flag) for name, value in fields.items()}
    single = settings.architecture.items()
    return overrides | {name: (value, f"--{name}={value}") for name, value in single}


def check_continues(
    overrides: Mapping[str, tuple[Any, str]], model: ModelConfig, folder: str
) -> None:
    """Raise UserError when `overrides`, {field: (value, flag that sets it)}, contradict the weights
    in `folder`, whose config is `model`.
    """

    def resolved(name: str, value: object) -> object:
        rule = MODEL[name].metadata["none_means"]
        return getattr(model, rule) if value is None and rule else value

    for name, (value, flag) in overrides.items():
        current = getattr(model, name)
        if name not in NOT_IN_WEIGHTS and resolved(name, value) != resolved(name, current):
            prefix = "" if flag == f"--{name}={value}" else f"has {name}={value}, but "
            raise UserError(
                f"{prefix}the weights in {folder} are of {name}={current}",
                "drop the flag, or name another --init_checkpoint",
                where=flag,
            )
