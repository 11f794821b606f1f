"""The settings of a fine-tuning: the task, the run, and the model that it starts from."""

import dataclasses

from bert_gpu.finetune import tasks
from bert_gpu.model.config import PRESETS
from bert_gpu.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifyConfig(Settings):
    """The task and the run."""

    task_name: str = setting(
        "pairs", "The task. pairs: pairs of texts, or single texts, with labels of any kind.", choices=tuple(tasks.TASKS)
    )
    data_dir: str = setting("examples/pairs", "Folder with train, dev and test files, .tsv or .csv; test may have no labels.")
    text_a: str | None = setting(None, "Name of the column of the first text. Default: the task's (pairs: text_a).")
    text_b: str | None = setting(
        None, "Name of the column of the second text. Default: the task's (pairs: text_b where there is one). --text_b= means none."
    )
    label: str | None = setting(None, "Name of the column of labels. Default: the task's (pairs: label).")
    output_dir: str = setting(
        "runs/classify",
        "Folder of the run: checkpoints, metrics, results and model/. Without training, results go only into such a run or into a folder "
        "that is new, empty or holds nothing but earlier results of this command.",
    )
    do_train: bool | None = setting(
        None, "Train. With none of --do_train, --do_eval, --do_predict: train, evaluate, and predict if it can."
    )
    do_eval: bool | None = setting(None, "Evaluate on the dev file: eval_results.json.")
    do_predict: bool | None = setting(None, "Predict the test file: test_results.tsv.")
    max_seq_length: int = setting(128, "Tokens of a row; the longer text of a pair is cut first.", low=8)
    hidden_dropout_prob: float | None = setting(
        None, "Share of the hidden values dropped while training. Default: what the model's config.json says.", low=0.0, below=1.0
    )
    attention_probs_dropout_prob: float | None = setting(
        None, "Share of the attention probabilities dropped while training. Default: what the model's config.json says.", low=0.0, below=1.0
    )
    eval_batch_size: int = setting(32, "Rows that one GPU evaluates at once.", low=1)
    predict_batch_size: int = setting(32, "Rows that one GPU predicts at once.", low=1)
    seed: int = setting(12345, "Seed of fresh weights, order and dropout.", low=0, high=2**62)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartConfig(Settings):
    """The model to start from."""

    init_checkpoint: str = setting(
        "runs/pretrain/model",
        "Start from this model: a model/ folder, a run's folder or a Hugging Face BERT folder; none = from random weights.",
    )
    model: str | None = setting(None, "Size of the model with --init_checkpoint=none.", choices=tuple(PRESETS))
    bert_config_file: str | None = setting(
        None, "The model's shape as Google's or Hugging Face's config.json, with --init_checkpoint=none. Elsewhere it must agree."
    )
    vocab_file: str | None = setting(None, "Vocabulary. Default: vocab.txt beside the model.")
    do_lower_case: bool | None = setting(None, "Lower-case the text. Default: what tokenizer_config.json beside the model says, else yes.")
    pooling: str | None = setting(
        None,
        "What a training makes the sentence vector of: the first token, [CLS], or the mean of all tokens. Default: what the model's "
        "config.json says, else the first.",
        choices=("first", "mean"),
    )
    pooler_size: int | None = setting(
        None,
        "Width of the tanh layer between the pooled tokens and the scores of the classes that a training makes. Default: what the model's "
        "config.json says, else the model's hidden_size.",
        low=1,
    )
