"""The model that a fine-tuning or an evaluation starts from: shape, tokenizer, weights."""

import dataclasses
import functools
import json
import os
import typing
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.base.run_names import MODEL, RUN
from bert_gpu.base.settings import fields_of
from bert_gpu.finetune.config import DEFAULT_START, FinetuneConfig, StartConfig
from bert_gpu.finetune.files.examples import Loaded
from bert_gpu.finetune.notes import TaskNotes, read_notes
from bert_gpu.finetune.tasks import table
from bert_gpu.finetune.tasks.interface import TaskType, open_task_type
from bert_gpu.finetune.tasks.labels import are_numbers
from bert_gpu.interop import models
from bert_gpu.interop.formats import Embedding
from bert_gpu.interop.heads import HEADS
from bert_gpu.interop.relatives import relative_of
from bert_gpu.interop.sources import NONE, TASK
from bert_gpu.interop.usage import check_scores, class_names
from bert_gpu.model.config import ModelConfig, preset
from bert_gpu.model.config_json import read_config, read_config_of
from bert_gpu.model.encoders import Encoder, open_encoder
from bert_gpu.model.heads import first_transform, pooling_of
from bert_gpu.model.positions import fit_positions
from bert_gpu.model.weights import WeightSpec, initialize
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.provenance import weights_hash
from bert_gpu.text.tokenizers.wordpiece import Tokenizer

CLASSIFIER = "classifier"  # the head of texts
# settings of the model that fine-tuning may change
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


@dataclasses.dataclass(frozen=True)
class Start:
    """The model that fine-tuning or evaluation starts from.

    path: the model's folder, or "none". weights: {name: float32 array}, all of the encoder and its
    head. fresh: names of the randomly initialised weights. unused: description, for the log, of
    weights in the model's files that bert-gpu's model does not have. extensions: descriptions of
    the tables of positions that have been enlarged. embedding: rules by which the model makes
    vectors of texts. classifier: description, for the log, of the head that the model's files have,
    and whether it is taken.
    """

    path: str
    model: ModelConfig
    tokenizer: Tokenizer
    weights: dict[str, np.ndarray]
    fresh: list[str]
    unused: str = ""
    extensions: tuple[str, ...] = ()
    embedding: Embedding = Embedding()
    classifier: str = ""

    @property
    def encoder(self) -> Encoder:
        return open_encoder(self.model)


def is_same_task(source: models.Model, task: TaskType) -> bool:
    """Return whether the head of a model is one for a task with these labels, as far as files of
    the model tell. Words as labels mean the same in all tasks but two of GLUE; numbers do in tasks
    of the same name, which for a user's own tasks have the same columns, too.
    """
    stored = json.loads((source.task or {}).get(TASK, b"{}"))
    spec, have_words = task.spec, not are_numbers(task.labels)
    origin = str(stored.get("task_name") or source.notes.task_name or spec.name)
    names = {table.bare(spec.name), table.bare(origin)}
    are_glue = names <= {*map(table.bare, table.GLUE)}
    columns = (stored.get(key) in (None, getattr(spec, key)) for key in ("text_a", "label"))
    is_own = len(names) == 1 and (are_glue or all(columns) or have_words)
    means_same = is_own or (have_words and not are_glue)
    return means_same and source.notes.problem_type in (None, task.config_name)


