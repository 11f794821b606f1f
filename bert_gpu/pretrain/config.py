"""The settings of a pretraining, and of looking at what came out of it."""

import dataclasses

from bert_gpu.model.config import PRESETS
from bert_gpu.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(Settings):
    """The run."""

    output_dir: str = setting("runs/pretrain", "Folder of the run: checkpoints, metrics.jsonl, TensorBoard, and model/ at the end.")
    model: str | None = setting(None, "Size of the model. Default: base on GPUs, tiny without one.", choices=tuple(PRESETS))
    bert_config_file: str | None = setting(None, "The model's shape as Google's or Hugging Face's config.json, instead of --model.")
    init_checkpoint: str | None = setting(None, "Start from these weights: a model/ folder of ours or a Hugging Face BERT folder.")
    vocab_file: str | None = setting(None, "Vocabulary of records without dataset.json, copied to model/ and checked against the model.")
    max_predictions_per_seq: int | None = setting(None, "Masked tokens a row that the data must have. Default: what it says.", low=1)
    seed: int = setting(12345, "Seed of weights, order and dropout.", low=0, high=2**62)
    do_train: bool | None = setting(None, "Train. Default: yes, unless only --do_eval is given.")
    do_eval: bool | None = setting(None, "Alone, or with --nodo_train: only evaluate the newest checkpoint on the validation records.")
    eval_batch_size: int = setting(32, "Sequences that one GPU validates at once.", low=1)
    max_eval_steps: int | None = setting(None, "Most batches of one validation. Default: all validation records.", low=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMaskConfig(Settings):
    """What to guess with."""

    model: str = setting("runs/pretrain/model", "A model/ folder, a run's folder or a Hugging Face BERT folder.")
    vocab_file: str | None = setting(None, "Vocabulary. Default: vocab.txt beside the model.")
    do_lower_case: bool | None = setting(None, "Lower-case the text. Default: what tokenizer_config.json beside the model says, else yes.")
    top_k: int = setting(5, "Words to print for each [MASK].", low=1)
