"""What an unknown flag may mean: the words that people use for our flags, before any comparison of
letters.
"""

import difflib
import importlib
import re

from bert_gpu.cli.aliases import ALIASES, SCRIPTS
from bert_gpu.settings import fields_of

# {flags of ours, most likely first: words for them}. A script that has none of them is passed over.
WORDS = {
    "learning_rate": "lr max_lr peak_lr base_lr init_lr lrate eta alpha step_size",
    "num_train_epochs": "epochs epoch num_epochs n_epochs max_epochs train_epochs passes",
    "num_train_steps": (
        "steps step num_steps n_steps train_steps training_steps total_steps max_train_steps "
        "iterations iters num_iters num_iterations max_iters updates num_updates max_update"
    ),
    "train_batch_size global_batch_size": (
        "batch_size batch bs bsz b batchsize train_bs micro_batch_size micro_batch microbatch "
        "device_batch_size batch_size_per_gpu per_device_batch_size samples_per_gpu"
    ),
    "global_batch_size": "total_batch_size effective_batch_size global_batch batch_size_total",
    "gradient_accumulation_steps": (
        "accum accumulation accumulate grad_accum accum_steps accumulation_steps grad_accum_steps "
        "gradient_accumulation accumulate_grad_batches update_freq acc_steps"
    ),
    "max_seq_length": (
        "seq_len seq_length seqlen sequence_length max_len max_length max_seq_len max_tokens "
        "block_size context context_length length model_max_length"
    ),
    "num_gpus gpus": (
        "gpu ngpu ngpus n_gpu num_gpu gpu_count devices device num_devices nproc_per_node "
        "num_processes world_size nproc num_workers_gpu"
    ),
    "gpus": "gpu_ids gpu_id cuda_visible_devices device_ids visible_devices",
    "precision": (
        "mixed_precision half fp32 float16 bfloat16 float32 dtype torch_dtype autocast tf32 "
        "fp16_opt_level amp_level half_precision"
    ),
    "init_checkpoint": (
        "checkpoint ckpt load load_from load_checkpoint restore pretrained pretrained_model "
        "model_path model_name weights from_pretrained init_from start_from warm_start bert_dir "
        "checkpoint_path model_name_or_path"
    ),
    "output_dir": (
        "out out_dir output outdir save_dir save_to work_dir workdir checkpoint_dir log_dir logdir "
        "run_dir save_path results_dir default_root_dir model_dir"
    ),
    "output_file output_dir": "output out output_path save_to output_prefix",
    "input_file data_dir": (
        "data input inputs dataset data_path data_file train_data train_files dataset_path corpus "
        "corpus_path text texts text_file text_files files in_file tfrecords records input_path"
    ),
    "data_dir": "glue_dir task_dir train_path",
    "hidden_dropout_prob attention_probs_dropout_prob": "dropout dropout_rate dropout_prob p_drop",
    "attention_probs_dropout_prob": "attention_dropout attn_dropout attn_pdrop",
    "num_hidden_layers model": "layers num_layers n_layers n_layer nlayers depth encoder_layers",
    "hidden_size model": (
        "hidden hidden_dim d_model dim width n_embd embed_dim model_dim hidden_units embedding_dim"
    ),
    "num_attention_heads": "heads num_heads n_heads n_head nhead attention_heads",
    "intermediate_size": "ffn ffn_dim d_ff mlp_dim feedforward_dim ff_dim dim_feedforward",
    "hidden_act": "activation act activation_function nonlinearity act_fn",
    "layer_norm_eps": "ln_eps norm_eps rms_norm_eps layer_norm_epsilon",
    "max_position_embeddings": "max_positions n_positions positions",
    "vocab_file vocab_size": "vocab vocabulary vocab_path tokenizer tokenizer_path vocabulary_file",
    "vocab_size": "num_tokens num_pieces n_vocab vocabulary_size",
    "masked_lm_prob": (
        "mask_prob mask_rate mask_ratio masking_rate masking_ratio mask_probability mlm_prob "
        "mlm_ratio mlm_rate masked_lm_probability"
    ),
    "max_predictions_per_seq": "max_predictions num_predictions max_masked max_preds_per_seq",
    "do_whole_word_mask": "wwm whole_word_mask whole_word_masking mask_whole_words whole_word",
    "do_lower_case": "lower_case lowercase lower uncased cased do_lowercase strip_accents",
    "warmup_proportion num_warmup_steps": "warmup warm_up warmup_frac warmup_fraction lr_warmup",
    "num_warmup_steps": "warmup_iters warmup_updates warmup_num_steps lr_warmup_steps",
    "weight_decay_rate": "wd decay_rate l2 adam_weight_decay adamw_weight_decay",
    "clip_norm": (
        "clip grad_clip gradient_clip clip_grad gradient_clip_val gradient_clipping max_norm "
        "clip_grad_norm grad_norm_clip max_gradient_norm"
    ),
    "adam_beta1": "beta1 beta_1 b1",
    "adam_beta2": "beta2 beta_2 b2",
    "adam_epsilon": "eps epsilon adam_eps",
    "curve": (
        "schedule scheduler lr_scheduler lr_decay decay lr_policy learning_rate_schedule lr_curve "
        "decay_type scheduler_type"
    ),
    "optimizer": "opt optim_type optimiser adam adamw lamb muon optimizer_name",
    "min_lr_ratio": "min_lr final_lr end_lr end_learning_rate lr_end",
    "save_checkpoints_steps save_checkpoints_minutes": (
        "save_every save_interval save_freq checkpoint_every checkpoint_steps checkpoint_interval "
        "ckpt_every ckpt_interval save_frequency checkpoint_frequency"
    ),
    "keep_checkpoint_max": (
        "max_to_keep keep_checkpoints keep keep_last num_checkpoints max_checkpoints save_top_k"
    ),
    "log_steps": (
        "log_every log_interval logging_interval print_every log_frequency log_every_n_steps"
    ),
    "eval_steps validation_epochs": (
        "eval_every eval_interval validate_every val_interval eval_freq val_check_interval "
        "validation_steps steps_between_evals"
    ),
    "max_eval_steps": "eval_iters num_eval_steps eval_batches limit_val_batches",
    "validation_share": (
        "val_split validation_split test_size dev_size holdout eval_split val_share"
    ),
    "total_training_time": (
        "time hours budget time_budget max_time max_hours max_duration train_time time_limit"
    ),
    "seed random_seed": "rng random rng_seed random_state manual_seed",
    "xla": "compile jit jit_compile use_jit enable_jit torchcompile",
    "ray_address": "ray cluster address cluster_address ray_cluster",
    "num_workers": "workers num_proc nproc threads num_threads processes num_processes jobs cpus",
    "recompute": (
        "checkpointing activation_checkpointing gradient_checkpoint grad_checkpointing remat "
        "recompute_grad activation_recomputation"
    ),
    "overwrite": "force restart clean from_scratch fresh overwrite_output",
    "show_config": "dry_run dryrun print_config config_only check",
    "flagfile bert_config_file": "config cfg conf config_path params_file args_file hparams",
    "save_config": "dump_config write_config save_flags save_args",
    "wandb_project": "wandb use_wandb wandb_name wandb_entity project",
    "tensorboard": "tb use_tensorboard tensorboard_dir",
    "quiet": "silent no_progress",
    "verbose": "debug log_level v",
    "model": "size model_size arch architecture model_type",
    "task_name": "task tasks glue_task",
    "label": "labels label_column label_col target target_column",
    "text_a": "sentence1 sentence_a text1 text_column text_col premise question1",
    "text_b": "sentence2 sentence_b text2 text_pair hypothesis question2",
    "text_field": "column text_key content_field field text_col",
    "dupe_factor": "duplicates num_duplicates dupes dup_factor copies n_dupes",
    "num_shards": "shards num_files n_shards num_output_files",
    "input_format": "format file_format data_format",
    "norm_first": "pre_ln pre_norm prenorm preln pre_layer_norm",
    "norm_type": "rmsnorm rms_norm layernorm norm",
    "freeze": "freeze_layers frozen freeze_embeddings",
    "attention": "flash_attention flash flash_attn attn attn_implementation sdpa",
    "top_k": "k topk num_predictions n_best",
}
RESUME = frozenset(
    "resume continue continue_training resume_from auto_resume resume_training".split()
)