def start_training(
    config: StartConfig,
    task: TaskType,
    seed: int,
    check_size: Callable[
        [ModelConfig, Callable[[ModelConfig], dict[str, WeightSpec]]], object
    ] = lambda model, specs_of: None,
    max_seq_length: int | None = None,
    fits: bool | None = None,
) -> Start:
    """Return the model from which a training of a task starts: the model of --init_checkpoint, with
    random weights in place of missing ones, and with positions for rows of max_seq_length.

    check_size: function that raises when the model is too large; called, before weights are made,
    with the model's config and a function that returns {name: WeightSpec} for a config. fits:
    whether the head of the model of --init_checkpoint is one for the task; None = as its files say.

    A stored head of another task or other classes is replaced by random weights, and so is a
    classifier that pools otherwise than --pooling and --pooler_size say. A head of the same task is
    kept, with the classes in the order of the task's labels.
    """
    init_checkpoint = DEFAULT_START if config.init_checkpoint is None else config.init_checkpoint
    file_weights: dict[str, np.ndarray] = {}
    unused = classifier = ""
    embedding = Embedding()
    if init_checkpoint == NONE:
        path = NONE
        model, tokenizer = fresh_model(config)
        model = with_pooling(model, config, task)
    else:
        path, source = models.read_start(init_checkpoint)
        unused = models.describe_unused(source.notes)
        embedding = source.notes.embedding.of_pairs()
        model = source.config
        tokenizer = checked_tokenizer(config, path, model)
        model = with_dropout(model, config)
        if model.has_own_encoder:
            num_rows = model.first_position + max(model.num_positions, max_seq_length or 0)
            model = dataclasses.replace(model, max_position_embeddings=num_rows)
        has_head = is_same_task(source, task) if fits is None else fits
        file_weights = with_rows_of(task, source, has_head)
        prefixes: tuple[str, ...] = ()
        pooled_by = pooling_of(model, source.weights)
        model = with_pooling(model, config, task, default_pooling(source))
        if task.head == CLASSIFIER and (model.pooling, model.pooled_size) != pooled_by:
            prefixes = task.prefixes()
        file_weights = {
            name: value for name, value in file_weights.items() if not name.startswith(prefixes)
        }
        if (bias := f"{task.head}/bias") in source.weights:
            classifier = f"{'' if bias in file_weights else 'fresh, not '}that of {path}"
        file_weights = first_transform(source.weights, model, task.head) | file_weights
    check_size(model, lambda few: task.weight_specs(open_encoder(few), len(task.labels)))
    specs = task.weight_specs(open_encoder(model), len(task.labels))
    file_weights, extensions = fit_positions(file_weights, specs, model.first_position)
    weights = initialize(specs, seed)
    return Start(
        path,
        model,
        tokenizer,
        {name: file_weights.get(name, value) for name, value in weights.items()},
        sorted(set(weights) - set(file_weights)),
        unused,
        extensions,
        embedding,
        classifier,
    )


def with_rows_of(task: TaskType, source: models.Model, fits: bool = True) -> dict[str, np.ndarray]:
    """Return {name: array} of a model's weights, with the classes of its head in the order of the
    task's labels; without the head where its classes are others, or the head does not fit.
    """
    names = class_names(source, task.head)
    own = f"{task.head}/"
    has_same = fits and sorted(names) == sorted(task.labels)
    rows = [names.index(label) for label in task.labels] if has_same else []
    return {
        name: value[..., rows] if rows and name.startswith(own) else value
        for name, value in source.weights.items()
        if has_same or not name.startswith(own)
    }


class Trained(typing.NamedTuple):
    """A fine-tuned model, to be evaluated. labels: names of its classes. has_names: whether its
    files name them. task_type: one of the types with its head. notes: its task.json.
    """

    start: Start
    labels: tuple[str, ...]
    has_names: bool
    task_type: type[TaskType]
    notes: TaskNotes


def find_trained(config: StartConfig, output_dir: str) -> Trained:
    """Return the model to evaluate: --init_checkpoint if it has a task's head, else the model in
    --output_dir. The model in --output_dir comes first where its run started from
    --init_checkpoint, so that the flags of a training, given again to evaluate, find the model that
    was trained. Raises UserError if neither model is fine-tuned.
    """
    trained = os.path.join(output_dir, MODEL)
    has_own = models.has_model(trained)
    if config.init_checkpoint is not None and config.init_checkpoint != NONE:
        path = models.find_model(config.init_checkpoint, "init_checkpoint")
        is_start = has_own and has_started_from(config, output_dir)
        if not is_start and (named := read_trained(config, path)) is not None:
            return named
    if has_own and (own := read_trained(config, trained)) is not None:
        return own
    start = f"--init_checkpoint={config.init_checkpoint} and " if config.init_checkpoint else ""
    raise UserError(
        "no fine-tuned classifier there",
        "train one first (--do_train), or name one with --init_checkpoint",
        where=f"{start}{trained}",
    )


