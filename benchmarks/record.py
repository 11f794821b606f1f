#!/usr/bin/env python3
"""The record: a BERT pretrained for 45 minutes on real text, and what its pretraining is worth for
tasks with 50, 200, 1,000 and all labels, beside the same model untrained, and beside TF-IDF with
logistic regression.

    python benchmarks/record.py --text=corpus.txt --pairs=PAIRS --folder=WORK
        --json=docs/data/record.json [--minutes=45] [--plots=docs/data] [--public_tasks=TASKS]
    python benchmarks/record.py --model=MODEL --pairs=PAIRS --folder=WORK --json=JSON
    python benchmarks/record.py --table --json=docs/data/record.json

A tenth of the documents is held out of the pretraining for two tasks (helpers/text_tasks.py), which
stand beside the pairs. They are left out with a MODEL, which may have read these documents. TASKS
adds public ones, with up to 200 drawn labels and three seeds:
TASKS/{r8,20ng,rotten}/{train,dev,test}.tsv with the columns id, text and label (Reuters-21578 and
20 Newsgroups as Cardoso-Cachopo split them, reviews of Rotten Tomatoes split by film).

Each seed draws its own labels, which all three learn from. For every task, number of labels and
learner the dev file chooses the learning rate out of four, or TF-IDF's C out of three, with a seed
of its own, and the test file is reported. The models read the first 64 tokens of a text, TF-IDF the
whole. Each finished row is written to the JSON file, and a row in the file is not measured again;
the pretraining resumes. WORK/run is the run, and WORK/run/model the model with its card.
"""

import concurrent.futures
import dataclasses
import functools
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

from helpers import text_tasks, tf_idf
from helpers.command import (
    Failed,
    at_least_one,
    benchmark_parser,
    names_among,
    numbers,
    read_metrics,
    run_script,
)
from helpers.report import Rows, digest, pairs_digest, print_origin, print_table, save_plot

from bert_gpu.base.errors import UserError

# Of the pretraining, beside --recipe=quick: the result of a search (dev/measurements.md).
PRETRAINING = dict(num_hidden_layers=4)
HELD_OUT = 0.1
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
LEAST_UPDATES, EPOCHS, BATCH = 200, 5, 32  # of a fine-tuning
RATE_SEED = 100  # the seed that learning rates are chosen with
STARTS = ("pretrained", "untrained")
TF_IDF, INVERSE_PENALTIES = "TF-IDF", (1, 30, 1000)  # the third learner, and its choices of C
LENGTH = 64  # tokens of a row, in pretraining and fine-tuning
TASKS_A_PROCESS = 60  # their TensorFlow programs fill the memory
PARTS = ("pretraining", "rates", "curves")
TASKS = (*text_tasks.TASKS, "pairs")
PUBLIC_TASKS = ("r8", "20ng", "rotten")
MOST_PUBLIC_LABELS, PUBLIC_SEEDS = 200, 3  # drawn of a public task
SMALL_ONLY = ("20ng",)  # tasks that are not measured with all labels


def prepare(options):
    """Make the text to pretrain on, the tasks and the records, once. Returns {task: folder}."""
    folder = pathlib.Path(options.folder)
    text, tasks = folder / "text.txt", folder / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    if not options.model and not (folder / "data" / "dataset.json").exists():
        documents = text_tasks.read_documents(options.text)
        others, held_out = text_tasks.hold_out(documents, HELD_OUT)
        text_tasks.write_tasks(held_out, tasks, options.splits)
        text.write_text("\n\n".join("\n".join(lines) for lines in others) + "\n", encoding="utf-8")
        output = folder / "data"
        run_script("create_pretraining_data.py", recipe="quick", input_file=text, output_dir=output)
    of_text = () if options.model else text_tasks.TASKS
    folders = {name: tasks / name.replace(" ", "-") for name in of_text}
    folders["pairs"] = pathlib.Path(options.pairs)
    if options.public_tasks:
        folders |= {name: pathlib.Path(options.public_tasks) / name for name in PUBLIC_TASKS}
    return {task: folders[task] for task in options.tasks if task in folders}


def sizes_of(options, task):
    """Return the numbers of labels to draw of a task; None = all of them."""
    most = MOST_PUBLIC_LABELS if task in PUBLIC_TASKS else math.inf
    has_all = task not in SMALL_ONLY and options.seeds_of_all > 0
    return [size for size in options.sizes if size <= most] + [None] * has_all


def num_seeds(options, case):
    if case.size is None:
        return options.seeds_of_all
    return min(options.seeds, PUBLIC_SEEDS) if case.task in PUBLIC_TASKS else options.seeds


