#!/usr/bin/env python3
"""The record: a BERT pretrained for 45 minutes on real text, and what its pretraining is worth for
tasks with 50, 200, 1,000 and all labels, beside the same model untrained.

    python benchmarks/record.py --text=corpus.txt --pairs=PAIRS --folder=WORK
        --json=docs/data/record.json [--minutes=45] [--plots=docs/data]
    python benchmarks/record.py --table --json=docs/data/record.json

A tenth of the documents is held out of the pretraining for two tasks (helpers/text_tasks.py), which
stand beside the pairs. Each seed draws its own labels. For every task, number of labels and start
(pretrained or not) the dev file chooses the learning rate with a seed of its own, and the test file
is reported. Each finished row is written to the JSON file, and what is there is not measured again;
the pretraining resumes. WORK/run is the run, with ten masked sentences guessed at 1, 5, 15 and all
45 minutes in its samples.jsonl, and WORK/run/model the model with its card.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import logging
import math
import multiprocessing
import os
import pathlib
import random
import statistics
import sys
import tempfile
import threading

from helpers import text_tasks
from helpers.command import Failed, at_least_one, benchmark_parser, read_metrics, run_script
from helpers.report import print_origin, print_table
from helpers.rows import Rows, digest

# Of the pretraining, beside --recipe=quick: what the search found (dev/measurements.md).
DATA = {}
PRETRAINING = dict(num_hidden_layers=4)
SAMPLE_MINUTES = (1, 5, 15, 45)
HELD_OUT = 0.1
RATES = (1e-4, 3e-4, 1e-3)
LEAST_UPDATES, EPOCHS, BATCH = 200, 5, 32  # of a fine-tuning
RATE_SEED = 100  # the seed that learning rates are chosen with
STARTS = ("pretrained", "untrained")
GOAL_LOSS, GOAL_POINTS, GOAL_LABELS = 3.8, 10, 200
PARTS = ("pretraining", "rates", "curves")


def prepare(options):
    """Makes the text to pretrain on, the tasks and the records, once. {task: folder}."""
    folder = pathlib.Path(options.folder)
    text, tasks = folder / "text.txt", folder / "tasks"
    if not (folder / "data" / "dataset.json").exists():
        documents = text_tasks.read_documents(options.text)
        kept, held_out = text_tasks.hold_out(documents, HELD_OUT)
        text_tasks.write_tasks(held_out, tasks, options.splits)
        text.write_text("\n\n".join("\n".join(lines) for lines in kept) + "\n", encoding="utf-8")
        run_script(
            "create_pretraining_data.py",
            recipe="quick",
            input_file=text,
            output_dir=folder / "data",
            **DATA,
        )
    made = {name: tasks / name.replace(" ", "-") for name in text_tasks.TASKS}
    return made | {"pairs": pathlib.Path(options.pairs)}


def pretrain(options):
    """Trains for --minutes, or goes on. The row of the run."""
    folder = pathlib.Path(options.folder)
    shares = [minutes / SAMPLE_MINUTES[-1] for minutes in SAMPLE_MINUTES[:-1]]
    run_script(
        "run_pretraining_gpu.py",
        recipe="quick",
        input_file=f"{folder}/data/*.tfrecord",
        output_dir=folder / "run",
        num_gpus=0,
        lr_schedule="time",
        total_training_time=f"{options.minutes}m",
        num_train_steps=options.steps or 10**9,
        finetune_time_markers=",".join(f"{share:g}" for share in shares),
        **PRETRAINING,
    )
    lines, validations = read_metrics(folder / "run")
    write_samples(options, shares, lines)
    last = validations[-1]
    return dict(
        minutes=options.minutes,
        steps=lines[-1]["step"],
        settings=DATA | PRETRAINING,
        curve=[[line["seconds"], line["eval_mlm_loss"]] for line in validations],
        **{name: last[f"eval_{name}"] for name in ("mlm_loss", "mlm_accuracy", "nsp_accuracy")},
    )


def masked_sentences(options, count=10):
    """Sentences of the tasks' test file in which one word is [MASK]."""
    path = pathlib.Path(options.folder) / "tasks" / "same-document" / "test.tsv"
    chance, found = random.Random(0), []
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        words = line.split("\t")[0].split()
        places = [index for index, word in enumerate(words) if word.isalpha() and len(word) > 3]
        if places and len(found) < count:
            words[chance.choice(places)] = "[MASK]"
            found.append(" ".join(words))
    return found