def read_trained(config: StartConfig, path: str) -> Trained | None:
    """Return the fine-tuned model in a folder, None when the model has no head of a task. Raises
    UserError for a head that bert-gpu does not have.
    """
    model = models.read_model(path)
    notes = model.notes
    if notes.foreign is not None:
        raise UserError(
            f"is a {notes.foreign[:60]}, whose head bert-gpu does not have",
            "train another (--do_train), or name the class that it equals in "
            "architectures of its config.json",
            where=path[:90],
        )
    types = {one.head: one for one in map(open_task_type, reversed(table.KINDS))}
    for head, task_type in types.items():
        has_bias = f"{head}/bias" in model.weights
        if not (has_bias if head in HEADS else notes.embedding.is_known):
            continue
        labels = class_names(model, head)
        specs = task_type.weight_specs(open_encoder(model.config), len(labels))
        if set(specs) <= set(model.weights):
            if head == CLASSIFIER:
                check_scores(path, model)
            own = {name: model.weights[name] for name in specs}
            tokenizer = checked_tokenizer(config, path, model.config)
            embedding = notes.embedding.of_pairs()
            start = Start(path, model.config, tokenizer, own, [], embedding=embedding)
            task_notes = read_notes(path, task_type, notes)
            return Trained(start, labels, labels == notes.labels, task_type, task_notes)
    return None


def has_started_from(config: StartConfig, output_dir: str) -> bool:
    """Return whether the run in `output_dir` is a fine-tuning that started from --init_checkpoint:
    whether run.json has the hash of the weights from which it would start with that model.
    """
    if not os.path.exists(os.path.join(output_dir, RUN)):
        return False
    try:
        run = RunFolder(output_dir).read_run(fields_of(FinetuneConfig))
        settings = run["settings"] if run else {}
        if not isinstance(settings.get("labels"), list):
            return False
        spec = table.find_task(settings["task_name"])
        task = open_task_type(spec.kind)(spec=spec, labels=tuple(settings["labels"]))
        start = functools.partial(
            start_training,
            config,
            task,
            settings["seed"],
            max_seq_length=settings.get("max_seq_length"),
        )
        return any(  # it kept the head of that model, or took a fresh one
            weights_hash(start(fits=fits).weights) == settings["init_checkpoint"]
            for fits in (True, False)
        )
    except UserError:  # the run is damaged, or the flags are those of another run
        return False


def default_pooling(source: models.Model) -> str:
    """Return the pooling that a classifier has without --pooling: its model's, but "mean" for a
    model that was pretrained on masked words alone, whose [CLS] nothing has trained. Models that a
    class of transformers opens, whose classifier reads [CLS], and TF Model Garden's keep theirs.
    """
    model, architecture = source.config, source.notes.architecture
    has_pooler = architecture != "BertForMaskedLM" or "pooler/kernel" in source.weights
    is_theirs = model.is_classic or relative_of(model, architecture) or model.model_family != "bert"
    return model.pooling if has_pooler or is_theirs or not model.has_own_encoder else "mean"


def with_pooling(
    model: ModelConfig, config: StartConfig, task: TaskType, default: str | None = None
) -> ModelConfig:
    """Return the model's config, with --pooling and --pooler_size where the task has a classifier
    of texts. default: the pooling without --pooling; None = the model's.
    """
    if task.head != CLASSIFIER:
        return model
    return dataclasses.replace(
        model,
        pooling=config.pooling or default or model.pooling,
        pooler_size=config.pooler_size or model.pooler_size,
    )


