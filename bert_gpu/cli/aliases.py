"""The tables that translate flags of Google's, Hugging Face's, NVIDIA's and 24-hour BERT into ours.

arguments.py turns an alias into one or more flags of ours before flags are parsed, or raises an
error with a remedy if the alias has no counterpart. Flags that have the same name and meaning as
ours need no entry. docs/make_reference.py prints the tables for users.

Sources: google-research/bert (run_pretraining.py, run_classifier.py); transformers
(TrainingArguments, versions 4 and 5; run_mlm.py, run_glue.py); NVIDIA/DeepLearningExamples (BERT in
TensorFlow 1, TensorFlow 2 and PyTorch: run_pretraining.py); IntelLabs/academic-budget-bert
(run_pretraining.py of "How to Train BERT with an Academic Budget", Izsak et al. 2021).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from bert_gpu.cli import translations
from bert_gpu.cli.translations import (
    OFF,
    TRUE,
    VALIDATIONS,
    Call,
    Conversion,
    is_true,
    whole_steps,
)

GOOGLE = "Google"
HUGGING_FACE = "Hugging Face"
NVIDIA = "NVIDIA"
ACADEMIC = "24-hour BERT"
SCRIPTS = {
    "data": "create_pretraining_data.py",
    "pretrain": "run_pretraining_gpu.py",
    "classify": "run_classifier.py",
}
TRAINING = ("pretrain", "classify")


@dataclasses.dataclass(frozen=True)
class Alias:
    """A flag of another project, or another name of a flag of ours. One of the last five fields is
    set and gives its meaning here; with `convert`, `note` is for values that set nothing.

    Attributes:
      name: the flag's name, without dashes. owners: the projects that have the flag; () for another
        name of our flag, or a flag of ours that was removed.
      scripts: our scripts that accept or refuse the flag; keys of SCRIPTS.
      is_switch: whether the flag is boolean, so that it needs no value.
      otherwise: the error's text for a value that `values` lacks.
      line: a line to be printed when the flag is used, with {flag}, {settings} and {note} for the
        argument, our flags and `note`; "" = none.
      implies: {flag of ours: text} that the flag, unless it is a switch that is off, brings with it
        to a call without that flag of ours.
      beside: for BESIDE, names of flags: the alias holds in calls that have one of them.
      flag: our flag, which gets the same value.
      values: {text of the value, in lower case: {flag of ours: text}}.
      convert: (a function of translations.py, our flags that it may set).
      note: why the flag has no effect here, for a warning.
      refusal: text of the error that the flag raises, with a remedy. A switch that is off raises
        none.
    """

    name: str
    owners: tuple[str, ...]
    scripts: tuple[str, ...]
    is_switch: bool = False
    otherwise: str = ""
    line: str = ""
    implies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    beside: frozenset[str] = frozenset()
    flag: str | None = None
    values: Mapping[str, dict[str, str]] | None = None
    convert: tuple[Conversion, tuple[str, ...]] | None = None
    note: str | None = None
    refusal: str | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """The names of our flags that this flag may set."""
        if self.convert is not None:
            return self.convert[1]
        names = [name for settings in (self.values or {}).values() for name in settings]
        return tuple(dict.fromkeys([*([self.flag] if self.flag else names), *self.implies]))

    def holds(self, text: str, call: Call) -> bool:
        """Return whether this alias of BESIDE holds for the value `text` in a call. A switch with a
        value that is neither true nor false is another project's flag.
        """
        return not self.beside.isdisjoint(call.flags) and (
            not self.is_switch or text.lower() in ("true", "false")
        )

    def translate(self, text: str, call: Call) -> dict[str, str]:
        """Return {flag of ours: text of its value} for this flag with the value `text` in a call.

        Raises ValueError, whose message says what is wrong with the value and what to do.
        """
        if self.refusal is not None:
            if self.is_switch and text.lower() in OFF:
                return {}
            raise ValueError(self.refusal)
        if self.is_switch:
            text = str(is_true(text)).lower()
        if self.convert is not None:
            return self.convert[0](text, call)
        if self.note is not None:
            return {}
        if self.flag is not None:
            return {self.flag: text}
        if self.values is None or text.lower() not in self.values:
            raise ValueError(self.otherwise)
        return self.values[text.lower()]


def entries(
    owners: tuple[str, ...],
    scripts: tuple[str, ...],
    meaning: str,
    rows: Mapping[str, Any],
    **more: Any,
) -> list[Alias]:
    """Return an Alias for each name in `rows`, all with the same field for their meaning.

    Args:
      meaning: the field of Alias that holds the meaning, such as "flag". rows: {names separated by
        spaces: value of that field}. more: values of other fields.
    """
    return [
        Alias(name, owners, scripts, **more, **{meaning: value})
        for names, value in rows.items()
        for name in names.split()
    ]


FLOAT16 = dict(true={"precision": "float16"}, false={"precision": "float32"})
BFLOAT16 = dict(true={"precision": "bfloat16"}, false={"precision": "float32"})
XLA = dict(true={"xla": "on"}, false={"xla": "off"})
RECOMPUTE: dict[str, dict[str, str]] = dict(true={"recompute_every": "1"}, false={})
CPU: dict[str, dict[str, str]] = dict(true={"num_gpus": "0"}, false={})
OPTIMIZERS = {
    **{name: {"optimizer": "adamw"} for name in ("adamw_torch", "adamw_torch_fused", "adamw_hf")},
    **{name: {"optimizer": "adamw8bit"} for name in ("adamw_bnb_8bit", "adamw_8bit")},
}


ONE_PROCESS = (
    "one process trains on all GPUs of a machine; start the script once on each, without torchrun, "
    "mpirun or horovodrun, and choose with --num_gpus"
)
RESUMES = "a run resumes by itself: repeat its command; --overwrite starts over"
LOGS = "the loss and all metrics are in OUTPUT_DIR/metrics.jsonl and OUTPUT_DIR/tensorboard"
READERS = "records are read in background threads"
NO_DDP = "it is about torch's DistributedDataParallel; one process trains on all GPUs"
COMPILED = "the step is compiled by XLA on GPUs; see --xla"
SHARDS = "the epochs of 24-hour BERT are shards of its data; its validations become {settings}"
CHANGES = "{flag} has no counterpart here, and changes results: {note}"
REMOVED = "this flag was removed"
NO_BAR = "the progress bar appears on terminals only; --quiet turns it off"
ROWS = (
    # flags that were removed
    *entries(
        (),
        tuple(SCRIPTS),
        "refusal",
        {"save_config": f"{REMOVED}; write the flags into a file, one a line, for --flagfile"},
    ),
    *entries(
        (),
        TRAINING,
        "refusal",
        {
            "lr_reference_batch_size": (
                f"{REMOVED}; multiply --learning_rate yourself, with --lr_scaling=none"
            ),
            "gpus": f"{REMOVED}; set CUDA_VISIBLE_DEVICES=0,2 in the environment",
            "save_checkpoints_minutes": f"{REMOVED}; see --save_checkpoints_steps",
        },
    ),
    *entries(
        (),
        ("data",),
        "refusal",
        {
            "gzip_compress": f"{REMOVED}; --masking=dynamic writes less",
            "use_v2_feature_names": f"{REMOVED}; Model Garden reads Google's names by default",
        },
        is_switch=True,
    ),
    *entries(
        (),
        ("data",),
        "refusal",
        {
            "ngram_weights": f"{REMOVED}; a span of n words has the weight 1/n",
            "normalization": f"{REMOVED}; bring the text into NFC or NFKC before, as with uconv",
            "window_megabytes": f"{REMOVED}; a window is 8 MB of text",
        },
    ),
    *entries(
        (),
        ("pretrain",),
        "refusal",
        {"skip_corrupt_records": f"{REMOVED}; build the data again"},
        is_switch=True,
    ),
    *entries(
        (),
        ("classify",),
        "refusal",
        {
            "reinit_layers": f"{REMOVED}; --layer_lr_decay lets the upper layers learn faster",
            "predictions_file": f"{REMOVED}; predictions are in OUTPUT_DIR/predictions.tsv",
        },
    ),
    # a short name of ours
    *entries((), TRAINING, "values", {"recompute": RECOMPUTE}, is_switch=True),
    # flags of Google's BERT
    *entries(
        (GOOGLE, NVIDIA),
        TRAINING,
        "flag",
        {
            "iterations_per_loop": "steps_per_loop",
        },
    ),
    *entries(
        (GOOGLE,),
        TRAINING,
        "refusal",
        {
            "use_tpu": (
                "TPUs are not supported; training runs on the GPUs of this machine, or its CPU; "
                "drop the flag"
            ),
        },
        is_switch=True,
    ),
    *entries(
        (GOOGLE,),
        TRAINING,
        "note",
        {
            "tpu_name tpu_zone gcp_project master num_tpu_cores": "it is for TPUs",
        },
    ),
    *entries(
        (GOOGLE,),
        ("classify",),
        "note",
        {
            "predict_batch_size": "predictions use --eval_batch_size",
        },
    ),
    *entries(
        (GOOGLE, HUGGING_FACE),
        ("classify",),
        "flag",
        {
            "predict_file": "test_file",
        },
    ),
    # flags of Hugging Face's BERT
    *entries(
        (HUGGING_FACE,),
        ("classify",),
        "note",
        {
            "n_best_size": "nbest_predictions.json has 20 answers for each question",
        },
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "flag",
        {
            "per_device_train_batch_size": "train_batch_size",
            "per_gpu_train_batch_size": "train_batch_size",
            "per_device_eval_batch_size": "eval_batch_size",
            "per_gpu_eval_batch_size": "eval_batch_size",
            "weight_decay": "weight_decay_rate",
            "max_grad_norm": "clip_norm",
            "warmup_ratio": "warmup_proportion",
            "save_total_limit": "keep_checkpoint_max",
            "model_name_or_path": "init_checkpoint",
        },
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "convert",
        {
            "logging_steps": (whole_steps("log_steps"), ("log_steps",)),
            "save_steps": (whole_steps("save_checkpoints_steps"), ("save_checkpoints_steps",)),
        },
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "values",
        {
            "bf16": BFLOAT16,
            "no_cuda use_cpu": CPU,
            "gradient_checkpointing": RECOMPUTE,
            "load_best_model_at_end": dict(
                true={"export_best": "true"}, false={"export_best": "false"}
            ),
            "full_determinism": dict(true={"deterministic": "true"}, false={}),
        },
        is_switch=True,
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "convert",
        {
            "lr_scheduler_type": (
                translations.scheduler,
                ("curve", "num_warmup_steps", "warmup_proportion", "min_lr_ratio"),
            ),
        },
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "values",
        {
            "optim": OPTIMIZERS,
        },
        otherwise="has no counterpart here; choose an --optimizer: adamw, adamw8bit, lamb, muon",
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "convert",
        {
            "eval_strategy evaluation_strategy": (translations.evaluation, ("validation_epochs",)),
        },
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "values",
        {
            "report_to": {
                "none": {"tensorboard": "false"},
                "tensorboard": {"tensorboard": "true"},
            },
        },
        otherwise="name tensorboard or none here; Weights & Biases needs --wandb_project=NAME",
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "convert",
        {
            "config_name": (translations.config_name, ("bert_config_file",)),
        },
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "values",
        {
            "pad_to_max_length": dict(true={"padding": "fixed"}, false={"padding": "dynamic"}),
            "group_by_length": dict(true={"padding": "uniform"}, false={}),
        },
        is_switch=True,
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "convert",
        {
            "metric_for_best_model": (translations.metric, ("best_metric",)),
        },
    ),
    *entries(
        (HUGGING_FACE,),
        ("classify",),
        "flag",
        {
            "validation_file": "dev_file",
            "label_smoothing_factor": "label_smoothing",
            "text_column_name": "text_a",
            "label_column_name": "label",
        },
    ),
    *entries(
        (HUGGING_FACE,),
        ("pretrain",),
        "refusal",
        {
            "label_smoothing_factor": (
                "masked-word targets have no label smoothing here; drop the flag"
            ),
        },
    ),
    *entries(
        (HUGGING_FACE,),
        ("data",),
        "flag",
        {
            "mlm_probability": "masked_lm_prob",
            "train_file": "input_file",
            "preprocessing_num_workers": "num_workers",
            "tokenizer_name": "init_checkpoint",
            "model_name_or_path": "init_checkpoint",
        },
    ),
    *entries(
        (HUGGING_FACE,),
        ("data",),
        "convert",
        {
            "validation_split_percentage": (translations.percentage, ("validation_share",)),
        },
    ),
    *entries(
        (HUGGING_FACE,),
        ("data",),
        "refusal",
        {
            "dataset_name dataset_config_name": (
                "nothing is downloaded; save the data set (save_to_disk, to_parquet) "
                "and give --input_file=FOLDER_OR_FILE"
            ),
            "validation_file": "documents of the text are held out; see --validation_share",
            "max_train_samples": "cut the text instead",
        },
    ),
    *entries(
        (HUGGING_FACE,),
        ("data",),
        "refusal",
        {
            "line_by_line": (
                "rows are made of sentences; --input_format=documents takes each line as a document"
            ),
            "overwrite_cache": "there is no cache; --overwrite builds the data set anew",
        },
        is_switch=True,
    ),
    *entries(
        (HUGGING_FACE,),
        ("pretrain",),
        "refusal",
        {
            "mlm_probability": (
                "masks belong to the data: create_pretraining_data.py --masked_lm_prob"
            ),
            "train_file dataset_name": (
                "text first becomes records: create_pretraining_data.py --input_file; this "
                "script reads them, --input_file=data/*.tfrecord"
            ),
            "validation_file": ("validation records come with the data, or from --eval_input_file"),
            "model_type": "the model is a BERT; choose its size with --model",
            "config_overrides": "each field of the model is a flag, such as --hidden_size",
            "tokenizer_name": (
                "the vocabulary belongs to the data: create_pretraining_data.py --vocab_file"
            ),
        },
    ),
    *entries(
        (HUGGING_FACE,),
        ("classify",),
        "refusal",
        {
            "dataset_name": "nothing is downloaded; put train.tsv and dev.tsv into --data_dir",
            "tokenizer_name": "the model's folder has its tokenizer; or give --vocab_file",
        },
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "refusal",
        {
            "save_strategy logging_strategy": (
                "a run saves every --save_checkpoints_steps and logs every --log_steps; drop it"
            ),
            "logging_dir run_name": (
                "TensorBoard's files are in OUTPUT_DIR/tensorboard; drop the flag"
            ),
            "data_seed": "--seed also determines the order of the data; drop the flag",
            "fsdp ddp_backend": ONE_PROCESS,
            "optim_args": "each setting of an --optimizer is a flag, such as --adam_beta2",
            "lr_scheduler_kwargs": "each setting of a --curve is a flag, such as --min_lr_ratio",
            "gradient_checkpointing_kwargs": "see --recompute_every",
            "torch_compile_backend torch_compile_mode": COMPILED,
            "neftune_noise_alpha": "no noise is added to the embeddings; drop the flag",
            "cache_dir model_revision": "nothing is downloaded; name a folder on this machine",
        },
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "refusal",
        {
            "deepspeed": ONE_PROCESS,
            "torch_compile": COMPILED,
            "greater_is_better": (
                "losses are best when low, other metrics when high; see --best_metric"
            ),
            "save_only_model": (
                "a checkpoint holds all that resuming needs; the model alone is OUTPUT_DIR/model"
            ),
            "auto_find_batch_size": "use --train_batch_size=auto, the largest that fits",
            "adafactor": "choose an --optimizer: adamw, adamw8bit, lamb, muon",
            "push_to_hub": "nothing is uploaded; the model is in OUTPUT_DIR/model",
        },
        is_switch=True,
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "convert",
        {
            "overwrite_output_dir": (translations.overwrite_nothing, ()),
        },
        note="a run in the folder is only overwritten by --overwrite",
        is_switch=True,
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "note",
        {
            "dataloader_num_workers dataloader_prefetch_factor": READERS,
            "eval_accumulation_steps": "predictions do not pile up on the GPU",
            "ddp_bucket_cap_mb ddp_timeout": NO_DDP,
            "hub_model_id hub_strategy": "nothing is uploaded; the model is in OUTPUT_DIR/model",
            "past_index": "a BERT has no past states",
        },
    ),
    *entries(
        (HUGGING_FACE,),
        TRAINING,
        "note",
        {
            "disable_tqdm": NO_BAR,
            "dataloader_pin_memory dataloader_persistent_workers": READERS,
            "dataloader_drop_last": "a training batch is always full; validation takes every row",
            "ddp_find_unused_parameters ddp_broadcast_buffers": NO_DDP,
            "fp16_full_eval bf16_full_eval": "validation has the --precision of the training",
            "ignore_data_skip": (
                "a resumed run continues where it stopped, without reading earlier data"
            ),
            "include_inputs_for_metrics prediction_loss_only": ("the metrics do not depend on it"),
            "logging_first_step": "a run logs every --log_steps",
            "low_cpu_mem_usage": "it is about how torch loads a model",
            "remove_unused_columns": "only what the model needs is read",
            "save_safetensors": "models are always written as model.safetensors",
            "tf32": "float32 uses TensorFloat-32 where a GPU has it, as TensorFlow does",
        },
        is_switch=True,
    ),
    *entries(
        (HUGGING_FACE,),
        ("data", *TRAINING),
        "note",
        {
            "use_fast_tokenizer": "there is one tokenizer",
            "trust_remote_code": "no code in a model's folder is run",
        },
        is_switch=True,
    ),
    # flags of both Hugging Face's and NVIDIA's BERT
    *entries(
        (HUGGING_FACE, NVIDIA),
        TRAINING,
        "convert",
        {
            "max_steps": (translations.max_steps, ("num_train_steps",)),
            "warmup_steps": (translations.warmup_steps, ("num_warmup_steps", "warmup_proportion")),
        },
    ),
    *entries(
        (HUGGING_FACE, NVIDIA),
        TRAINING,
        "values",
        {
            "fp16": FLOAT16,
        },
        is_switch=True,
    ),
    *entries(
        (HUGGING_FACE, NVIDIA),
        TRAINING,
        "refusal",
        {
            "local_rank": ONE_PROCESS,
        },
    ),
    *entries(
        (HUGGING_FACE, NVIDIA),
        TRAINING,
        "refusal",
        {"resume_from_checkpoint": RESUMES},
        is_switch=True,
    ),
    # flags of NVIDIA's BERT
    *entries(
        (NVIDIA,),
        TRAINING,
        "flag",
        {
            "num_accumulation_steps": "gradient_accumulation_steps",
            "save_checkpoint_steps": "save_checkpoints_steps",
            "num_steps_per_checkpoint": "save_checkpoints_steps",
            "display_loss_steps": "log_steps",
            "log_freq": "log_steps",
            "config_file": "bert_config_file",
            "model_dir": "output_dir",
        },
    ),
    *entries(
        (NVIDIA,),
        ("pretrain",),
        "flag",
        {
            "input_files": "input_file",
        },
    ),
    *entries(
        (NVIDIA,),
        ("pretrain",),
        "convert",
        {
            "input_files_dir": (translations.folders("input_file"), ("input_file",)),
            "eval_files_dir": (translations.folders("eval_input_file"), ("eval_input_file",)),
        },
    ),
    *entries(
        (NVIDIA,),
        TRAINING,
        "values",
        {
            "amp use_fp16 manual_fp16": FLOAT16,
            "use_xla enable_xla": XLA,
        },
        is_switch=True,
    ),
    *entries(
        (NVIDIA,),
        TRAINING,
        "refusal",
        {
            "horovod use_horovod use_env": ONE_PROCESS,
        },
        is_switch=True,
    ),
    *entries(
        (NVIDIA,),
        TRAINING,
        "refusal",
        {
            "optimizer_type": (
                "--optimizer=lamb --curve=polynomial --polynomial_power=0.5 for its lamb, "
                "--optimizer=adamw --curve=one_cycle for its adam"
            ),
            "init_loss_scale loss_scale": (
                "the loss scale of --precision=float16 adapts by itself; drop the flag"
            ),
            "distribution_strategy": ONE_PROCESS,
            "num_steps_per_epoch": (
                "give --num_train_steps: steps of an epoch x epochs, in optimizer updates"
            ),
        },
    ),
    *entries(
        (NVIDIA,),
        ("pretrain",),
        "refusal",
        {
            "input_dir": (
                "HDF5 is not read; build TFRecords from the text, and give --input_file=DIR/*"
            ),
            "bert_model": "choose a size with --model, or a shape with --bert_config_file",
            "resume_step phase1_end_step steps_this_run": RESUMES,
        },
    ),
    *entries(
        (NVIDIA,),
        ("pretrain",),
        "refusal",
        {
            "phase2": (
                "start from the first phase's model, --init_checkpoint=OUTPUT_DIR/model; "
                "--recipe=bert has --phase=2"
            ),
        },
        is_switch=True,
    ),
    *entries(
        (NVIDIA,),
        TRAINING,
        "refusal",
        {
            "allreduce_post_accumulation_fp16": "see --all_reduce_dtype=bfloat16",
            "checkpoint_activations": (
                "--recompute keeps each layer's input; --recompute_every=4 keeps every fourth, as "
                "NVIDIA's flag does with 12 layers"
            ),
            "skip_checkpoint": "the last step is always saved; raise --save_checkpoints_steps",
            "scale_loss": "the loss is the exact mean over all GPUs; drop the flag",
        },
        is_switch=True,
    ),
    *entries(
        (NVIDIA,),
        TRAINING,
        "note",
        {
            "dllog_path": LOGS,
        },
    ),
    *entries(
        (NVIDIA,),
        TRAINING,
        "note",
        {
            "allreduce_post_accumulation": "gradients are always reduced once, after accumulation",
            "report_loss verbose_logging": LOGS,
            "disable_progress_bar": NO_BAR,
        },
        is_switch=True,
    ),
    # flags of 24-hour BERT
    *entries(
        (ACADEMIC,),
        ("pretrain",),
        "flag",
        {
            "train_micro_batch_size_per_gpu": "train_batch_size",
            "validation_micro_batch": "eval_batch_size",
            "gradient_clipping": "clip_norm",
            "adam_eps": "adam_epsilon",
            "dataset_path": "input_file",
            "print_steps": "log_steps",
        },
    ),
    *entries(
        (ACADEMIC,),
        ("pretrain",),
        "flag",
        {
            "lr": "learning_rate",
        },
        implies={"lr_scaling": "none"},
    ),
    *entries(
        (ACADEMIC,),
        ("pretrain",),
        "values",
        {
            "encoder_ln_mode": {
                "pre-ln": {"norm_first": "true"},
                "post-ln": {"norm_first": "false"},
            },
        },
        otherwise="must be one of pre-ln, post-ln",
    ),
    *entries(
        (ACADEMIC,),
        ("pretrain",),
        "values",
        {
            "layer_norm_type": {
                "pytorch": {"norm_type": "layer_norm"},
                "apex": {"norm_type": "layer_norm"},
                "rms_norm": {"norm_type": "rms_norm"},
            },
        },
        otherwise="must be one of pytorch, apex, rms_norm",
    ),
    *entries(
        (ACADEMIC,),
        ("pretrain",),
        "convert",
        {
            "early_exit_time_marker": (translations.early_exit, ("total_training_time",)),
        },
    ),
    *entries(
        (ACADEMIC,),
        ("pretrain",),
        "convert",
        {
            " ".join([*VALIDATIONS][1:]): (translations.validations, ("validation_marks",)),
        },
        line=SHARDS,
    ),
    *entries(
        (ACADEMIC,),
        ("pretrain",),
        "convert",
        {
            "do_validation": (translations.validations, ("validation_marks",)),
        },
        line=SHARDS,
        is_switch=True,
    ),
    *entries(
        (ACADEMIC,),
        ("pretrain",),
        "values",
        {
            "use_early_stopping": {"true": {}, "false": {}},
        },
        is_switch=True,
        implies={"early_stop_time": "720", "early_stop_eval_loss": "2.1"},
    ),
    *entries(
        (ACADEMIC,),
        ("pretrain",),
        "refusal",
        {"load_training_checkpoint load_checkpoint_id": RESUMES},
    ),
    *entries(
        (ACADEMIC,),
        ("pretrain",),
        "note",
        {
            "job_name current_run_id": "the run is named by its --output_dir",
            "project_name": "Weights & Biases needs --wandb_project=NAME",
            "num_epochs_between_checkpoints": "a run saves every --save_checkpoints_steps",
            "data_loader_type num_workers": READERS,
            "fp16_backend fp16_opt": "mixed precision is --precision, on float32 weights",
            "steps_per_print log_throughput_every": "a run logs every --log_steps",
            "gradient_predivide_factor": "gradients are summed once, in float32",
            "scale_cnt_limit": "a run that diverges ends by --max_bad_steps",
            "decay_rate decay_step": "only its curve exp reads it",
            "max_coeff min_coeff": "only its lamb reads it",
            "pretrain_run_args": "only its fine-tuning reads it",
        },
    ),
    *entries(
        (ACADEMIC,),
        ("pretrain",),
        "note",
        {
            "max_steps_per_epoch num_epochs": (
                "its epochs are shards of its data; see --num_train_epochs and --num_train_steps"
            ),
        },
        line=CHANGES,
    ),
    *entries(
        (ACADEMIC,),
        ("pretrain",),
        "note",
        {
            "async_worker no_async_worker": READERS,
            "wall_clock_breakdown": LOGS,
            "prescale_gradients": "gradients are summed once, in float32",
            "deepspeed_transformer_kernel stochastic_mode fused_linear_layer "
            "no_fused_linear_layer": COMPILED,
            "attention_dropout_checkpoint normalize_invertible gelu_checkpoint": (
                "memory is saved by --recompute"
            ),
            "sparse_mask_prediction no_sparse_mask_prediction": (
                "the result is the same; only masked words are predicted"
            ),
            "bias_correction": "only its lamb reads it; its adamw always corrects, as ours does",
            "add_nsp": "--model_type says what is trained",
            "finetune_checkpoint_at_end no_finetune_checkpoint_at_end": (
                "OUTPUT_DIR/model is always written"
            ),
        },
        is_switch=True,
    ),
)


def table(rows: Iterable[Alias]) -> dict[str, dict[str, Alias]]:
    """Return {script: {name of a flag: its Alias}}. rows: all aliases."""
    aliases: dict[str, dict[str, Alias]] = {script: {} for script in SCRIPTS}
    for alias in rows:
        for script in alias.scripts:
            assert alias.name not in aliases[script], f"two aliases are named {alias.name}"
            aliases[script][alias.name] = alias
    return aliases


ALIASES = table(ROWS)
# flags that no other project has; lr is left out, because it is also everybody's word for a rate
ONLY_ACADEMIC = frozenset(
    name for name, alias in ALIASES["pretrain"].items() if alias.owners == (ACADEMIC,)
) - {"lr"}
# {script: {name: Alias}} of flags that 24-hour BERT shares by name, but not by meaning, with us or
# with another project. They hold beside flags that tell its command from others.
BESIDE = table(
    (
        *entries(
            (ACADEMIC,),
            ("pretrain",),
            "flag",
            {"train_batch_size": "global_batch_size"},
            beside=frozenset(["train_micro_batch_size_per_gpu"]),
        ),
        *entries(
            (ACADEMIC,),
            ("pretrain",),
            "convert",
            {
                "gradient_accumulation_steps": (
                    lambda text, call: (
                        {}
                        if "train_batch_size" in call.flags
                        else {"gradient_accumulation_steps": text}
                    ),
                    ("gradient_accumulation_steps",),
                ),
            },
            note="it follows from --train_batch_size and --train_micro_batch_size_per_gpu",
            beside=frozenset(["train_micro_batch_size_per_gpu"]),
        ),
        *entries(
            (ACADEMIC,),
            ("pretrain",),
            "convert",
            {"validation_epochs": (translations.validations, ("validation_marks",))},
            line=SHARDS,
            beside=frozenset([*VALIDATIONS, "do_validation"]) - {"validation_epochs"},
        ),
        *entries(
            (ACADEMIC,),
            ("pretrain",),
            "values",
            {
                "model_type": {
                    "bert-mlm": {"train_objective": "mlm"},
                    "bert-mlm-roberta": {"train_objective": "mlm"},
                    "bert-mlm-nsp": {"train_objective": "mlm,nsp"},
                },
            },
            otherwise="must be one of bert-mlm, bert-mlm-roberta, bert-mlm-nsp",
            implies={"model": "budget24h"},
            beside=ONLY_ACADEMIC,
        ),
        *entries(
            (ACADEMIC,),
            ("pretrain",),
            "values",
            {
                "lr_schedule": {
                    "step": {"lr_schedule": "step"},
                    "constant_step": {"lr_schedule": "step"},
                    "time": {"lr_schedule": "time"},
                },
            },
            otherwise="must be one of step, constant_step, time",
            beside=ONLY_ACADEMIC,
        ),
        *entries(
            (ACADEMIC,),
            ("pretrain",),
            "convert",
            {
                "curve": (
                    lambda text, call: {"curve": "one_cycle" if text == "linear" else text},
                    ("curve",),
                ),
            },
            beside=ONLY_ACADEMIC,
        ),
        *entries(
            (ACADEMIC,),
            ("pretrain",),
            "convert",
            {
                "num_warmup_steps": (
                    translations.needing("num_warmup_steps", "lr_schedule", "constant_step"),
                    ("num_warmup_steps",),
                ),
            },
            note="only its lr_schedule constant_step reads it; see --warmup_proportion",
            beside=ONLY_ACADEMIC,
        ),
        *entries(
            (ACADEMIC,),
            ("pretrain",),
            "convert",
            {
                name: (translations.needing(name, "use_early_stopping", *TRUE), (name,))
                for name in ("early_stop_time", "early_stop_eval_loss")
            },
            note="it has an effect beside --use_early_stopping",
            beside=ONLY_ACADEMIC,
        ),
        *entries(
            (ACADEMIC,),
            ("pretrain",),
            "values",
            {"optimizer_type": {"adamw": {"optimizer": "adamw"}}},
            otherwise=(
                "only its adamw has a counterpart; choose an --optimizer: adamw, adamw8bit, "
                "lamb, muon"
            ),
            beside=ONLY_ACADEMIC,
        ),
        *entries(
            (ACADEMIC,),
            ("pretrain",),
            "note",
            {
                "tokenizer_name": (
                    "the vocabulary and its casing are those of the data; see --vocab_file of "
                    "create_pretraining_data.py"
                ),
            },
            line=CHANGES,
            beside=ONLY_ACADEMIC,
        ),
        *entries(
            (ACADEMIC,),
            ("pretrain",),
            "note",
            {"deepspeed": "one process trains on all GPUs of a machine"},
            is_switch=True,
            beside=frozenset(["deepspeed"]),
        ),
    )
)