def pretrain(options):
    """Train for --minutes, or resume. Returns the row of the run."""
    folder = pathlib.Path(options.folder)
    run_script(
        "run_pretraining_gpu.py",
        recipe="quick",
        input_file=f"{folder}/data/*.tfrecord",
        output_dir=folder / "run",
        num_gpus=0,
        lr_schedule="time",
        total_training_time=f"{options.minutes}m",
        num_train_steps=options.steps or 10**9,
        **PRETRAINING,
    )
    lines, validations = read_metrics(folder / "run")
    last = validations[-1]
    return dict(
        minutes=options.minutes,
        steps=lines[-1]["step"],
        settings=PRETRAINING,
        curve=[[line["seconds"], line["eval_mlm_loss"]] for line in validations],
        **{name: last[f"eval_{name}"] for name in ("mlm_loss", "mlm_accuracy", "nsp_accuracy")},
    )


@dataclasses.dataclass(frozen=True)
class Case:
    """A learner and task for several trainings. folder: of the task's files. size: labels, None =
    all. start: one of STARTS or TF_IDF.
    """

    task: str
    folder: pathlib.Path
    size: int | None
    start: str

    @property
    def key(self):
        return f"{self.task}, {self.size or 'all'} labels, {self.start}"

    def training_file(self, seed, scratch):
        """Return the path of the training examples that a seed draws."""
        whole = self.folder / "train.tsv"
        if self.size is None:
            return whole
        header, *rows = whole.read_text(encoding="utf-8").splitlines()
        drawn = random.Random(f"{self.task} {seed}").sample(rows, min(self.size, len(rows)))
        path = scratch / f"{self.task.replace(' ', '-')}-{self.size}-{seed}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([header, *drawn]) + "\n", encoding="utf-8")
        return path


def train(options, case, rate, seed, **flags):
    """Train once in this process. rate: learning rate, or TF-IDF's C. Returns {"dev", "test":
    accuracy}.
    """
    if case.start != TF_IDF:
        return fine_tune(options, case, rate, seed, **flags)
    labels = case.training_file(seed, pathlib.Path(options.folder) / "labels")
    return tf_idf.accuracies(labels, case.folder, rate)


def fine_tune(options, case, rate, seed, **flags):
    """Fine-tune once in this process, with further flags. Returns {"dev", "test": accuracy}."""
    import bert_gpu

    logging.getLogger("tensorflow").setLevel("ERROR")  # it warns that each one is traced
    work = pathlib.Path(options.folder)
    model = pathlib.Path(options.model or work / "run" / "model")
    train_file = case.training_file(seed, work / "labels")
    count = len(train_file.read_text(encoding="utf-8").splitlines()) - 1
    start = dict(init_checkpoint=model)
    if case.start == "untrained":
        files = dict(bert_config_file=model / "config.json", vocab_file=model / "vocab.txt")
        start = dict(init_checkpoint="none", **files)
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        result = bert_gpu.run_classifier(
            task_name="single" if case.task in PUBLIC_TASKS else "pairs",
            data_dir=case.folder,
            train_file=train_file,
            output_dir=f"{scratch}/run",
            quiet=True,
            **dict(max_seq_length=LENGTH) | flags,
            padding="uniform",
            seed=seed,
            num_gpus=0,
            train_batch_size=BATCH,
            lr_scaling="none",
            learning_rate=rate,
            warmup_proportion=0.1,
            num_train_steps=options.updates
            or max(LEAST_UPDATES, math.ceil(EPOCHS * count / BATCH)),
            **start,
        )
    return {split: result.metrics[split]["accuracy"] for split in ("dev", "test")}


def accuracy_at_rates(options, case):
    """Return {learning rate or C: accuracy on the dev file} of trainings."""
    rates = INVERSE_PENALTIES if case.start == TF_IDF else options.rates
    return {f"{rate:g}": train(options, case, rate, RATE_SEED)["dev"] for rate in rates}


def best_rate(rows, case):
    """Return the learning rate, or C, that is best on the dev file."""
    accuracies = rows.values["rates"][case.key]
    return float(max(accuracies, key=accuracies.get))


