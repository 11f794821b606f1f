"""Keys of config.json files that do not describe the shape of an encoder."""

# Keys of config.json that Hugging Face and others write beside the architecture's. CHECKED_KEYS,
# {key: (accepted value, why other values are refused)}, change what the network computes, so only
# the value that our encoder implements is accepted, or null; IGNORED_KEYS concern serving,
# training, tokenizing or generating, not the weights.
CHECKED_KEYS: dict[str, tuple[object, str]] = {
    "is_decoder": (False, "a token of a decoder sees only those before it"),
    "is_encoder_decoder": (False, "the model is an encoder alone"),
    "add_cross_attention": (False, "an encoder reads one sequence"),
    "tie_word_embeddings": (True, "masked words are scored with the word embeddings"),
    "pruned_heads": ({}, "all layers have the same heads"),
    "alibi_starting_size": (None, "MosaicBERT's attention is biased by distance"),
    "conv_kernel_size": (0, "the convolution of DeBERTa v2 is not computed"),
    "feed_forward_type": ("original", "JinaBERT's feed-forward blocks are gated"),
}
IGNORED_KEYS = frozenset(
    (
        # keys that Google's BERT and transformers 2 and 3 write
        """
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type output_past eos_token_ids xla_device use_return_dict
    _num_labels name language cls_token_id mask_token_id
    """
        # keys of PretrainedConfig and BertConfig in transformers 4.57.1, and similar keys
        """
    architectures torch_dtype dtype transformers_version use_cache gradient_checkpointing
    classifier_dropout id2label label2id num_labels problem_type finetuning_task output_attentions
    _output_attentions output_hidden_states return_dict torchscript chunk_size_feed_forward
    attn_implementation _attn_implementation _attn_implementation_autoset
    _attn_implementation_internal attention_implementation _name_or_path name_or_path _commit_hash
    task_specific_params tokenizer_class prefix use_bfloat16 tf_legacy_loss pad_token_id
    bos_token_id eos_token_id sep_token_id decoder_start_token_id cross_attention_hidden_size
    tie_encoder_decoder quantization_config auto_map gelu_form
    """
        # keys of GenerationConfig in transformers 4.57.1, which were once part of PretrainedConfig
        """
    max_length max_new_tokens min_length min_new_tokens early_stopping max_time stop_strings
    do_sample num_beams cache_implementation cache_config return_legacy_cache prefill_chunk_size
    temperature top_k top_p min_p typical_p epsilon_cutoff eta_cutoff repetition_penalty
    encoder_repetition_penalty length_penalty no_repeat_ngram_size bad_words_ids renormalize_logits
    forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty
    suppress_tokens begin_suppress_tokens sequence_bias token_healing guidance_scale
    watermarking_config num_return_sequences output_scores output_logits return_dict_in_generate
    encoder_no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule
    assistant_confidence_threshold prompt_lookup_num_tokens max_matching_ngram_size
    assistant_early_exit assistant_lookbehind target_lookbehind compile_config disable_compile
    low_memory penalty_alpha dola_layers diversity_penalty num_beam_groups constraints
    force_words_ids _from_model_config
    """
    ).split()
)
