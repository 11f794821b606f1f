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
        "The task. pairs: pairs of texts, or single texts, with labels of any kind.",
        choices=tuple(tasks.TASKS),
    )
    data_dir: str = setting(
        "examples/pairs",
        "Folder with train, dev and test files, .tsv or .csv; test may have no labels.",
    )
    text_a: str | None = setting(
        None, "Name of the column of the first text. Default: the task's (pairs: text_a)."
    )
    text_b: str | None = setting(
        None,
        "Name of the column of the second text. Default: the task's (pairs: "
        "text_b where there is one). --text_b= means none.",
    )
    label: str | None = setting(
        None, "Name of the column of labels. Default: the task's (pairs: label)."
    )
    output_dir: str = setting(
        "runs/classify",
        "Folder of the run: checkpoints, metrics, results and model/. "
        "Without training, results go only into such a run or into a folder that "
        "is new, empty or holds nothing but earlier results of this command.",
    )
    do_train: bool | None = setting(
        None,
        "Train. With none of --do_train, --do_eval, "
        "--do_predict: train, evaluate, and predict if it can.",
    )
    do_eval: bool | None = setting(None, "Evaluate on the dev file: eval_results.json.")
    do_predict: bool | None = setting(None, "Predict the test file: test_results.tsv.")
    max_seq_length: int | None = setting(
        None,
        "Tokens of a row; the longer text of a pair is cut first. "
        "Default: 128; without training, what the model was trained with.",
        low=8,
    )
    hidden_dropout_prob: float | None = setting(
        None,
        "Share of the hidden values dropped while training. "
        "Default: what the model's config.json says.",
        low=0.0,
        below=1.0,
    )
    attention_probs_dropout_prob: float | None = setting(
        None,
        "Share of the attention probabilities dropped while training. "
        "Default: what the model's config.json says.",
        low=0.0,
        below=1.0,
    )
    eval_batch_size: int = setting(32, "Rows that one GPU evaluates at once.", low=1)
    predict_batch_size: int = setting(32, "Rows that one GPU predicts at once.", low=1)
    seed: int = setting(12345, "Seed of fresh weights, order and dropout.", low=0, high=2**62)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartConfig(Settings):
    """The model to start from."""

    init_checkpoint: str | None = setting(
        None,
        "Start from this model: a model/ folder, a run's folder or a "
        "Hugging Face BERT folder; none = from random weights. Default: "
        "runs/pretrain/model; without training, the model of --output_dir.",
    )
    model: str | None = setting(
        None, "Size of the model with --init_checkpoint=none.", choices=tuple(PRESETS)
    )
    bert_config_file: str | None = setting(
        None,
        "The model's shape as Google's or Hugging Face's config.json, "
        "with --init_checkpoint=none. Elsewhere it must agree.",
    )
    vocab_file: str | None = setting(None, "Vocabulary. Default: vocab.txt beside the model.")
    do_lower_case: bool | None = setting(
        None,
        "Lower-case the text. Default: what tokenizer_config.json beside the model says, else yes.",
    )
    pooling: str | None = setting(
        None,
        "What a training makes the sentence vector of: the first token, [CLS], or the "
        "mean of all tokens. Default: what the model's config.json says, else the first.",
        choices=("first", "mean"),
    )
    pooler_size: int | None = setting(
        None,
        "Width of the tanh layer between the pooled tokens and the scores of the classes that a "
        "training makes. Default: what the model's config.json says, else the model's hidden_size.",
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
    """The phases of a FinetuneConfig, in order: those asked for; when none is, all that are not
    refused and have a file.
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
    """FinetuneSettings with what is known of their defaults before anything is read; for people.
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
