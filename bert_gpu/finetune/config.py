"""The settings of a fine-tuning: the task, the run, and the model that it starts from."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, setting
from bert_gpu.finetune.tasks import table
from bert_gpu.model.config import PRESETS, ModelConfig
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.text.long_texts import RULES, LongTexts
from bert_gpu.train.config import CadenceConfig, RunSettings

T = TypeVar("T")

# defaults of a training
DEFAULT_START = "runs/pretrain/model"
DEFAULT_TASK = "pairs"
FILES = dict(train="train", eval="dev", predict="test")  # {phase: the split that it reads}
# the default rate is for the width of base, with a limit; the epochs have at least so many examples
BASE_WIDTH, HIGHEST_RATE, LEAST_EXAMPLES = 768, 1e-3, 9600


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Settings):
    """The task and the run."""

    task_name: str | None = setting(
        None,
        "The task, in any case: pairs (of texts, or single ones, with labels of any kind), single, "
        "ner (a tag for each word), squad (an answer in a text), similarity (vectors of texts), "
        f"or one of GLUE: {', '.join(table.GLUE)}; all: each of these that --data_dir holds. "
        "Default: pairs, or without training that of the model.",
    )
    task_kind: str | None = setting(
        None,
        "What is predicted. classification: one of the classes in the training file; regression: "
        "a number; multilabel: any of several labels, in a cell with commas, ; or | between them "
        "or as a list of JSON, Python or NumPy. tagging is that of ner, answers that of squad, "
        "similarity that of similarity. Default: the task's.",
        choices=tuple(table.KINDS),
    )
    data_dir: str | None = setting(
        None,
        "Folder with train, dev and test files, .tsv, .csv, .jsonl, .json or .parquet (of ner also "
        ".txt or .conll, of squad .json or .jsonl, of similarity also .txt); the test file may "
        "lack labels. For a task of GLUE also the folder that holds CoLA, SST-2 and so on. "
        "Default: the bundled examples/pairs, or none where one of the files is named; without "
        "training the data of the model's run.",
        instead=("train_file", "dev_file", "test_file"),
        path="one",
    )
    train_file: str | None = setting(
        None,
        "The training file, of any name. Default: the one in --data_dir.",
        path="one",
    )
    dev_file: str | None = setting(
        None, "The file to evaluate on. Default: as for --train_file.", path="one"
    )
    test_file: str | None = setting(
        None,
        "The file to predict, with labels or without, and any further columns, which "
        "predictions.tsv repeats. Default: as for --train_file.",
        path="one",
    )
    dev_share: float = setting(
        0.0,
        "Share of the training file that is evaluated on instead of trained on, chosen by a "
        "hash of the texts.",
        low=0.0,
        below=1.0,
    )
    test_share: float = setting(
        0.0,
        "Share of the training file that is set aside as the test file, chosen by a hash of the "
        "texts.",
        low=0.0,
        below=1.0,
    )
    columns: tuple[str, ...] | None = setting(
        None,
        "Names of the columns of .tsv and .csv files that have no header line, in order: "
        "text_a,text_b,label.",
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
        path="one",
    )
    do_train: bool | None = setting(
        None,
        "Train. Without --do_train, --do_eval and --do_predict: train, evaluate "
        "and, if there is a test file, predict.",
    )
    do_eval: bool | None = setting(None, "Evaluate on the dev file and write eval_results.json.")
    do_predict: bool | None = setting(
        None, "Predict the labels of the test file and write predictions.tsv and test_results.tsv."
    )
    max_seq_length: int | None = setting(
        None,
        "Maximum tokens per example; the longer text of a pair is cut first. "
        "Default: 128, at most the model's positions, or without training the length that the "
        "model was trained with, and its positions where its folder does not say.",
        low=8,
    )
    padding: str = setting(
        "dynamic",
        "How rows are padded. fixed: to --max_seq_length; dynamic: to the longest row of a batch; "
        "uniform: like dynamic, with rows of similar length in a batch. dynamic and uniform "
        "evaluate and predict in order of length.",
        choices=("fixed", "dynamic", "uniform"),
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
    eval_batch_size: int = setting(
        32, "Examples that one GPU evaluates or predicts at once.", low=1
    )
    label_smoothing: float = setting(
        0.0,
        "Label smoothing in classification: the share of the target spread evenly over all "
        "classes.",
        low=0.0,
        below=1.0,
    )
    class_weights: str | None = setting(
        None,
        "Weights of the classes in the training loss: balanced, inverse to their frequency.",
        choices=("balanced",),
    )
    positive_label: str | None = setting(
        None,
        "Of two classes the one that F1 is of. Default: the one that does not negate the other "
        "(duplicate of duplicate and not_duplicate), else the last in order, or without training "
        "that of the model.",
    )
    seed: int = setting(
        12345, "Seed of fresh weights, the order of the examples and dropout.", low=0, high=2**62
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartConfig(Settings):
    """The model to start from."""

    init_checkpoint: str | None = setting(
        None,
        "Start from this model: a model/ folder, a run's folder or a Hugging Face "
        "BERT folder; none = random weights. RUN/marks (the models exported during a "
        "pretraining) starts one fine-tuning from each. Default: runs/pretrain/model, or "
        "without training the model in --output_dir.",
        path="one",
    )
    model: str | None = setting(
        None, "Size of the model with --init_checkpoint=none.", choices=tuple(PRESETS)
    )
    bert_config_file: str | None = setting(
        None,
        "The model's shape, as a config.json of Google's or Hugging Face's, with "
        "--init_checkpoint=none. With another model it must agree with that, but for the dropout, "
        "which is the file's.",
        path="one",
    )
    vocab_file: str | None = setting(
        None, "Vocabulary file. Default: the model's vocab.txt.", path="one"
    )
    do_lower_case: bool | None = setting(
        None,
        "Lower-case text. Default: as the model's folder says, else no if pieces have capitals.",
    )
    pooling: str | None = setting(
        None,
        "How the tokens of a text become one vector: cls = the [CLS] token, mean = the mean of all "
        "tokens. Default: as in the model's folder, else cls; mean for similarity, and for a model "
        "that was pretrained without next sentence and that no class of transformers opens.",
        choices=("cls", "mean"),
        words=("first",),
    )
    pooler_size: int | None = setting(
        None,
        "Width of the tanh layer between the sentence vector and the class scores "
        "in training. Default: as in the model's config.json, else hidden_size.",
        low=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenConfig(Settings):
    """Settings of single tasks, and of texts that are longer than a row."""

    doc_stride: int | None = setting(
        None,
        "Stride in tokens between consecutive rows of a text that does not fit into one: "
        "contexts of squad, sentences of ner, long texts of windows. Default: 128 of squad, half a "
        "row of ner, a whole row of windows.",
        low=1,
    )
    long_texts: str | None = setting(
        None,
        "What is read of a text longer than --max_seq_length, in classification, several labels "
        "and regression. cut: its first tokens; head_tail: its first and its last; windows: all, "
        "in up to --max_windows rows whose scores are averaged. Of a pair, the second text. "
        "Default: cut, or without training as the model was trained.",
        choices=RULES,
    )
    max_windows: int | None = setting(
        None,
        f"The most rows that --long_texts=windows makes of a text, spread evenly. They take the "
        f"memory of as many texts. Default: {LongTexts().max_windows}.",
        low=1,
        high=64,
    )
    max_query_length: int | None = setting(
        None, "Maximum tokens of a question of squad; longer ones are cut. Default: 64.", low=1
    )
    version_2_with_negative: bool | None = setting(
        None,
        "Whether a question of squad may have no answer, as in SQuAD 2.0. Default: if the training "
        "file has such questions.",
    )
    max_answer_length: int = setting(30, "Maximum tokens of a predicted answer of squad.", low=1)
    null_score_diff_threshold: float = setting(
        0.0,
        "No answer is predicted where the score of no answer is that much above the best answer's.",
    )
    temperature: float | None = setting(
        None,
        "Divisor of the cosines in the loss of similarity, whose softmax finds the text that "
        "belongs to another among all texts of the global batch. Default: 0.05.",
        above=0.0,
    )
    query_prefix: str | None = setting(
        None,
        "Text before each first text of similarity, such as 'query: '; stored with the model. "
        "One encoder computes both texts. Default: as in the model's folder, else none.",
        words=("",),
    )
    passage_prefix: str | None = setting(
        None,
        "Text before each second text of similarity and hard negative, such as 'passage: '. "
        "Default: as for --query_prefix.",
        words=("",),
    )
    max_score: float | None = setting(
        None,
        "The highest score of pairs with scores, from 0 on, in similarity; it stands for a cosine "
        "of 1. STS has 5. Default: 1.",
        above=0.0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig(Settings):
    """Several fine-tunings in one call, each a run in a folder below --output_dir."""

    num_trials: int = setting(
        1,
        "Number of trials, each with the next --seed; their median is the score.",
        low=1,
        high=1000,
    )
    grid: str | None = setting(
        None,
        "Settings to try in every combination, the best by the dev file: "
        '"learning_rate=2e-5,5e-5 num_train_epochs=2,3".',
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneSettings(RunSettings):
    """All settings of a fine-tuning. The default learning rate and number of epochs are Google's
    for classification by base; `fitted` adapts those named in `unset` to the model and the data.
    """

    run: FinetuneConfig = FinetuneConfig()
    start: StartConfig = StartConfig()
    tokens: TokenConfig = TokenConfig()
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=5e-5)
    cadence: CadenceConfig = CadenceConfig(num_train_epochs=3.0)


def fitted(settings: FinetuneSettings, model: ModelConfig, num_examples: int) -> FinetuneSettings:
    """Return the settings with the learning rate for a model's width, and the epochs for so many
    training examples, where neither the user nor a recipe has set them.
    """
    optimizer, cadence = settings.optimizer, settings.cadence
    if "learning_rate" in settings.unset:
        rate = min(HIGHEST_RATE, optimizer.learning_rate * (BASE_WIDTH / model.hidden_size) ** 2)
        optimizer = dataclasses.replace(optimizer, learning_rate=float(f"{rate:.2g}"))
    if "num_train_epochs" in settings.unset and cadence.num_train_epochs is not None:
        epochs = max(cadence.num_train_epochs, LEAST_EXAMPLES / num_examples)
        cadence = dataclasses.replace(cadence, num_train_epochs=float(f"{epochs:.3g}"))
    return dataclasses.replace(settings, optimizer=optimizer, cadence=cadence)


def resolve_phases(config: FinetuneConfig) -> list[str]:
    """Return the phases of a run ("train", "eval", "predict"), in order: those that flags switch on
    or, without one, all that are not switched off, "predict" only where there is a file to predict.
    """
    switches = {phase: getattr(config, f"do_{phase}") for phase in FILES}
    phases = [phase for phase in FILES if switches[phase]]
    if not phases:
        phases = [phase for phase in FILES if switches[phase] is None]
        if "predict" in phases and not has_test_file(config):
            phases.remove("predict")
    if not phases:
        raise UserError(
            "--nodo_train --nodo_eval --nodo_predict: leave nothing to do", "drop one of them"
        )
    return phases


def has_test_file(config: FinetuneConfig) -> bool:
    """Return whether there is a file to predict."""
    has_all = config.task_name == table.ALL
    if has_all or config.test_file or config.test_share:
        return True
    if config.data_dir is None:
        return False
    task = table.find_task(config.task_name or DEFAULT_TASK)
    folder = table.find_folder(task, config.data_dir)
    return bool(table.find_tables(task, folder, "test"))


def resolve_defaults(settings: FinetuneSettings, phases: Sequence[str]) -> FinetuneSettings:
    """Return the settings with each default filled in that is known before any file is read, for
    --show_config. phases: the result of `resolve_phases`.
    """
    run = dataclasses.replace(
        settings.run,
        do_train="train" in phases,
        do_eval="eval" in phases,
        do_predict="predict" in phases,
    )
    start = settings.start
    flexible = settings.flexible
    if "train" in phases:
        name = DEFAULT_TASK if run.task_name in (None, table.ALL) else run.task_name
        if run.max_seq_length is None:
            flexible = (*flexible, "max_seq_length")
        run = dataclasses.replace(
            run,
            max_seq_length=run.max_seq_length or table.find_task(name).max_seq_length,
            task_name=run.task_name or DEFAULT_TASK,
        )
        start = dataclasses.replace(
            start,
            init_checkpoint=DEFAULT_START
            if start.init_checkpoint is None
            else start.init_checkpoint,
        )
    return dataclasses.replace(settings, run=run, start=start, flexible=flexible)


def first_set(name: str, *holders: object, default: T) -> T:
    """Return the attribute `name` of the first of `holders` that has it with a value other than
    None; `default` where none of them has.
    """
    values = (getattr(holder, name, None) for holder in holders)
    return next((value for value in values if value is not None), default)
