#!/usr/bin/env python3
"""Two claims of Cramming (Geiping & Goldstein 2023), in small and at equal work: that a larger
vocabulary is better, and that a model's size decides, not its type.

    python benchmarks/claims.py --text=corpus.txt --data=DATA --folder=WORK
        --json=docs/data/claims.json [--plots=docs/pictures]
    python benchmarks/claims.py --table --json=docs/data/claims.json [--plots=docs/pictures]

Every model is the recipe `cpu2h`, changed and shorter: it has as many steps as take the
multiplications of --steps steps of 2 x 128 with 8,192 pieces. Types: `BERT` has norms after the
blocks, absolute positions, GELU and biases; `crammed` and `modern` are the recipes' types. Each has
the rate that was the best of five for its place of norms and positions (dev/measurements.md, Muon).
Held out are 500 sentences, where nats per character are those of each piece with all others of its
word masked. DATA/blimp is that of benchmarks/proof.py, of which --pairs of each kind are scored.

A row in the JSON file is not measured again.
"""

import functools
import itertools
import pathlib
import re
import sys

import numpy as np
from helpers import command, text_tasks
from helpers.report import opened_rows, print_table, save_plot
from proof import pairs_of, settings_of

from bert_gpu.base.errors import UserError

VOCABULARIES = (2048, 4096, 8192, 16384, 32768)
COMMON = 8192  # the vocabulary of the types, and of the model that sets the work
SIZES = ((2, 64), (2, 128), (4, 128), (4, 256))  # layers, width
LENGTH, PREDICTIONS = 64, 16
LEAN = dict(use_bias=False, mlm_transform=False, decoder_bias=False, hidden_act="geglu")
TYPES = {  # {name: flags of the pretraining}
    "BERT": dict(norm_first=False, position_embedding_type="absolute", learning_rate=0.005),
    "crammed": LEAN | dict(position_embedding_type="scaled_sinusoidal", learning_rate=0.005),
    "modern": LEAN | dict(norm_type="rms_norm", layer_norm_eps=1e-5),
}
HELD_OUT, SENTENCES = 0.01, 500  # share of the documents; their first sentences are scored
KINDS = {  # {name: (its columns, its rows)}
    "vocabulary": (VOCABULARIES, ["quick's"]),
    "type": ([f"{layers} x {width}" for layers, width in SIZES], TYPES),
}
VALUES = ("nats a character", "BLiMP")


def products(layers, width, vocabulary):
    """Return the multiplications of a forward pass for each token of a row, where all layers
    compute all tokens. The project's own count, without what the last layer leaves out, gives the
    models .9 to 1.13 of equal work.
    """
    block = 12 * width**2 + 2 * LENGTH * width
    return layers * block + PREDICTIONS / LENGTH * (width * vocabulary + width**2)


