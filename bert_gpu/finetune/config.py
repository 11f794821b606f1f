"""The settings of a fine-tuning: the task, the run, and the model that it starts from."""

import dataclasses

from bert_gpu.finetune import tasks
from bert_gpu.model.config import PRESETS
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.settings import Settings, UserError, setting
from bert_gpu.train.config import CadenceConfig, RunSettings

# of --init_checkpoint in a training, and of --max_seq_length
DEFAULT_START, DEFAULT_LENGTH = "runs/pretrain/model", 128
FILES = dict(train="train", eval="dev", predict="test")  # which file each phase reads


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Settings):
    """The task and the run."""

    task_name: str = setting(
        "pairs",
        "The task. pairs: classifies pairs of texts or single texts, with labels of any kind.",
        choices=tuple(tasks.TASKS),
    )
    data_dir: str = setting(
        "examples/pairs",
        "Folder with train, dev and test files, .tsv or .csv; the test file may lack labels.",
    )
    text_a: str | None = setting(
        None, "Column with the first text. Default: the task's (pairs: text_a)."
    )
    text_b: str | None = setting(
        None,
        "Column with the second text. Default: the task's (pairs: text_b, if "
        "there is one). --text_b= means single texts.",
        words=("",),
    )
    label: str | None = setting(None, "Column with the labels. Default: the task's (pairs: label).")
    output_dir: str = setting(
        "runs/classify",
        "Folder of the run: checkpoints, metrics, results and model/. "
        "Without training, it must be such a run, or be new, empty or hold only "
        "earlier results of this command.",
    )
    do_train: bool | None = setting(
        None,
        "Train. Without --do_train, --do_eval and --do_predict: train, evaluate "
        "and, if there is a test file, predict.",
    )
    do_eval: bool | None = setting(None, "Evaluate on the dev file and write eval_results.json.")
    do_predict: bool | None = setting(
        None, "Predict the labels of the test file and write test_results.tsv."
    )
    max_seq_length: int | None = setting(
        None,
        "Maximum tokens per example; the longer text of a pair is cut first. "
        "Default: 128, or without training the length that the model was trained "
        "with.",
        low=8,
    )
    hidden_dropout_prob: float | None = setting(
        None,
        "Dropout probability of hidden values in training. Default: the one in "
        "the model's config.json.",
        low=0.0,
        below=1.0,
    )
    attention_probs_dropout_prob: float | None = setting(
        None,
        "Dropout probability of attention in training. Default: the one in the "
        "model's config.json.",
        low=0.0,
        below=1.0,
    )
    eval_batch_size: int = setting(32, "Examples that one GPU evaluates at once.", low=1)
    predict_batch_size: int = setting(32, "Examples that one GPU predicts at once.", low=1)
    seed: int = setting(
        12345, "Seed of fresh weights, the order of the examples and dropout.", low=0, high=2**62
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartConfig(Settings):
    """The model to start from."""

    init_checkpoint: str | None = setting(
        None,
        "Start from this model: a model/ folder, a run's folder or a Hugging Face "
        "BERT folder; none = random weights. Default: runs/pretrain/model, or "
        "without training the model in --output_dir.",
    )
    model: str | None = setting(
        None, "Size of the model with --init_checkpoint=none.", choices=tuple(PRESETS)
    )
    bert_config_file: str | None = setting(
        None,
        "The model's shape, as a config.json of Google's or Hugging Face's, with "
        "--init_checkpoint=none. With another model it must agree with that.",
    )
    vocab_file: str | None = setting(None, "Vocabulary file. Default: the model's vocab.txt.")
    do_lower_case: bool | None = setting(
        None,
        "Lower-case the text. Default: as in the model's tokenizer_config.json, else yes.",
    )
    pooling: str | None = setting(
        None,
        "How training pools the tokens to a sentence vector: first = the [CLS] "
        "token, mean = the mean of all tokens. Default: as in the model's "
        "config.json, else first.",
        choices=("first", "mean"),
    )
    pooler_size: int | None = setting(
        None,
        "Width of the tanh layer between the sentence vector and the class scores "
        "in training. Default: as in the model's config.json, else hidden_size.",
        low=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneSettings(RunSettings):
    """All settings of a fine-tuning. Learning rate and epochs are Google's for classification."""

    run: FinetuneConfig = FinetuneConfig()
    start: StartConfig = StartConfig()
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=5e-5)
    cadence: CadenceConfig = CadenceConfig(num_train_epochs=3.0)


def resolve_phases(config):
    """The phases of a FinetuneConfig, in order: those asked for, else all that are not switched off
    and have a file.
    """
    asked = {phase: getattr(config, f"do_{phase}") for phase in FILES}
    phases = [phase for phase in FILES if asked[phase]]
    if not phases:
        phases = [phase for phase in FILES if asked[phase] is None]
        if "predict" in phases and tasks.find_split(config.data_dir, FILES["predict"]) is None:
            phases.remove("predict")
    if not phases:
        raise UserError(
            "--nodo_train --nodo_eval --nodo_predict: leave nothing to do; drop one of them"
        )
    return phases


def resolve_defaults(settings, phases):
    """FinetuneSettings with the defaults that are known before any file is read, for --show_config.
    phases: of `resolve_phases`.
    """
    run = dataclasses.replace(settings.run, **{f"do_{phase}": phase in phases for phase in FILES})
    start = settings.start
    if "train" in phases:
        run = dataclasses.replace(run, max_seq_length=run.max_seq_length or DEFAULT_LENGTH)
        start = dataclasses.replace(
            start,
            init_checkpoint=DEFAULT_START
            if start.init_checkpoint is None
            else start.init_checkpoint,
        )
    return dataclasses.replace(settings, run=run, start=start)


def resolve_task(config):
    """The TaskSpec of a FinetuneConfig, with the columns that it names."""
    named = {
        name: getattr(config, name)
        for name in ("text_a", "text_b", "label")
        if getattr(config, name) is not None
    }
    if "text_b" in named:
        named |= dict(text_b=named["text_b"] or None, requires_text_b=bool(named["text_b"]))
    return dataclasses.replace(tasks.TASKS[config.task_name], **named)
