"""What the models of a race of optimizers (race.py) are good for: fine-tuned on labelled pairs,
beside fresh weights of the same shape. A finished fine-tuning is a row (rows.py).
"""

import contextlib
import statistics

from helpers.command import load_json, run_script
from helpers.learning_rates import rates_between, search
from helpers.race import LENGTH, final_seeds, folder_of, or_diverged, run_key
from helpers.report import print_table, spread
from helpers.rows import Missing

FINE_TUNED_BY = ("adamw", "muon")
FIRST_PAIR_RATES = (2e-4, 2e-3)


def fine_tune(options, record, key, is_pretrained, optimizer, rate, seed, core):
    """One fine-tuning, on a core, of the model of a run, or of fresh weights of its shape; its row
    has the accuracies on the dev file and on the test file, None without labels there.
    """
    name = f"{key} {'pretrained' if is_pretrained else 'untrained'} pairs {optimizer} {rate:g}"
    name, model = f"{name} seed {seed}", folder_of(options, key) / "model"
    start = (
        dict(init_checkpoint=model)
        if is_pretrained
        else dict(
            init_checkpoint="none",
            bert_config_file=model / "config.json",
            vocab_file=model / "vocab.txt",
        )
    )

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
            **start,
        )
        dev = load_json(out / "eval_results.json")["accuracy"]
        return dict(dev=dev, test=test_accuracy(options.pairs, out / "test_results.tsv"))

    return record.row("pairs", name, lambda: or_diverged(run))


def test_accuracy(folder, predictions):
    """The share of right predictions, lines of "id, label, ..." under a header, for the test file
    of a folder of pairs; None when that has no labels or is not there.
    """
    from bert_gpu.finetune.config import FinetuneConfig, has_test_file, resolve_task
    from bert_gpu.finetune.files.splits import read_splits

    config = FinetuneConfig(data_dir=str(folder))
    if not has_test_file(config):
        return None
    [test] = read_splits(resolve_task(config), config, ["predict"])["predict"]
    if not test.has_labels:
        return None
    labels = test.column("labels")
    found = [line.split("\t")[1] for line in predictions.read_text().splitlines()[1:]]
    return statistics.mean(
        float(a == " ".join(b.split())) for a, b in zip(found, labels, strict=True)
    )


def choose_rate(options, record, keys, is_pretrained, optimizer):
    """(best learning rate by the dev file, its rows) of fine-tunings of runs, {seed: key}."""
    rows = {}

    def run(case, core):
        rate, seed = case
        return fine_tune(options, record, keys[seed], is_pretrained, optimizer, rate, seed, core)

    def errors_at(rates):
        cases = [(rate, seed) for rate in rates for seed in keys]
        found = options.cores.each(run, cases)
        for (rate, _), row in zip(cases, found, strict=True):
            rows.setdefault(rate, []).append(row)
        return [statistics.mean(1 - row.get("dev", 0.0) for row in rows[rate]) for rate in rates]

    errors = search(rates_between(*FIRST_PAIR_RATES), errors_at)
    best = min(errors, key=errors.get)
    return best, rows[best]


def fine_tunings(options, record, model, form, found):
    """{(pretrained by, fine-tuned by): `choose_rate`} of the race's runs that did not diverge; with
    --table of those whose rows are all there.
    """
    table = {}
    for source in ("untrained", "adamw", "muon"):
        shaped_by = "adamw" if source == "untrained" else source
        if shaped_by not in found:
            continue
        rate, rows = found[shaped_by]
        keys = {
            seed: run_key(model, form, shaped_by, rate, options.minutes, seed)
            for seed, row in zip(final_seeds(options), rows, strict=True)
            if "error" not in row
        }
        for optimizer in FINE_TUNED_BY if keys else ():
            with contextlib.suppress(Missing):
                table[source, optimizer] = choose_rate(
                    options, record, keys, source != "untrained", optimizer
                )
    return table


def print_pairs(model, form, table):
    whole = {key: [row for row in rows if "dev" in row] for key, (_, rows) in table.items()}
    has_test = all(row["test"] is not None for rows in whole.values() for row in rows)
    split = "test" if has_test else "dev"
    note = (
        "the dev file chose the learning rate"
        if has_test
        else "the same file chose the learning rate, because there is no labelled test file"
    )
    print(f"\n{model}, {form}: accuracy on the {split} file of the pairs; {note}\n")
    print_table(
        ["pretrained by", "fine-tuned by", "learning rate", "accuracy"],
        [
            [*key, f"{rate:g}", spread([row[split] for row in whole[key]])]
            for key, (rate, _) in table.items()
        ],
    )
    print("\nLAMB's models are not fine-tuned.")
