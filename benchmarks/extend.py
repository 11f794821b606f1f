#!/usr/bin/env python3
"""Continues a model on text of another field with its own vocabulary and with words of that field
(`extend`), whose rows begin as the mean of their pieces' rows or at random; and on longer rows of
its own text, with new positions that repeat the learned ones, are interpolated or random.

    python benchmarks/extend.py --model=RUN --text=corpus.txt --field=field.txt
        [--part=words,positions --seeds=3 --folder=WORK --json=extend.json]
    python benchmarks/extend.py --table --json=extend.json

Words: whole-word masks on the same held-out documents. The loss is in nats per masked word, the sum
over its pieces, because pieces of two vocabularies cannot be compared. Positions: rows twice as
long as the model's, nats per token. Prints, for each step, the mean over the seeds, the lowest and
the highest value; seconds are those of a core's work, so other work on the machine changes nothing.
"""

import statistics
import sys

import numpy as np
from helpers.command import (
    PRETRAIN_BY_WORK,
    Failed,
    at_least_one,
    benchmark_parser,
    names_among,
    numbers,
    read_metrics,
    run_on_cores,
    run_script,
    work_folder,
)
from helpers.report import digest, opened_rows, print_table, spread

CASES = {  # {part: {case: flags of its pretraining}}
    "words": {"old vocabulary": {}, "mean rows": {}, "random rows": {}},
    "positions": {
        "repeated": dict(position_extension="repeat"),
        "interpolated": dict(position_extension="interpolate"),
        "random": {},
    },
}
ALL_CASES = [case for cases in CASES.values() for case in cases]
TABLES = dict(words=("embeddings/word", "mlm/bias"), positions=("embeddings/position",))
SIZES = ("num_tokens", "steps", "batch_size", "learning_rate", "max_eval_steps")


def extend(options, scratch):
    """Write the model with the words of the field, once; return its path."""
    from bert_gpu.__main__ import main

    folder = scratch / "mean rows"
    words = [f"--input_file={options.field}", f"--num_tokens={options.num_tokens}"]
    command = ["bert-gpu", "extend", f"--from={options.model}", f"--to={folder}", *words]
    if not folder.exists() and main(command):
        raise Failed("extend: failed")
    return folder


def randomized(source, first_rows, target, seed, **sizes):
    """Write a copy of a model whose tables {name: first row} have random rows from there on, and as
    many rows as the sizes say; return its path.
    """
    from bert_gpu.interop import models

    _, model = models.open_model(str(source), "from")
    draws = np.random.default_rng(seed)
    config = model.config.__class__(**model.config.to_dict() | sizes)
    weights = dict(model.weights)
    for name, first in first_rows.items():
        table = weights[name]
        rows = max(len(table), sizes.get("max_position_embeddings", 0))
        deviation = 0.0 if table.ndim == 1 else config.initializer_range
        new = draws.normal(0.0, deviation, (rows - first, *table.shape[1:]))
        weights[name] = np.concatenate([table[:first], new]).astype(np.float32)
    models.write_own(model._replace(config=config, weights=weights), str(target))
    return target


def start_of(options, scratch, part, case, seed):
    """Return the path of the model that a run begins with."""
    from bert_gpu.interop import models

    old = models.find_model(options.model, "model")
    config = models.read_model(old).config
    target = scratch / f"{part}-{case}-{seed}"
    if part == "positions":
        size = dict(max_position_embeddings=2 * config.max_position_embeddings)
        first = {TABLES[part][0]: config.max_position_embeddings}
        return randomized(old, first, target, seed, **size) if case == "random" else old
    first = dict.fromkeys(TABLES[part], config.vocab_size)
    new = scratch / "mean rows"
    if case == "random rows":
        return randomized(new, first, target, seed)
    return old if case == "old vocabulary" else new


