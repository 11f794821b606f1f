"""The list of all flags. A new one is a decision: it needs a user, and a name here; beyond the
number, another one goes.
"""

import importlib

import pytest

from bert_gpu.__main__ import COMMANDS
from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import fields_of
from bert_gpu.cli import aliases, flags
from tests.test_documents import ROOT, imported

FLAGS = """
adam_beta1 adam_beta2 adam_bias_correction adam_epsilon all_reduce all_reduce_dtype attention
attention_probs_dropout_prob batch_ramp_proportion bert_config_file best_metric class_weights
clip_norm columns curve data_dir decay_proportion decoder_bias deterministic dev_file dev_share
do_eval do_lower_case do_predict do_train do_whole_word_mask doc_stride drop_duplicates
drop_repeated_lines dry_run dupe_factor early_stop_eval_loss early_stop_patience early_stop_time
embedding_norm embedding_size encoder eval_batch_size eval_input_file eval_steps export_best
finetune_time_markers format freeze global_attention_every global_batch_size gpu_memory_limit
gradient_accumulation_steps grid hidden_act hidden_dropout_prob hidden_size index init_checkpoint
initializer_range input input_file input_format input_weights input_weights_from intermediate_size
json keep_checkpoint_max label label_smoothing language layer_lr_decay layer_norm_eps learning_rate
local_attention local_rotary_base log_steps long_texts lr_scaling lr_schedule masked_lm_prob masking
max_answer_length max_bad_steps max_eval_steps max_ngram_size max_position_embeddings
max_predictions_per_seq max_query_length max_score max_seq_length max_tokens_per_character
max_windows min_lr_ratio mlflow_experiment mlm_transform model muon_lr_ratio near_duplicates
norm_first norm_type null_score_diff_threshold num_attention_heads num_gpus num_hidden_groups
num_hidden_layers num_shards num_tokens num_train_epochs num_train_steps num_trials num_warmup_steps
num_workers objective on_divergence optimizer order output output_dir output_file overwrite
pack_separator padding passage_prefix phase polynomial_power pooler_size pooling
position_embedding_type positive_label precision prompt query query_file query_prefix quiet
random_seed ray_address recipe recompute_every rotary_base save_checkpoints_steps seed
short_seq_prob show show_config shuffle source sp_model_file steps_per_loop strict strip_accents
task_kind task_name temperature tensorboard test_file test_share text_a text_b text_field to
tokenization tokens_file top_k total_training_time train_batch_size train_file train_objective
type_vocab_size use_bias validation_epochs validation_marks validation_share version_2_with_negative
virtual_replicas vocab_file vocab_size wandb_project warmup_proportion weight_decay_exclude
weight_decay_rate word_separator worker_timeout xla
""".split()


def test_the_flags_are_those_of_the_list():
    classes_of = imported(ROOT / "docs" / "make_reference.py").classes_of
    found = {name for command in COMMANDS for name in fields_of(*classes_of(command)[0])}
    assert sorted(found) == FLAGS
    assert len(found) <= 180


def test_a_removed_flag_is_refused_in_one_line_that_says_what_serves():
    for script, rows in aliases.ALIASES.items():
        classes = importlib.import_module(f"bert_gpu.cli.{script}").CLASSES
        for name in [name for name, alias in rows.items() if alias.refusal and not alias.owners]:
            with pytest.raises(UserError, match=f"^--{name}=1: {aliases.REMOVED}; ") as error:
                flags.parse([script, f"--{name}=1"], "", (), classes, script=script)
            assert len(str(error.value)) <= 300
