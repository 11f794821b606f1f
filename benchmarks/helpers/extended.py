"""Models and data of the benchmark of words of one's own and of more positions."""

import dataclasses

import numpy as np

from .command import run_script


def randomized(model, first_rows, folder, seed, **sizes):
    """Write a model with fields of its config replaced, and with random rows in its tables {name:
    first random row}; return its path. A bias begins with 0.
    """
    from bert_gpu.interop import models

    draws = np.random.default_rng(seed)
    config = dataclasses.replace(model.config, **sizes)
    weights = dict(model.weights)
    for name, first in first_rows.items():
        table = weights[name]
        num_rows = max(len(table), sizes.get("max_position_embeddings", 0))
        deviation = 0.0 if table.ndim == 1 else config.initializer_range
        rows = draws.normal(0.0, deviation, (num_rows - first, *table.shape[1:]))
        weights[name] = np.concatenate([table[:first], rows]).astype(np.float32)
    models.write_own(model._replace(config=config, weights=weights), str(folder))
    return folder


def masked_data(text, model, folder, max_seq_length):
    """Make records with whole-word masks and the vocabulary of a model, once; return their
    pattern.
    """
    if not (folder / "dataset.json").exists():
        run_script(
            "create_pretraining_data.py",
            input_file=text,
            output_dir=folder,
            init_checkpoint=model,
            objective="full_sentences",
            masking="dynamic",
            do_whole_word_mask=True,
            max_seq_length=max_seq_length,
            validation_share=0.05,
        )
    return f"{folder}/*.tfrecord"


def pieces_per_word(pattern, tokenizer, seed, max_batches):
    """Return the masked pieces per masked word of the first validation rows, in batches of 32; a
    run's seed draws its masks.
    """
    from bert_gpu.data import pipeline
    from bert_gpu.data.config import InputConfig
    from bert_gpu.data.dataset import Dataset

    dataset = Dataset(InputConfig(input_file=pattern), print)
    reader = dataset.reader("validation", tokenizer=tokenizer, seed=seed, limits={})
    num_pieces, num_words = 0, 0
    for batch in pipeline.evaluation_batches(reader, batch_size=32, max_batches=max_batches):
        is_masked = batch["masked_lm_weights"] * batch["row_weights"][:, None] > 0
        ids = batch["masked_lm_ids"][is_masked]
        num_pieces += len(ids)
        num_words += tokenizer.word_starts(ids).sum()
    return float(num_pieces / num_words)
