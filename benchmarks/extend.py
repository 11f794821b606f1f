"""Continues a model on text of another field with its own vocabulary and with words of that field
(`extend`), whose rows begin as the mean of their pieces' rows or at random; and on longer rows of
its own text, with new positions that lie between the learned ones or are random.

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

from helpers import command, extended
from helpers.report import digest, opened_rows, print_table, spread

CASES = {  # {part: cases}
    "words": ("old vocabulary", "mean rows", "random rows"),
    "positions": ("interpolated", "random"),
}
ALL_CASES = [case for cases in CASES.values() for case in cases]
SIZES = ("num_tokens", "steps", "batch_size", "learning_rate", "max_eval_steps")
MEAN = "mean rows"  # also the name of the folder of the model with words


def extend(options, scratch):
    """Write the model with the words of the field, once."""
    from bert_gpu.__main__ import main

    words = [f"--input_file={options.field}", f"--num_tokens={options.num_tokens}"]
    folders = [f"--from={options.model}", f"--to={scratch / MEAN}"]
    if not (scratch / MEAN).exists() and main(["bert-gpu", "extend", *folders, *words]):
        raise command.Failed("extend: failed")


def start_of(options, scratch, part, case, seed=None):
    """Return (path, model) that a run begins with; without a seed, before rows become random."""
    from bert_gpu.interop import models

    is_words = part == "words"
    is_new = is_words and case != "old vocabulary"
    _, old = models.open_model(options.model, "from")
    path, model = models.open_model(str(scratch / MEAN) if is_new else options.model, "from")
    if seed is None or not case.startswith("random"):
        return path, model
    names = ("embeddings/word", "mlm/bias") if is_words else ("embeddings/position",)
    length = old.config.max_position_embeddings
    sizes = {} if is_words else dict(max_position_embeddings=2 * length)
    first_rows = dict.fromkeys(names, old.config.vocab_size if is_words else length)
    folder = scratch / f"{part}-{case}-{seed}"
    return extended.randomized(model, first_rows, folder, seed, **sizes), model


def data_of(options, scratch, part, case, seed=1):
    """Make the records of a case, once; return (their pattern, factor of a loss for each piece)."""
    path, model = start_of(options, scratch, part, case)
    is_words = part == "words"
    length = model.config.max_position_embeddings * (1 if is_words else 2)
    folder = scratch / f"data-{part}-{model.config.vocab_size}"
    text = options.field if is_words else options.text
    pattern = extended.masked_data(text, path, folder, length)
    if not is_words:
        return pattern, 1.0
    num_batches = options.max_eval_steps
    return pattern, extended.pieces_per_word(pattern, model.tokenizer, seed, num_batches)


def measure(options, scratch, part, case, seed, core):
    """Return {step: nats} and the seconds of a step of one run on a core."""
    pattern, factor = data_of(options, scratch, part, case, seed)
    run = scratch / f"run-{part}-{case}-{seed}"
    start, _ = start_of(options, scratch, part, case, seed)
    last = max(options.steps)
    marks = ",".join(str(step / last) for step in options.steps if 0 < step < last)
    rates = dict(learning_rate=options.learning_rate, lr_scaling="none", warmup_proportion=0.1)
    sizes = dict(train_batch_size=options.batch_size, max_eval_steps=options.max_eval_steps)
    steps = dict(num_train_steps=last, validation_marks=marks, save_checkpoints_steps=last)
    settings = dict(seed=seed, num_gpus=0, core=core) | rates | sizes | steps
    files = dict(input_file=pattern, output_dir=run, init_checkpoint=start)
    command.run_script(command.PRETRAIN_BY_WORK, **files, **settings)
    lines, evaluations = command.read_metrics(run)
    losses = {line["step"]: factor * line["eval_mlm_loss"] for line in evaluations}
    seconds = statistics.median(1 / line["steps_per_second"] for line in lines[1:] or lines)
    return {f"{step:,}": losses[step] for step in options.steps} | dict(seconds=seconds)


def make_parser():
    parser = command.benchmark_parser(__doc__, "text", "json", "folder", "cores", "table")
    parser.add_argument("--model", default="runs/pretrain", help="model to continue from")
    parser.add_argument("--field", help="text of another field; default: that of --text")
    parser.add_argument("--part", type=command.names_among(CASES), default=list(CASES))
    parser.add_argument("--only", type=command.names_among(ALL_CASES), default=ALL_CASES)
    for name, value in dict(seeds=3, num_tokens=1000, batch_size=32, max_eval_steps=20).items():
        parser.add_argument(f"--{name}", type=command.at_least_one, default=value)
    parser.add_argument("--steps", type=command.numbers(int), default=[0, 100, 300, 1000])
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    return parser


def run_all(options, rows):
    """Measure the rows that are missing."""
    cases = [(part, c) for part in options.part for c in CASES[part] if c in options.only]
    with command.work_folder(options.folder) as scratch:
        if "words" in options.part:
            extend(options, scratch)
        for part, case in cases:
            data_of(options, scratch, part, case)

        def row(item, core):
            part, case, seed = item
            make = lambda: measure(options, scratch, part, case, seed, core)  # noqa: E731
            rows.row(part, f"{case}, seed {seed}", make)

        items = [(*case, seed) for seed in range(1, options.seeds + 1) for case in cases]
        command.run_on_cores(row, items, options.cores)


def settings_of(options):
    """Return what the rows of a JSON file have in common."""
    sizes = {name: getattr(options, name) for name in SIZES}
    return sizes | dict(text=digest(options.text), field=digest(options.field))


def main():
    options = make_parser().parse_args()
    options.field = options.field or options.text
    try:
        rows = opened_rows(options, settings_of, tuple(CASES))
        if not options.table:
            run_all(options, rows)
    except command.Failed as failed:
        sys.exit(f"error: {failed}")
    columns = [*(f"{step:,}" for step in rows.values["settings"]["steps"]), "seconds"]
    for part in options.part:
        runs = {case: rows.of(part, case) for case in CASES[part] if rows.of(part, case)}
        cells = {c: [spread([run[name] for run in runs[c]]) for name in columns] for c in runs}
        print(f"\n{part}: nats per {'word' if part == 'words' else 'token'} at each step\n")
        print_table([part, *columns], [[case, *values] for case, values in cells.items()])


if __name__ == "__main__":
    main()
