"""Tables and pictures of a race of optimizers (race.py)."""

import pathlib
import statistics

from helpers.race import DIVERGED, OPTIMIZERS, SEARCH_SEED, loss_of
from helpers.report import print_table, spread


def seconds_to(row, loss):
    """Seconds until a run's validation loss is at most `loss`, by linear interpolation; None if
    never.
    """
    for (before, high), (after, low) in zip(row["curve"], row["curve"][1:], strict=False):
        if low <= loss:
            share = (high - loss) / (high - low) if high > loss else 0.0
            return before + share * (after - before)
    return None


def time_to_adamw(runs, adamw):
    """A table's cell: the mean seconds in which runs reach the final loss of AdamW's run of the
    same seed, and how many of them do, where not all.
    """
    goals = [loss_of(row) for row in adamw]
    pairs = [(run, goal) for run, goal in zip(runs, goals, strict=True) if goal < DIVERGED]
    seconds = [seconds_to(run, goal) for run, goal in pairs if "curve" in run]
    reached = [value for value in seconds if value is not None]
    if len(reached) == len(pairs):
        return spread(reached, "{:.0f}")
    return f"{len(reached)} of {len(pairs)}" + (
        f": {statistics.mean(reached):.0f}" if reached else ""
    )


def print_costs(record):
    print("\nSeconds of a step, fastest turn\n")
    print_table(
        ["model, form", *OPTIMIZERS, "muon / adamw"],
        [
            [
                key,
                *(f"{row[name]:.4f}" for name in OPTIMIZERS),
                f"{row['muon'] / row['adamw']:.2f}",
            ]
            for key, row in record.values["costs"].items()
        ],
    )


def print_race(model, form, found, minutes):
    print(f"\n{model}, {form}, {minutes:g} minutes\n")
    rows = []
    for optimizer, (rate, runs) in found.items():
        whole = [run for run in runs if "error" not in run]
        lost = f" ({len(runs) - len(whole)} of {len(runs)} diverged)" * (len(whole) < len(runs))
        rows.append(
            [
                optimizer + lost,
                f"{rate:g}",
                runs[0]["steps"],
                *(
                    spread([run[name] for run in whole])
                    for name in ("mlm_loss", "mlm_accuracy", "nsp_accuracy")
                ),
                "-" if optimizer == "adamw" else time_to_adamw(runs, found["adamw"][1]),
            ]
        )
    print_table(
        [
            "optimizer",
            "best learning rate",
            "steps",
            "MLM loss",
            "MLM accuracy",
            "NSP accuracy",
            "seconds to AdamW's final loss",
        ],
        rows,
    )
    print(
        "\nSeconds: to the loss with which AdamW's run of the same seed ends. The learning rates "
        "fall to 0 at the\nend of the budget, so a run planned shorter may be there earlier."
    )


def print_search(record, model, form, optimizers, minutes):
    """Losses of all learning rates tried."""
    prefix, suffix = f"{model} {form} ", f" {minutes:g} min seed {SEARCH_SEED}"
    tried = {
        key.removeprefix(prefix).removesuffix(suffix): row
        for key, row in record.values["runs"].items()
        if key.startswith(prefix) and key.endswith(suffix)
    }
    print(f"\nThe search: MLM loss after {minutes:g} minutes, seed {SEARCH_SEED}\n")
    for optimizer in optimizers:
        cells = {
            float(key.split()[1]): row for key, row in tried.items() if key.startswith(optimizer)
        }
        print(
            f"- {optimizer}: "
            + ", ".join(
                f"{rate:g}: " + (f"{row['mlm_loss']:.3f}" if "mlm_loss" in row else "diverged")
                for rate, row in sorted(cells.items())
            )
        )


def plot(folder, model, form, found):
    """Writes a PNG of validation loss by seconds, all seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for index, (optimizer, (rate, runs)) in enumerate(found.items()):
        for seed, run in enumerate(runs):
            if "curve" in run:
                label = f"{optimizer} {rate:g}" if not seed else None
                axes.plot(*zip(*run["curve"], strict=True), color=f"C{index}", label=label)
    axes.set(xlabel="seconds", ylabel="validation MLM loss", title=f"{model}, {form}")
    axes.legend()
    figure.tight_layout()
    path = pathlib.Path(folder) / f"optimizers-{model}-{form}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"\n{path}")
