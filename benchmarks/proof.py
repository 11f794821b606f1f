#!/usr/bin/env python3
"""The proof: what our models reach in public tests, beside numbers that others published.

    python benchmarks/proof.py --data=DATA --folder=WORK --json=docs/data/proof.json [--seeds=3]
    python benchmarks/proof.py --table --json=docs/data/proof.json

DATA/glue holds GLUE's folders CoLA, SST-2, MRPC, RTE and STS-B (Wang et al. 2018), DATA/blimp the
files data/*.jsonl and models_summary.jsonl of BLiMP (Warstadt et al. 2020), DATA/corpus.txt the
text of the recipe `cpu2h`. What DATA lacks is left out.

Each seed of a model is pretrained and judged in one go: on GLUE with run_classifier.py's own
settings and rows of 64 tokens, and on minimal pairs. Beside it stand the model untrained, the
majority class, and TF-IDF with logistic regression, C by cross-validation (STS-B: TF-IDF's cosine).
All in percent: Matthews correlation for CoLA, accuracy and F1 for MRPC, Spearman correlation for
STS-B, else accuracy. Ours are of GLUE's dev files, the published ones of its test sets. BLiMP is
the mean share of pairs, over 67 kinds, whose right sentence is likelier; a tie of ours counts half.

A row in the JSON file is not measured again.
"""

import collections
import functools
import itertools
import json
import pathlib
import sys
import time

import numpy as np
from helpers import command, tf_idf
from helpers.report import digest, opened_rows, print_table, save_plot
from record import INVERSE_PENALTIES, TF_IDF, mean_and_error, with_error

from bert_gpu.base.errors import UserError

TASKS = {  # {name: its metrics}
    "CoLA": ("matthews",),
    "SST-2": ("accuracy",),
    "MRPC": ("accuracy", "f1"),
    "RTE": ("accuracy",),
    "STS-B": ("spearman",),
}
FIELDS = ("morphology", "syntax", "syntax/semantics", "semantics")
SCORES = ("pll_accuracy", "word_pll_accuracy")  # of evaluate; the second, within words, is shown
# GLUE's test sets: Turc et al. 2019 (github.com/google-research/bert), Devlin et al. 2018, table 1
PUBLISHED = {
    "BERT-Tiny, 2 x 128": ["0.0", "83.2", "71.1 / 81.1", "57.2", "73.6"],
    "BERT-Mini, 4 x 256": ["0.0", "85.9", "71.8 / 81.1", "57.9", "73.3"],
    "BERT-Small, 4 x 512": ["27.8", "89.7", "76.2 / 83.4", "61.8", "77.0"],
    "BERT-base, 12 x 768": ["52.1", "93.5", "- / 88.9", "66.4", "85.8"],
}
LANGUAGE_MODELS = dict(ngram="5-gram", lstm="LSTM", txl="Transformer-XL", gpt2="GPT-2")
MODELS = {  # {name: flags of the pretraining}
    "untrained": dict(recipe="quick", num_train_steps=1, learning_rate=1e-12),
    "quick": dict(recipe="quick"),
    "cpu2h": dict(recipe="cpu2h"),
}
NO_BERT = ("majority", TF_IDF)


def glue_of(options):
    """Return {task: folder} of the tasks that the data holds."""
    folders = {name: pathlib.Path(options.data) / "glue" / name for name in TASKS}
    return {name: folder for name, folder in folders.items() if folder.is_dir()}


def pretrain(options, name, seed):
    """Pretrain a model. Returns {"seconds", "mlm_loss"}."""
    recipe = MODELS[name]["recipe"]
    data, run = pathlib.Path(options.folder) / f"data-{recipe}", run_of(options, name, seed)
    started = time.monotonic()
    if not (data / "dataset.json").exists():
        text = options.text if recipe == "quick" else f"{options.data}/corpus.txt"
        flags = dict(recipe=recipe, input_file=text, output_dir=data)
        command.run_script("create_pretraining_data.py", **flags)
    flags = MODELS[name] | (dict(num_train_steps=options.steps) if options.steps else {})
    flags |= dict(input_file=f"{data}/*.tfrecord", output_dir=run, seed=seed)
    command.run_script("run_pretraining_gpu.py", **flags)
    loss = command.read_metrics(run)[1][-1]["eval_mlm_loss"]
    return dict(seconds=round(time.monotonic() - started), mlm_loss=loss)


def run_of(options, name, seed):
    return pathlib.Path(options.folder, f"{name}-{seed}")