def measure(options, rows):
    """Measure all missing rows: the pretraining, and of each task its learning rates and curves."""
    folders = prepare(options)
    if not options.model:
        rows.row("pretraining", "run", lambda: pretrain(options))
    for task, folder in folders.items():
        sizes, learners = sizes_of(options, task), (*STARTS, TF_IDF)
        cases = [Case(task, folder, size, start) for size in sizes for start in learners]
        rates = {x.key: functools.partial(accuracy_at_rates, options, x) for x in cases}
        fill(rows, "rates", rates, options.workers)
        curves = {}
        for case in cases:
            call = functools.partial(train, options, case, best_rate(rows, case))
            for seed in range(1, 1 + num_seeds(options, case)):
                curves[f"{case.key}, seed {seed}"] = functools.partial(call, seed)
        fill(rows, "curves", curves, options.workers)


def fill(rows, part, calls, num_workers):
    """Make the rows of a part that are missing. calls: {key: function that makes it}. One worker is
    this process with all cores, several are processes that have a thread each.
    """
    missing = [(key, call) for key, call in calls.items() if key not in rows.values[part]]
    if num_workers == 1:
        for key, call in missing:
            rows.row(part, key, call)
        return
    spawn, block = multiprocessing.get_context("spawn"), num_workers * TASKS_A_PROCESS
    for first in range(0, len(missing), block):
        # new ones for each block: an executor that replaces its processes itself can hang
        # (max_tasks_per_child, https://github.com/python/cpython/issues/115634)
        pool = concurrent.futures.ProcessPoolExecutor(
            num_workers, spawn, start_worker, (os.getpid(),)
        )
        try:
            futures = {pool.submit(call): key for key, call in missing[first : first + block]}
            for future in concurrent.futures.as_completed(futures):
                rows.row(part, futures[future], future.result)
        finally:
            pool.shutdown(cancel_futures=True)


def start_worker(parent):
    """Prepare a worker process, which ends with its parent, a process id."""
    from bert_gpu.text import parallel

    parallel.use_one_thread()
    threading.Thread(target=parallel.end_with_parent, args=(parent,), daemon=True).start()


def gather(rows):
    """Return {task: {labels: {start: [test accuracies]}}} of the rows, by numbers of labels."""
    tasks = {}
    for key, row in rows.values["curves"].items():
        task, labels, start, _ = key.split(", ")
        sizes = tasks.setdefault(task, {})
        sizes.setdefault(labels.removesuffix(" labels"), {}).setdefault(start, []).append(
            row["test"]
        )

    def size(item):
        return math.inf if item[0] == "all" else int(item[0])

    return {task: dict(sorted(sizes.items(), key=size)) for task, sizes in tasks.items()}


def mean_and_error(values):
    """Return the mean of accuracies and its standard error, in percent; None as a single one's
    error.
    """
    mean = 100 * statistics.mean(values)
    return mean, 100 * statistics.stdev(values) / math.sqrt(len(values)) if values[1:] else None


def gain(cell, better="pretrained", worse="untrained"):
    """Return the gain of one learner over another and its standard error or None, in points, of a
    cell of `gather`; (None, None) without one of them.
    """
    if not {better, worse} <= cell.keys():
        return None, None
    (high, high_error), (low, low_error) = (mean_and_error(cell[x]) for x in (better, worse))
    error = None if None in (high_error, low_error) else math.hypot(high_error, low_error)
    return high - low, error


def is_clear(points, error):
    """Return whether a gain is more than two standard errors above 0."""
    return error is not None and points > 2 * error


def with_error(value, error):
    if value is None:
        return "-"
    return f"{value:.1f}" if error is None else f"{value:.1f} ± {error:.1f}"


def print_record(rows):
    run = rows.values["pretraining"].get("run")
    if run:
        print(
            f"{run['minutes']:g} minutes, {run['steps']:,} steps; held-out documents: MLM loss "
            f"{run['mlm_loss']:.3f}, MLM accuracy {run['mlm_accuracy']:.3f}, NSP accuracy "
            f"{run['nsp_accuracy']:.3f}\n"
        )
    table, lost = [], []
    learners = (*STARTS, TF_IDF)
    for task, sizes in gather(rows).items():
        for labels, cell in sizes.items():
            means = (mean_and_error(cell[x]) if x in cell else (None, None) for x in learners)
            points, loss = gain(cell), gain(cell, TF_IDF, "pretrained")
            lost += [f"{task} ({labels})"] if is_clear(*loss) else []
            cells = [with_error(*each) for each in (*means, points)]
            verdict = "yes" if is_clear(*points) else "no"
            seeds = len(cell.get("pretrained", ()))
            table.append([task, labels, seeds, *cells, verdict, with_error(*loss)])
    header = ["task", "labels", "seeds", *learners, "gain, points", "more than two standard errors"]
    print_table([*header, f"{TF_IDF} above pretrained, points"], table)
    print(
        f"\nThe models read the first {LENGTH} tokens of a text, {TF_IDF} with logistic regression "
        f"the whole. {TF_IDF} is above the pretrained model by more than two standard errors in "
        f"{len(lost)} of {sum(row[-1] != '-' for row in table)} rows that have both: "
        f"{', '.join(lost) or 'none'}."
    )