def write_samples(options, shares, lines):
    """Writes samples.jsonl of the run, what its model took masked words for at each mark: a line
    for each sentence and mark, {"step", "seconds", "text", "guesses": [[probability, piece], ...]}.
    """
    from bert_gpu.inference.config import FillMaskConfig
    from bert_gpu.inference.masked_words import MaskFiller

    run, texts = pathlib.Path(options.folder) / "run", masked_sentences(options)
    models = [(share, run / "marks" / f"{share:g}") for share in shares] + [(1.0, run / "model")]
    rows = []
    for share, model in models:
        if not model.exists():  # the run is too short for it
            continue
        seconds = share * lines[-1]["seconds"]
        step = max((line["step"] for line in lines if line["seconds"] <= seconds), default=0)
        guesses = MaskFiller(FillMaskConfig(model=str(model)))(texts)
        for text, (first, *_) in zip(texts, guesses, strict=True):
            shown = [[float(share), piece] for share, piece in first]
            rows.append(dict(step=step, seconds=seconds, text=text, guesses=shown))
    (run / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@dataclasses.dataclass(frozen=True)
class Case:
    """What is fine-tuned several times. folder: of the task's files. size: labels, None = all."""

    task: str
    folder: pathlib.Path
    size: int | None
    start: str

    @property
    def key(self):
        return f"{self.task}, {self.size or 'all'} labels, {self.start}"

    def training_file(self, seed, scratch):
        """The path of the training rows that a seed draws."""
        whole = self.folder / "train.tsv"
        if self.size is None:
            return whole
        header, *rows = whole.read_text(encoding="utf-8").splitlines()
        chosen = random.Random(f"{self.task} {seed}").sample(rows, min(self.size, len(rows)))
        path = scratch / f"{self.task.replace(' ', '-')}-{self.size}-{seed}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([header, *chosen]) + "\n", encoding="utf-8")
        return path


def fine_tune(options, case, rate, seed):
    """One fine-tuning, in this process. {"dev", "test": accuracy}."""
    logging.getLogger("tensorflow").setLevel("ERROR")  # that each one is traced is no news
    from bert_gpu.base.console import Console
    from bert_gpu.devices.config import DeviceConfig
    from bert_gpu.finetune import config as finetune
    from bert_gpu.finetune.run import finetune as fine_tune_model
    from bert_gpu.optim.config import OptimizerConfig, ScheduleConfig
    from bert_gpu.train.config import BatchConfig, CadenceConfig

    work = pathlib.Path(options.folder)
    model = work / "run" / "model"
    train_file = case.training_file(seed, work / "labels")
    count = len(train_file.read_text(encoding="utf-8").splitlines()) - 1
    num_steps = options.updates or max(LEAST_UPDATES, math.ceil(EPOCHS * count / BATCH))
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        settings = finetune.FinetuneSettings(
            run=finetune.FinetuneConfig(
                data_dir=str(case.folder),
                train_file=str(train_file),
                output_dir=f"{scratch}/run",
                max_seq_length=64,
                padding="uniform",
                seed=seed,
            ),
            start=finetune.StartConfig(init_checkpoint=str(model))
            if case.start == "pretrained"
            else finetune.StartConfig(
                init_checkpoint="none",
                bert_config_file=str(model / "config.json"),
                vocab_file=str(model / "vocab.txt"),
            ),
            devices=DeviceConfig(num_gpus=0),
            batch=BatchConfig(train_batch_size=BATCH, lr_scaling="none"),
            optimizer=OptimizerConfig(learning_rate=rate),
            schedule=ScheduleConfig(warmup_proportion=0.1),
            cadence=CadenceConfig(num_train_steps=num_steps),
        )
        metrics = fine_tune_model(settings, Console(quiet=True)).metrics
    return {split: metrics[split]["accuracy"] for split in ("dev", "test")}


def accuracy_at_rates(options, case):
    """{learning rate: accuracy on the dev file} of fine-tunings."""
    return {f"{rate:g}": fine_tune(options, case, rate, RATE_SEED)["dev"] for rate in options.rates}


def searched(options, case):
    """The case whose learning rate a case takes: of all labels, that of the largest subset, which
    is nearly the same and sooner found.
    """
    return dataclasses.replace(case, size=case.size or max(options.sizes))


def best_rate(options, rows, case):
    """The learning rate that is best on the dev file."""
    found = rows.values["rates"][searched(options, case).key]
    return float(max(found, key=found.get))


def measure(options, rows):
    """Everything that is missing."""
    folders = prepare(options)
    rows.row("pretraining", "run", lambda: pretrain(options))
    with open_pool(options.workers) as pool:
        for task, folder in folders.items():
            measure_task(options, rows, pool, task, folder)


def measure_task(options, rows, pool, task, folder):
    """The learning rates of a task, then its curves."""
    cases = [Case(task, folder, size, start) for size in [*options.sizes, None] for start in STARTS]
    rates = {
        case.key: functools.partial(accuracy_at_rates, options, case)
        for case in cases
        if case.size is not None
    }
    fill(rows, "rates", rates, pool)
    curves = {
        f"{case.key}, seed {seed}": functools.partial(
            fine_tune, options, case, best_rate(options, rows, case), seed
        )
        for case in cases
        for seed in range(1, 1 + (options.seeds if case.size else options.seeds_of_all))
    }
    fill(rows, "curves", curves, pool)


def fill(rows, part, calls, pool):
    """Makes the rows of a part that are missing. calls: {key: function that makes it}."""
    missing = {key: call for key, call in calls.items() if key not in rows.values[part]}
    if pool is None:
        for key, call in missing.items():
            rows.row(part, key, call)
        return
    futures = {pool.submit(call): key for key, call in missing.items()}
    for future in concurrent.futures.as_completed(futures):
        rows.row(part, futures[future], future.result)


@contextlib.contextmanager
def open_pool(num_workers):
    """Yields an executor with processes that have a thread each, or None for one worker: this
    process with all cores.
    """
    if num_workers == 1:
        yield None
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        num_workers, multiprocessing.get_context("spawn"), start_worker, (os.getpid(),)
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def start_worker(parent):
    """Prepares a worker process, which ends with its parent, a process id."""
    from bert_gpu.text import parallel

    parallel.use_one_thread()
    threading.Thread(target=parallel.end_with_parent, args=(parent,), daemon=True).start()


def gather(rows):
    """{(task, labels): {start: [test accuracies]}} of the rows, by tasks and numbers of labels."""
    found = {}
    for key, row in rows.values["curves"].items():
        task, labels, start, _ = key.split(", ")
        cell = found.setdefault((task, labels.removesuffix(" labels")), {})
        cell.setdefault(start, []).append(row["test"])

    def place(key):
        task, labels = key
        return tasks.index(task), math.inf if labels == "all" else int(labels)

    tasks = list(dict.fromkeys(task for task, _ in found))
    return {key: found[key] for key in sorted(found, key=place)}


def mean_and_error(values):
    """(mean, standard error of the mean) of accuracies; None for a single one's error."""
    if len(values) < 2:
        return statistics.mean(values), None
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))