def unknown(argument, script, names):
    """The message about an argument whose flag is not known.

    Args:
      argument: as given. script: in aliases.SCRIPTS, or None. names: the flags that the command
        takes.
    """
    name = argument.lstrip("-").partition("=")[0]
    shown = argument[:80]
    if plain(name) in RESUME and script is not None:
        return f"{shown}: no such flag; a job resumes by itself: repeat its command"
    if own := guesses(name, names) or similar(name, names, 0.85):
        return f"{shown}: no such flag; did you mean {' or '.join(own)}? (--helpfull lists all)"
    elsewhere = flags_elsewhere(script)
    for other, flags in elsewhere.items():
        if name in flags or name.removeprefix("no") in flags:
            return f"{shown}: no such flag; it is one of {SCRIPTS[other]}"
    for other, flags in elsewhere.items():
        if found := guesses(name, flags):
            return f"{shown}: no such flag; did you mean {found[0]} of {SCRIPTS[other]}?"
    if own := similar(name, names, 0.7):
        return f"{shown}: no such flag; did you mean {' or '.join(own)}? (--helpfull lists all)"
    return f"{shown}: no such flag (--help shows those that matter, --helpfull lists all)"


def plain(name):
    """A name in lower case with underscores: maxSteps and max-steps are max_steps."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("-", "_")).lower()


def guesses(name, names):
    """["--flag"] of the flags in `names`, at most two, whose meaning a name has."""
    wanted = plain(name)
    negative = wanted.removeprefix("no_").removeprefix("no")
    for word in (wanted, negative):
        if word in names:
            return [f"--{word}" if word == wanted else f"--no{word}"]
    found = [
        flag
        for flags, words in WORDS.items()
        for flag in flags.split()
        if wanted in words.split() and flag in names
    ]
    return [f"--{flag}" for flag in dict.fromkeys(found)][:2]


def similar(name, names, least):
    """["--flag"] of the flags in `names`, at most two, that are spelt like a name. least: share of
    the letters that agree.
    """
    wanted = plain(name)
    found = difflib.get_close_matches(wanted, names, n=2, cutoff=least)
    if not found and wanted.startswith("no"):
        found = difflib.get_close_matches(wanted[2:], names, n=1, cutoff=least)
    return [f"--{flag}" for flag in found]


def flags_elsewhere(script):
    """{another script: names of its flags} for one script; {} for None."""
    others = [] if script is None else [other for other in SCRIPTS if other != script]
    classes = {other: importlib.import_module(f"bert_gpu.cli.{other}").CLASSES for other in others}
    return {
        other: [*fields_of(*kinds), *(n for n, a in ALIASES[other].items() if a.refusal is None)]
        for other, kinds in classes.items()
    }