def with_dropout(model: ModelConfig, config: StartConfig) -> ModelConfig:
    """Return the model's config, with the dropout of --bert_config_file where that flag is
    given.
    """
    if config.bert_config_file is None:
        return model
    other = read_config(config.bert_config_file)
    return dataclasses.replace(model, **{name: getattr(other, name) for name in DROPOUT})


def fresh_model(config: StartConfig) -> tuple[ModelConfig, Tokenizer]:
    """Return the config and the tokenizer of a model that starts from random weights,
    --init_checkpoint=none.
    """
    if (config.model is None) == (config.bert_config_file is None):
        raise UserError(
            "needs the model's shape, either --model or --bert_config_file",
            setting="init_checkpoint",
            value="none",
        )
    if config.vocab_file is None:
        raise UserError("needs a vocabulary, --vocab_file", setting="init_checkpoint", value="none")
    tokenizer = models.load_tokenizer(None, config.vocab_file, config.do_lower_case)
    model = (
        read_config(config.bert_config_file)
        if config.bert_config_file
        else preset(str(config.model), vocab_size=tokenizer.vocab_size)
    )
    models.check_vocabulary(tokenizer, model, f"--vocab_file={config.vocab_file}")
    return model, tokenizer


def checked_tokenizer(config: StartConfig, path: str, model: ModelConfig) -> Tokenizer:
    """Return the tokenizer of the model in the folder `path`. Raises UserError when --model is
    given, or when --bert_config_file or the vocabulary does not agree with the model's config.
    """
    if config.model is not None:
        raise UserError(
            "applies with --init_checkpoint=none only",
            f"the size is that of the model in {path}",
            setting="model",
            value=config.model,
        )
    if config.bert_config_file is not None:
        in_file = read_config_of(config.bert_config_file, model).to_dict()
        in_model = model.to_dict()
        changed = [
            f"{name} {in_file.get(name)}, there {in_model[name]}"
            for name in in_model
            if name not in (*DROPOUT, "initializer_range")
            and in_file.get(name) != in_model[name]
            # vocab_size in the file may lack the rows that pad the model's vocabulary
            and not (name == "vocab_size" and in_file[name] < in_model[name])
        ]
        if changed:
            raise UserError(
                f"not the shape of {path} ({'; '.join(changed)})",
                "drop the flag",
                setting="bert_config_file",
                value=config.bert_config_file,
            )
    tokenizer = models.load_tokenizer(path, config.vocab_file, config.do_lower_case)
    source = (
        f"--vocab_file={config.vocab_file}"
        if config.vocab_file
        else os.path.join(path, "vocab.txt")
    )
    models.check_vocabulary(tokenizer, model, source, path)
    return models.for_training(tokenizer, tokenizer.settings)


def check_fits(
    start: Start, files: Mapping[str, Sequence[Loaded]], max_seq_length: int, precision: str
) -> None:
    """Raise UserError when the model does not support `max_seq_length` tokens, the pairs in the
    files, or the precision. files: {phase: list with the examples of each file}.

    A model without segment embeddings (type_vocab_size=0, as Cramming's), or of a family with one
    segment for all tokens, takes pairs, too: [SEP] alone separates their texts.
    """
    model = start.model
    encoder = start.encoder
    where = f"the model ({start.path})"
    if max_seq_length > model.num_positions:
        raise UserError(
            f"{where} has {model.num_positions} positions",
            "give at most that many",
            setting="max_seq_length",
            value=max_seq_length,
        )
    if encoder.fixed_length not in (None, max_seq_length):
        raise UserError(
            f"{where} takes rows of exactly {encoder.fixed_length} tokens",
            f"give --max_seq_length={encoder.fixed_length}",
            setting="max_seq_length",
            value=max_seq_length,
        )
    encoder.check(max_seq_length, precision)
    pairs = [part.path for parts in files.values() for part in parts if part.has_pairs]
    if pairs and model.type_vocab_size == 1 and model.model_family == "bert":
        raise UserError(
            f"has pairs, but {where} has one segment (type_vocab_size=1)",
            "--text_b= takes the first texts alone",
            where=pairs[0],
        )
