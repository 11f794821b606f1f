"""The settings of pretraining, and the model that follows from them."""

import dataclasses

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, complaint, fields_of, setting
from bert_gpu.data.config import InputConfig
from bert_gpu.interop import sources
from bert_gpu.interop.sources import NONE, find_model
from bert_gpu.model.config import (
    NOT_IN_WEIGHTS,
    PRESETS,
    ModelConfig,
    preset,
    read_config,
    read_config_of,
)
from bert_gpu.pretrain.objectives.table import OBJECTIVES, summaries
from bert_gpu.recipes.rules import differences
from bert_gpu.train.config import RunSettings

MODEL = fields_of(ModelConfig)


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
        "Continue the pretraining of this model: a model/ folder, a run's folder or a Hugging Face "
        "BERT folder. Its config.json decides the model's shape, and the data must have its "
        "vocabulary. none = random weights, the default.",
    )
    vocab_file: str | None = setting(
        None,
        "Vocabulary file for records without dataset.json; checked against the "
        "model and copied to model/.",
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
    def start(self):
        """The model to continue from, None for random weights."""
        return None if self.init_checkpoint == NONE else self.init_checkpoint

    @property
    def trains(self):
        """Whether to train, or only to evaluate; UserError for neither."""
        if self.do_train is False and not self.do_eval:
            raise UserError(
                "leaves nothing to do",
                "add --do_eval to evaluate the newest checkpoint",
                setting="nodo_train",
            )
        return bool(self.do_train or not self.do_eval)


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
        for name, value in self.architecture.items():
            if name not in MODEL:
                raise UserError(
                    f"unknown field {name!r}",
                    f"known are {', '.join(MODEL)}",
                    where="architecture",
                )
            if error := complaint(MODEL[name], value):
                raise error


# of the settings in a run.json
RUN_FIELDS = fields_of(*PretrainSettings.kinds().values(), ModelConfig)


def check_data(settings, num_predictions, info, warn):
    """UserError when the data and PretrainSettings differ in predictions per row; warns of what its
    Manifest has unlike the recipe. info: the Manifest, None without one.
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
    if odd := differences(settings.recipe, info.settings):
        warn(
            f"--recipe={settings.recipe}: the data was not built with the recipe: {'; '.join(odd)}"
        )


def model_name(run, kind):
    """The preset that a PretrainConfig names, or that devices of a kind get; None when the shape
    comes from elsewhere.
    """
    if run.start is not None or run.bert_config_file is not None:
        return None
    return run.model or ("base" if kind == "GPU" else "tiny")


def resolve_model(settings, max_seq_length, vocab_size, kind, stored=None):
    """The ModelConfig of PretrainSettings: a preset, a file or the model to continue from, changed
    by the data and by single fields.

    Args:
      max_seq_length: of the data's rows. vocab_size: of the data, None if unknown. kind: "GPU" or
        "CPU", which decides the size when none is named. stored: content of run.json of a run to
        resume, or None.
    """
    run, architecture = settings.run, settings.architecture
    if run.model is not None and run.bert_config_file is not None:
        raise UserError(
            "give one of them",
            setting="model",
            value=f"{run.model} and --bert_config_file={run.bert_config_file}",
        )
    if run.start is not None:
        source = f"--init_checkpoint={run.start}"
        model = continued_model(settings, max_seq_length, stored)
    elif run.bert_config_file is not None:
        source = run.bert_config_file
        model = dataclasses.replace(read_config(source), **architecture)
    else:
        name = model_name(run, kind)
        source = f"--model={name}"
        sizes = {} if vocab_size is None else dict(vocab_size=vocab_size)
        if max_seq_length > ModelConfig().max_position_embeddings:
            sizes["max_position_embeddings"] = max_seq_length
        model = preset(name, **sizes | architecture)
    if "vocab_size" in architecture and run.start is None:
        source = f"--vocab_size={model.vocab_size}"
    # the table of a model to continue may have rows without a piece
    is_continued = run.start is not None
    fits = vocab_size in (None, model.vocab_size)
    if not fits and not (is_continued and vocab_size < model.vocab_size):
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
    if max_seq_length > model.max_position_embeddings:
        raise UserError(
            f"max_position_embeddings={model.max_position_embeddings}: fewer than "
            f"the {max_seq_length} tokens of the data's rows",
            "raise it, or build the data with a smaller --max_seq_length",
        )
    return model


def continued_model(settings, max_seq_length, stored):
    """The ModelConfig of the model to continue from, with what flags change and with positions for
    the data's rows; arguments as for `resolve_model`. UserError for a flag that contradicts the
    weights.

    That of a run to resume is in its run.json: the folder that it started from may be gone.
    """
    if stored is not None:
        known = {name: stored["settings"].get(name, field.default) for name, field in MODEL.items()}
        model = ModelConfig(**known)
        given = given_fields(settings, model)
    else:
        folder = find_model(settings.run.start, "init_checkpoint")
        model = sources.read_config(folder)
        given = given_fields(settings, model)
        check_continues(given, model, folder)
    changed = {name: value for name, (value, _) in given.items()}
    if max_seq_length > model.max_position_embeddings:
        changed.setdefault("max_position_embeddings", max_seq_length)
    return dataclasses.replace(model, **changed)


def given_fields(settings, model):
    """{field of ModelConfig: (value, flag)} that --model or --bert_config_file and single flags set
    in PretrainSettings, beside a model to continue from.
    """
    run, fields, flag = settings.run, {}, ""
    if run.bert_config_file is not None:
        flag = f"--bert_config_file={run.bert_config_file}"
        fields = read_config_of(run.bert_config_file, model).to_dict()
    elif run.model is not None:
        flag, fields = f"--model={run.model}", PRESETS[run.model]
    given = {name: (value, flag) for name, value in fields.items()}
    single = settings.architecture.items()
    return given | {name: (value, f"--{name}={value}") for name, value in single}


def check_continues(given, model, folder):
    """UserError when fields {name: (value, flag)} contradict the weights of `model`, the
    ModelConfig of `folder`.
    """

    def meant(name, value):
        rule = MODEL[name].metadata["none_means"]
        return getattr(model, rule) if value is None and rule else value

    for name, (value, flag) in given.items():
        there = getattr(model, name)
        if name not in NOT_IN_WEIGHTS and meant(name, value) != meant(name, there):
            its = "" if flag == f"--{name}={value}" else f"has {name}={value}, but "
            raise UserError(
                f"{its}the weights in {folder} are of {name}={there}",
                "drop the flag, or name another --init_checkpoint",
                where=flag,
            )