def gain(cell):
    """(gain of the pretrained model, its standard error or None, in points) of a cell of `gather`
    with both starts.
    """
    (high, high_error), (low, low_error) = (mean_and_error(cell[start]) for start in STARTS)
    error = None if None in (high_error, low_error) else 100 * math.hypot(high_error, low_error)
    return 100 * (high - low), error


def print_record(rows):
    run = rows.values["pretraining"].get("run")
    if run:
        verdict = "reached" if run["mlm_loss"] < GOAL_LOSS else "missed"
        print(
            f"{run['minutes']:g} minutes, {run['steps']:,} steps; held-out documents: MLM loss "
            f"{run['mlm_loss']:.3f} (goal: below {GOAL_LOSS}: {verdict}), MLM accuracy "
            f"{run['mlm_accuracy']:.3f}, NSP accuracy {run['nsp_accuracy']:.3f}\n"
        )
    table, clear, tasks = [], {}, {}
    for (task, labels), cell in gather(rows).items():
        shown = []
        for start in STARTS:
            mean, error = mean_and_error(cell[start]) if start in cell else (None, None)
            shown.append("-" if mean is None else with_error(100 * mean, error and 100 * error))
        points, error = gain(cell) if len(cell) == len(STARTS) else (None, None)
        shown.append("-" if points is None else with_error(points, error))
        is_clear = error is not None and points > 2 * error
        clear.setdefault(task, []).append(is_clear)
        if labels == str(GOAL_LABELS) and points is not None:
            tasks[task] = points
        seeds = len(cell.get("pretrained", ()))
        table.append([task, labels, seeds, *shown, "yes" if is_clear else "no"])
    print_table(
        [
            *("task", "labels", "seeds", "pretrained", "untrained", "gain, points"),
            "more than two standard errors",
        ],
        table,
    )
    if tasks:
        whole = [task for task, found in clear.items() if all(found)]
        best = max(tasks, key=tasks.get)
        print(
            f"\nAbove untrained by more than two standard errors at every size: "
            f"{', '.join(whole) or 'no task'} (goal: two tasks: "
            f"{'reached' if len(whole) > 1 else 'missed'}). At {GOAL_LABELS} labels the largest "
            f"gain is {tasks[best]:.1f} points, {best} (goal: {GOAL_POINTS}: "
            f"{'reached' if tasks[best] >= GOAL_POINTS else 'missed'})."
        )


