"""Use of the models of a race of optimizers (race.py): fine-tuned on labelled pairs, beside fresh
weights of the same shape. A finished fine-tuning is a row (report.Rows).
"""

import contextlib
import statistics

from helpers.command import load_json, run_on_cores, run_script
from helpers.race import (
    LENGTH,
    final_seeds,
    folder_of,
    or_diverged,
    rates_between,
    run_key,
    search,
)
from helpers.report import Missing, print_table, spread

FINE_TUNED_BY = ("adamw", "muon")
FIRST_PAIR_RATES = (2e-4, 2e-3)


def fine_tune(options, rows, key, is_pretrained, optimizer, rate, seed, core):
    """Return the row of one fine-tuning, on a core, of the model of a run, or of fresh weights of
    its shape: the accuracies on the dev file and on the test file, None without labels there.
    """
    start = "pretrained" if is_pretrained else "untrained"
    name = f"{key} {start} pairs {optimizer} {rate:g} seed {seed}"
    model = folder_of(options, key) / "model"
    init = dict(init_checkpoint=model)
    if not is_pretrained:
        files = dict(bert_config_file=model / "config.json", vocab_file=model / "vocab.txt")
        init = dict(init_checkpoint="none", **files)

    def run():
        out = folder_of(options, name)
        run_script(
            "run_classifier.py",
            data_dir=options.pairs,
            output_dir=out,
            core=core,
            optimizer=optimizer,
            learning_rate=rate,
            lr_scaling="none",
            max_seq_length=LENGTH,
            num_train_epochs=options.pair_epochs,
            num_gpus=0,
            seed=seed,
            **init,
        )
        dev = load_json(out / "eval_results.json")["accuracy"]
        return dict(dev=dev, test=test_accuracy(options.pairs, out / "test_results.tsv"))

    return rows.row("pairs", name, lambda: or_diverged(run))


def test_accuracy(folder, predictions):
    """Return the share of right predictions, lines of "id, label, ..." under a header, for the test
    file of a folder of pairs; None when that has no labels or is not there.
    """
    from bert_gpu.finetune.config import FinetuneConfig, FinetuneSettings, has_test_file
    from bert_gpu.finetune.files.splits import read_splits
    from bert_gpu.finetune.tasks.opening import open_task

    config = FinetuneConfig(data_dir=str(folder))
    if not has_test_file(config):
        return None
    task = open_task(FinetuneSettings(run=config))
    [test] = read_splits(task, config, ["predict"])[1]["predict"]
    if not test.has_labels:
        return None
    labels = (" ".join(label.split()) for part in test.chunks() for label in part.labels)
    predicted = [line.split("\t")[1] for line in predictions.read_text().splitlines()[1:]]
    return statistics.mean(float(a == b) for a, b in zip(predicted, labels, strict=True))


def choose_rate(options, rows, keys, is_pretrained, optimizer):
    """Return the best learning rate by the dev file, and its rows, of fine-tunings of runs. keys:
    {seed: key of the run}.
    """
    tuned = {}

    def run(case, core):
        rate, seed = case
        return fine_tune(options, rows, keys[seed], is_pretrained, optimizer, rate, seed, core)

    def errors_at(rates):
        cases = [(rate, seed) for rate in rates for seed in keys]
        for (rate, _), row in zip(cases, run_on_cores(run, cases, options.cores), strict=True):
            tuned.setdefault(rate, []).append(row)
        return [statistics.mean(1 - row.get("dev", 0.0) for row in tuned[rate]) for rate in rates]

    if options.rates:
        errors = dict(zip(options.rates, errors_at(options.rates), strict=True))
    else:
        errors = search(rates_between(*FIRST_PAIR_RATES), errors_at)
    best = min(errors, key=errors.get)
    return best, tuned[best]


def fine_tunings(options, rows, model, form, results):
    """Return {(pretrained by, fine-tuned by): `choose_rate`} of the race's runs that did not
    diverge; with --table of those whose rows are all there.
    """
    table = {}
    for source in ("untrained", "adamw", "muon"):
        shaped_by = "adamw" if source == "untrained" else source
        if shaped_by not in results:
            continue
        rate, runs = results[shaped_by]
        keys = {
            seed: run_key(model, form, shaped_by, rate, options.minutes, seed)
            for seed, row in zip(final_seeds(options), runs, strict=True)
            if "error" not in row
        }
        for optimizer in FINE_TUNED_BY:
            if keys and optimizer in options.optimizers:
                with contextlib.suppress(Missing):
                    is_pretrained = source != "untrained"
                    chosen = choose_rate(options, rows, keys, is_pretrained, optimizer)
                    table[source, optimizer] = chosen
    return table


def print_pairs(model, form, table):
    whole = {key: [row for row in rows if "dev" in row] for key, (_, rows) in table.items()}
    split, note = "test", "the dev file chose the learning rate"
    if any(row["test"] is None for rows in whole.values() for row in rows):
        split = "dev"
        note = "the same file chose the learning rate, because there is no labelled test file"
    print(f"\n{model}, {form}: accuracy on the {split} file of the pairs; {note}\n")
    print_table(
        ["pretrained by", "fine-tuned by", "learning rate", "accuracy"],
        [
            [*key, f"{rate:g}", spread([row[split] for row in whole[key]])]
            for key, (rate, _) in table.items()
        ],
    )
    print("\nLAMB's models are not fine-tuned.")