def plot(folder, rows):
    """Write PNGs: the loss of the pretraining by minutes, and accuracy by labels of each task."""
    from matplotlib.figure import Figure

    if run := rows.values["pretraining"].get("run"):
        figure = Figure(figsize=(6, 4))
        axes = figure.subplots()
        seconds, losses = zip(*run["curve"], strict=True)
        axes.plot([each / 60 for each in seconds], losses)
        axes.set(xlabel="minutes", ylabel="MLM loss of held-out documents")
        save_plot(figure, folder, "record-loss")
    tasks = gather(rows)
    columns = min(3, len(tasks))
    num_rows = math.ceil(len(tasks) / columns)
    figure = Figure(figsize=(4 * columns, 4 * num_rows))
    every = figure.subplots(num_rows, columns, squeeze=False).ravel()
    for (task, sizes), axes in zip(tasks.items(), every, strict=False):
        for start in (*STARTS, TF_IDF):
            points = {x: mean_and_error(cell[start]) for x, cell in sizes.items() if start in cell}
            means, errors = [x for x, _ in points.values()], [x or 0 for _, x in points.values()]
            axes.errorbar(list(points), means, errors, label=start, marker="o", capsize=3)
        axes.set(title=task, xlabel="labels", ylabel="test accuracy, %")
    every[0].legend()
    save_plot(figure, folder, "record-labels")


def splits(text):
    """Read numbers of examples, TRAIN,DEV,TEST, for argparse."""
    return dict(zip(text_tasks.SPLITS, numbers(int)(text), strict=True))


def make_parser():
    parser = benchmark_parser(__doc__, "text", "pairs", "json", "folder", "table")
    parser.add_argument("--minutes", type=float, default=45.0, help="of the pretraining")
    parser.add_argument("--steps", type=int, help="end the pretraining after so many steps")
    parser.add_argument("--model", help="folder of one to take instead of pretraining")
    parser.add_argument("--public_tasks", help="folder of public tasks; without it there are none")
    every = (*TASKS, *PUBLIC_TASKS)
    parser.add_argument("--tasks", type=names_among(every), default=list(every))
    parser.add_argument("--sizes", type=numbers(int), default=[50, 200, 1000], help="labels")
    parser.add_argument("--rates", type=numbers(float), default=list(RATES))
    parser.add_argument("--updates", type=int, help="of each fine-tuning")
    parser.add_argument("--seeds", type=at_least_one, default=5)
    parser.add_argument("--seeds_of_all", type=int, default=3, help="with all labels")
    parser.add_argument("--splits", type=splits, help="examples of the made tasks: TRAIN,DEV,TEST")
    parser.add_argument(
        "--workers", type=at_least_one, default=os.cpu_count(), help="fine-tunings at a time"
    )
    parser.add_argument("--plots", help="folder for PNGs (needs matplotlib)")
    return parser


def main():
    parser = make_parser()
    options = parser.parse_args()
    if not options.table and not options.folder:
        parser.error("needs --folder, where the run stays")
    public = [task for task in options.tasks if task in PUBLIC_TASKS and options.public_tasks]
    folders = [options.pairs, *(f"{options.public_tasks}/{task}" for task in public)]
    start = f"{options.model}/model.safetensors" if options.model else options.text
    files = [start, *(f"{path}/train.tsv" for path in folders)]
    for path in () if options.table else files:
        if not pathlib.Path(path).is_file():
            parser.error(f"{path}: no such file; see --text, --model, --pairs, --public_tasks")
    try:
        if options.table:
            rows = Rows(options.json, None, PARTS)
        else:
            settings = dict(pairs=pairs_digest(options.pairs), rates=options.rates)
            settings |= dict(text=None, minutes=None, model=None)
            if options.model:
                settings["model"] = digest(f"{options.model}/model.safetensors")
            else:
                settings |= dict(text=digest(options.text), minutes=options.minutes)
            settings |= {task: pairs_digest(f"{options.public_tasks}/{task}") for task in public}
            rows = Rows(options.json, settings, PARTS)
            measure(options, rows)
        print_origin(rows.values)
        print_record(rows)
        if options.plots:
            plot(options.plots, rows)
    except (Failed, UserError) as failed:
        sys.exit(f"error: {failed}")


if __name__ == "__main__":
    main()