def judge_pairs(options, name, seed):
    """Return {kind of pair: [both scores]} of a model."""
    import bert_gpu

    model = run_of(options, name, seed) / "model"
    [result] = bert_gpu.evaluate(model=model, input=pairs_of(options), quiet=True)
    rows = sorted(result["phenomena"].items())
    return {kind: [row[score] for score in SCORES] for kind, row in rows}


def pairs_of(options):
    """Return the folder of the pairs, or of a copy of the first --pairs of each kind."""
    source = pathlib.Path(options.data) / "blimp" / "data"
    copy = pathlib.Path(options.folder) / f"blimp-{options.pairs}"
    copy.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines()[: options.pairs]
        (copy / path.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return copy


def published_pairs(options):
    """Return {kind of pair: its field, and each language model's score}."""
    folder = pathlib.Path(options.data) / "blimp"
    firsts = (open(path, encoding="utf-8").readline() for path in folder.glob("data/*.jsonl"))
    fields = {row["UID"]: row["field"].replace("_", "/") for row in map(json.loads, firsts)}
    lines = (folder / "models_summary.jsonl").read_text(encoding="utf-8").splitlines()
    rows = {row["UID"]: row for row in map(json.loads, lines)}
    if missing := sorted(fields.keys() - rows.keys()):
        raise command.Failed(f"{folder}/models_summary.jsonl: has no row of {missing[0]}")
    scores = {kind: {name: rows[kind][name] for name in LANGUAGE_MODELS} for kind in fields}
    return {kind: dict(field=field) | scores[kind] for kind, field in sorted(fields.items())}


def fine_tune(options, name, task, seed):
    """Fine-tune a model on a task of GLUE. Returns its metrics on the dev file."""
    run = run_of(options, name, seed)
    flags = dict(task_name=task, data_dir=glue_of(options)[task], seed=seed, do_eval=True)
    flags |= dict(init_checkpoint=run / "model", output_dir=run / task, do_train=True)
    flags |= dict(num_train_steps=options.steps) if options.steps else {}
    command.run_script("run_classifier.py", max_seq_length=64, padding="uniform", **flags)
    results = command.load_json(run / task / "eval_results.json")
    return [results[metric] for metric in TASKS[task]]


def without_bert(options, name, task):
    """Return the metrics of the majority class, or of TF-IDF, on the dev file."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    from bert_gpu.finetune.tasks.metrics import compute_metrics

    (texts, labels), (tested, targets) = (read(options, task, x) for x in ("train", "dev"))
    if task == "STS-B":
        targets, outputs = np.array(targets, np.float64), np.zeros((len(targets), 1))
    else:
        kinds = sorted(set(labels))
        targets = np.array([kinds.index(label) for label in targets])
        most = collections.Counter(labels).most_common(1)[0][0]
        outputs = np.eye(len(kinds))[[kinds.index(most)] * len(targets)]
    if name == TF_IDF:
        vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        vectorizer.fit(itertools.chain(*texts))
        features = functools.partial(tf_idf.features_of, vectorizer)
        if task == "STS-B":
            first, second = map(vectorizer.transform, tested)
            outputs = np.asarray(first.multiply(second).sum(1))
        else:
            model = GridSearchCV(LogisticRegression(max_iter=1000), dict(C=INVERSE_PENALTIES))
            outputs = model.fit(features(texts), labels).predict_proba(features(tested))
    metrics = compute_metrics(outputs, targets, TASKS[task])
    return [value or 0.0 for value in metrics.values()]  # a constant has no correlation


def read(options, task, split):
    """Return the texts of a split, a list for each column, and the labels."""
    from bert_gpu.finetune.files.examples import Examples, Source
    from bert_gpu.finetune.tasks.table import find_table, find_task

    spec = find_task(task)
    folder = str(glue_of(options)[task])
    if (path := find_table(spec, folder, split)) is None:
        raise command.Failed(f"{folder}: has no {split}.tsv")
    columns, labels = [[], []], []
    for chunk in Examples(spec, Source(split, path)).chunks():
        columns[0] += chunk.texts_a
        columns[1] += chunk.texts_b or []
        labels += chunk.labels
    return [column for column in columns if column], labels


def fill(options, rows):
    """Measure what is missing, a seed with all of its rows before the next."""
    tasks, has_pairs = glue_of(options), (pathlib.Path(options.data) / "blimp").is_dir()
    has_corpus = (pathlib.Path(options.data) / "corpus.txt").exists()
    models = [name for name in options.models if name != "cpu2h" or has_corpus]

    def row(part, key, make, *arguments):
        rows.row(part, key, functools.partial(make, options, *arguments))

    if has_pairs:
        row("published", "BLiMP", published_pairs)
    for name, task in itertools.product(NO_BERT, tasks):
        row("tasks", f"{name}, {task}", without_bert, name, task)
    for seed, name in itertools.product(range(1, 1 + options.seeds), models):
        row("pretraining", f"{name}, seed {seed}", pretrain, name, seed)
        if has_pairs:
            row("pairs", f"{name}, seed {seed}", judge_pairs, name, seed)
        for task in tasks:
            row("tasks", f"{name}, {task}, seed {seed}", fine_tune, name, task, seed)


# -- tables


def percent(values):
    return with_error(*mean_and_error(values)) if values else "-"


def cell_of(rows, name, task):
    """Return the cell of a task of GLUE: a mean and its error for each metric."""
    own = rows.of("tasks", f"{name}, {task}") or [rows.values["tasks"].get(f"{name}, {task}")]
    return " / ".join(map(percent, zip(*own, strict=True))) if all(own) else "-"


def print_tasks(rows):
    lines = [[name, *(cell_of(rows, name, task) for task in TASKS)] for name in (*NO_BERT, *MODELS)]
    lines += [[f"{name} (published)", *cells] for name, cells in PUBLISHED.items()]
    print_table(["", *TASKS], [line for line in lines if set(line[1:]) != {"-"}])


def print_pairs(rows, plots):
    """Print the pairs and draw them, ours by the likelihood within words."""
    published = rows.values["published"]["BLiMP"]
    scores = {
        name: [{kind: both[1] for kind, both in row.items()} for row in rows.of("pairs", name)]
        for name in MODELS
    }
    for name, title in LANGUAGE_MODELS.items():
        scores[f"{title} (published)"] = [{kind: row[name] for kind, row in published.items()}]

    def means_of(seeds, fields):
        kinds = [kind for kind, row in published.items() if row["field"] in fields]
        return [np.mean([row[kind] for kind in kinds]) for row in seeds if kinds]

    groups = {"all kinds": FIELDS} | {field: [field] for field in FIELDS}
    means = {
        name: [means_of(seeds, fields) for fields in groups.values()]
        for name, seeds in scores.items()
        if seeds
    }
    print()
    print_table(["BLiMP", *groups], [[name, *map(percent, row)] for name, row in means.items()])
    if plots:
        plot(plots, groups, means)


def plot(folder, groups, means):
    from matplotlib.figure import Figure

    axes = Figure(figsize=(9, 3.2)).subplots()
    for i, (name, cells) in enumerate(means.items()):
        places = np.arange(len(cells)) + 0.8 * i / len(means)
        axes.bar(places, [100 * np.mean(cell) for cell in cells], 0.8 / len(means), label=name)
    axes.set(ylim=(40, 108), ylabel="% of pairs right")
    axes.set_xticks(range(len(groups)), groups, ha="left")
    axes.legend(ncols=4, fontsize="small", frameon=False)
    save_plot(axes.figure, folder, "proof")


def settings_of(options):
    return dict(text=digest(options.text), pairs=options.pairs, steps=options.steps)


def make_parser():
    parser = command.benchmark_parser(__doc__, "text", "json", "folder", "table")
    parser.add_argument("--data", help="folder of glue/ and blimp/")
    parser.add_argument("--models", type=command.names_among(MODELS), default=[*MODELS])
    parser.add_argument("--seeds", type=command.at_least_one, default=3)
    parser.add_argument("--pairs", type=command.at_least_one, default=1000, help="of a kind")
    parser.add_argument("--steps", type=command.at_least_one, help="of all trainings, for a try")
    parser.add_argument("--plots", help="folder for a PNG (needs matplotlib)")
    return parser


def main():
    parser = make_parser()
    options = parser.parse_args()
    data = pathlib.Path(options.data or "none")
    if not options.table and not any((data / name).is_dir() for name in ("glue", "blimp")):
        parser.error(f"--data={options.data}: has no folder glue or blimp")
    if not options.table and not options.folder:
        parser.error("needs --folder, where the models stay")
    try:
        rows = opened_rows(options, settings_of, ("published", "pretraining", "pairs", "tasks"))
        if not options.table:
            fill(options, rows)
    except (command.Failed, UserError, OSError) as failed:
        sys.exit(f"error: {failed}")
    print_tasks(rows)
    if rows.values["published"]:
        print_pairs(rows, options.plots)


if __name__ == "__main__":
    main()