def data_of(options, scratch, part, case):
    """Make the records of a case, once; return (their pattern, masked pieces per masked word)."""
    from bert_gpu.data import pipeline
    from bert_gpu.data.config import InputConfig
    from bert_gpu.data.dataset import Dataset
    from bert_gpu.interop import models

    is_new = part == "words" and case != "old vocabulary"
    model = scratch / "mean rows" if is_new else models.find_model(options.model, "model")
    folder = scratch / f"data-{part}-{'new' if is_new else 'old'}"
    length = models.read_model(str(model)).config.max_position_embeddings
    length *= 2 if part == "positions" else 1
    if not (folder / "dataset.json").exists():
        run_script(
            "create_pretraining_data.py",
            input_file=options.field if part == "words" else options.text,
            output_dir=folder,
            init_checkpoint=model,
            objective="full_sentences",
            masking="dynamic",
            do_whole_word_mask=True,
            max_seq_length=length,
            validation_share=0.05,
        )
    pattern = f"{folder}/*.tfrecord"
    dataset = Dataset(InputConfig(input_file=pattern), print)
    tokenizer = models.load_tokenizer(str(model))
    reader = dataset.reader("validation", tokenizer=tokenizer, seed=1, limits={})
    batches = pipeline.evaluation_batches(reader, batch_size=32, max_batches=options.max_eval_steps)
    pieces, words = 0, 0
    for batch in batches:
        is_masked = batch["masked_lm_weights"] * batch["row_weights"][:, None] > 0
        ids = batch["masked_lm_ids"][is_masked]
        pieces += len(ids)
        words += tokenizer.word_starts(ids).sum()
    return pattern, float(pieces / words) if part == "words" else 1.0


def measure(options, scratch, part, case, seed, core):
    """Return {step: nats} and the seconds of a step of one run on a core."""
    pattern, scale = data_of(options, scratch, part, case)
    run, last = scratch / f"run-{part}-{case}-{seed}", max(options.steps)
    run_script(
        PRETRAIN_BY_WORK,
        core=core,
        input_file=pattern,
        output_dir=run,
        init_checkpoint=start_of(options, scratch, part, case, seed),
        seed=seed,
        num_train_steps=last,
        validation_marks=",".join(str(step / last) for step in options.steps if 0 < step < last),
        save_checkpoints_steps=last,
        train_batch_size=options.batch_size,
        max_eval_steps=options.max_eval_steps,
        learning_rate=options.learning_rate,
        lr_scaling="none",
        warmup_proportion=0.1,
        num_gpus=0,
        **CASES[part][case],
    )
    lines, evaluations = read_metrics(run)
    losses = {line["step"]: scale * line["eval_mlm_loss"] for line in evaluations}
    seconds = statistics.median(1 / line["steps_per_second"] for line in lines[1:] or lines)
    return {f"{step:,}": losses[step] for step in options.steps} | dict(seconds=seconds)


def make_parser():
    parser = benchmark_parser(__doc__, "text", "json", "folder", "cores", "table")
    parser.add_argument("--model", default="runs/pretrain", help="model to continue from")
    parser.add_argument("--field", help="text of another field; default: that of --text")
    parser.add_argument("--part", type=names_among(CASES), default=list(CASES))
    parser.add_argument("--only", type=names_among(ALL_CASES), default=ALL_CASES)
    parser.add_argument("--seeds", type=at_least_one, default=3)
    parser.add_argument("--num_tokens", type=at_least_one, default=1000)
    parser.add_argument("--steps", type=numbers(int), default=[0, 100, 300, 1000])
    parser.add_argument("--batch_size", type=at_least_one, default=32)
    parser.add_argument("--max_eval_steps", type=at_least_one, default=20)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    return parser


def settings_of(options):
    """Return what the rows of a JSON file have in common."""
    sizes = {name: getattr(options, name) for name in SIZES}
    return sizes | dict(text=digest(options.text), field=digest(options.field))


def run_all(options, rows):
    """Measure the rows that are missing."""
    with work_folder(options.folder) as scratch:
        if "words" in options.part:
            extend(options, scratch)
        cases = [(part, c) for part in options.part for c in CASES[part] if c in options.only]
        for part, case in cases:
            data_of(options, scratch, part, case)

        def row(item, core):
            part, case, seed = item
            make = lambda: measure(options, scratch, part, case, seed, core)  # noqa: E731
            rows.row(part, f"{case}, seed {seed}", make)

        items = [(*case, seed) for seed in range(1, options.seeds + 1) for case in cases]
        run_on_cores(row, items, options.cores)


def main():
    options = make_parser().parse_args()
    options.field = options.field or options.text
    try:
        rows = opened_rows(options, settings_of, tuple(CASES))
        if not options.table:
            run_all(options, rows)
    except Failed as failed:
        sys.exit(f"error: {failed}")
    for part in options.part:
        print(f"\n{part}: nats per {'word' if part == 'words' else 'token'} at each step\n")
        runs = {case: rows.of(part, case) for case in CASES[part]}
        steps = list(next((found[0] for found in runs.values() if found), {}))
        cells = [
            [case, *(spread([row[step] for row in found]) for step in steps)]
            for case, found in runs.items()
            if found
        ]
        print_table([part, *steps], cells)


if __name__ == "__main__":
    main()