def measure(options, name, vocabulary, size, flags, seed):
    """Pretrain a model in the folder `name` and score it. Returns its row."""
    import bert_gpu

    folder = pathlib.Path(options.folder)
    text, held_out, data = folder / "text.txt", folder / "held_out.txt", folder / f"{vocabulary}"
    if not held_out.exists():
        documents = text_tasks.read_documents(options.text)
        others, held = text_tasks.hold_out(documents, HELD_OUT)
        folder.mkdir(parents=True, exist_ok=True)
        text.write_text("\n\n".join("\n".join(lines) for lines in others) + "\n", encoding="utf-8")
        sentences = [*itertools.chain(*held)][:SENTENCES]
        held_out.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    if not (data / "dataset.json").exists():
        made = dict(input_file=text, output_dir=data, vocab_size=vocabulary, dupe_factor=1)
        command.run_script("create_pretraining_data.py", recipe="cpu2h", **made)
    layers, width = size
    steps = round(options.steps * products(2, 128, COMMON) / products(layers, width, vocabulary))
    gated = flags.get("hidden_act") == "geglu"  # both halves, 16 / 3 of the width: as many weights
    shape = dict(num_hidden_layers=layers, hidden_size=width, num_attention_heads=width // 64)
    shape |= dict(intermediate_size=round(width / 6) * 32 if gated else 4 * width)
    run = dict(input_file=f"{data}/*.tfrecord", output_dir=folder / name, seed=seed)
    run |= dict(num_train_steps=steps, eval_steps=steps, num_gpus=0)
    command.run_script("run_pretraining_gpu.py", recipe="cpu2h", **run, **shape, **flags)
    model = folder / name / "model"
    [of_text] = bert_gpu.evaluate(model=model, input=held_out, quiet=True)
    [of_pairs] = bert_gpu.evaluate(model=model, input=pairs_of(options), quiet=True)
    values = (-of_text["word_pll_per_character"], of_pairs["word_pll_accuracy"])
    return dict(steps=steps, mlm_loss=of_text["mlm_loss"]) | dict(zip(VALUES, values, strict=True))


def fill(options, rows):
    for seed in range(1, 1 + options.seeds):
        cases = {f"vocabulary, {count}, quick's": (count, (2, 128), {}) for count in VOCABULARIES}
        for size, (name, flags) in itertools.product(SIZES, TYPES.items()):
            cases[f"type, {size[0]} x {size[1]}, {name}"] = (COMMON, size, flags)
        for key, case in cases.items():
            name = f"{key}, seed {seed}"
            folder = re.sub(r"\W+", "-", name)  # commas separate input files
            rows.row("models", name, functools.partial(measure, options, folder, *case, seed))


def print_claims(rows, plots):
    """Print each claim as a table, and draw it."""
    for kind, (columns, lines) in KINDS.items():
        found = {
            (line, column): rows.of("models", f"{kind}, {column}, {line}")
            for line, column in itertools.product(lines, columns)
        }
        means = {
            (value, line): [mean_of(found[line, column], value) for column in columns]
            for value, line in itertools.product(VALUES, lines)
        }
        print()
        print_table(
            [kind, *columns],
            [[", ".join(key), *(f"{value:.3f}" for value in row)] for key, row in means.items()],
        )
        if plots:
            plot(plots, kind, columns, means)


def mean_of(rows, value):
    """Return the mean of a value over the rows of the seeds; NaN without a row."""
    return np.mean([row[value] for row in rows]) if rows else np.nan


def plot(folder, kind, columns, means):
    from matplotlib.figure import Figure

    axes = dict(zip(VALUES, Figure(figsize=(9, 3.2)).subplots(1, len(VALUES)), strict=True))
    for (value, line), row in means.items():
        axes[value].plot(row, "o-", label=line)
        axes[value].set(title=value)
        axes[value].set_xticks(range(len(columns)), columns)
    axes[VALUES[0]].legend(frameon=False)
    save_plot(axes[VALUES[0]].figure, folder, f"claims-{kind}")


def make_parser():
    parser = command.benchmark_parser(__doc__, "text", "json", "folder", "table")
    parser.add_argument("--data", help="folder of blimp/")
    parser.add_argument("--steps", type=command.at_least_one, default=800)
    parser.add_argument("--seeds", type=command.at_least_one, default=1)
    parser.add_argument("--pairs", type=command.at_least_one, default=60, help="of a kind")
    parser.add_argument("--plots", help="folder for PNGs (needs matplotlib)")
    return parser


def main():
    parser = make_parser()
    options = parser.parse_args()
    if not options.table and not (options.data and options.folder):
        parser.error("needs --data, the folder of blimp/, and --folder, where the models stay")
    if not options.table and not (pathlib.Path(options.data) / "blimp" / "data").is_dir():
        parser.error(f"--data={options.data}: has no folder blimp/data")
    try:
        rows = opened_rows(options, settings_of, ("models",))
        if not options.table:
            fill(options, rows)
    except (command.Failed, UserError, OSError) as failed:
        sys.exit(f"error: {failed}")
    print_claims(rows, options.plots)


if __name__ == "__main__":
    main()