def with_error(value, error):
    return f"{value:.1f}" if error is None else f"{value:.1f} ± {error:.1f}"


def plot(folder, rows):
    """Writes PNGs: the loss by minutes, and accuracy by labels of each task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    curve = rows.values["pretraining"]["run"]["curve"]
    axes.plot([seconds / 60 for seconds, _ in curve], [loss for _, loss in curve])
    axes.axhline(GOAL_LOSS, color="gray", linestyle=":")
    axes.set(xlabel="minutes", ylabel="MLM loss of held-out documents")
    save(figure, folder, "record-loss")
    found = gather(rows)
    tasks = list(dict.fromkeys(task for task, _ in found))
    figure, every = pyplot.subplots(1, len(tasks), figsize=(4 * len(tasks), 4), squeeze=False)
    for task, axes in zip(tasks, every[0], strict=True):
        cells = {labels: cell for (name, labels), cell in found.items() if name == task}
        for start in STARTS:
            points = [mean_and_error(cell[start]) for cell in cells.values()]
            means, errors = [100 * mean for mean, _ in points], [100 * (e or 0) for _, e in points]
            axes.errorbar(list(cells), means, errors, label=start, marker="o", capsize=3)
        axes.set(title=task, xlabel="labels", ylabel="test accuracy, %")
    every[0][0].legend()
    save(figure, folder, "record-labels")


def save(figure, folder, name):
    from matplotlib import pyplot

    path = pathlib.Path(folder) / f"{name}.png"
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"\n{path}")


def make_parser():
    parser = benchmark_parser(__doc__, "text", "pairs", "json")
    parser.add_argument("--folder", help="of the text, the records, the run and the tasks")
    parser.add_argument("--minutes", type=float, default=45.0, help="of the pretraining")
    parser.add_argument("--steps", type=int, help="ends the pretraining after so many steps")
    parser.add_argument("--sizes", type=numbers(int), default=[50, 200, 1000], help="labels")
    parser.add_argument("--rates", type=numbers(float), default=list(RATES))
    parser.add_argument("--updates", type=int, help="of each fine-tuning")
    parser.add_argument("--seeds", type=at_least_one, default=5)
    parser.add_argument("--seeds_of_all", type=int, default=3, help="with all labels")
    parser.add_argument("--splits", type=splits, help="examples of the made tasks: TRAIN,DEV,TEST")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="fine-tunings at a time (all cores)"
    )
    parser.add_argument("--table", action="store_true", help="only prints what is in the JSON file")
    parser.add_argument("--plots", help="folder for PNGs (needs matplotlib)")
    return parser


def numbers(kind):
    """A type for argparse: numbers separated by commas."""
    return lambda text: [kind(part) for part in text.split(",")]


def splits(text):
    return dict(zip(text_tasks.SPLITS, numbers(int)(text), strict=True))


def main():
    parser = make_parser()
    options = parser.parse_args()
    if not options.table and not options.folder:
        parser.error("needs --folder, where the run stays")
    if options.workers < 1:
        parser.error(f"--workers={options.workers}: must be at least 1")
    for path in () if options.table else (options.text, f"{options.pairs}/train.tsv"):
        if not pathlib.Path(path).is_file():
            parser.error(f"{path}: no such file; name --text, and --pairs with train.tsv")
    try:
        if options.table:
            rows = Rows(options.json, {}, PARTS)
        else:
            files = sorted(path for path in pathlib.Path(options.pairs).glob("*.tsv"))
            settings = dict(text=digest(options.text), pairs=digest(*files))
            settings |= dict(minutes=options.minutes, rates=options.rates)
            rows = Rows(options.json, settings, PARTS)
            measure(options, rows)
        print_origin(rows.values)
        print_record(rows)
        if options.plots:
            plot(options.plots, rows)
    except Failed as failed:
        sys.exit(f"error: {failed}")


if __name__ == "__main__":
    main()
