"""Converts values of other projects' flags to ours, where the table of aliases is not enough.

A conversion is a function: (text of the value, Call) -> {flag of ours: text of its value}. It
raises ValueError, whose message says what is wrong with the value and what to do.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from bert_gpu.base.run_names import RUN
from bert_gpu.base.settings import number_in, parse_time

TRUE = ("true", "t", "1", "yes", "y")
FALSE = ("false", "f", "0", "no", "n")
OFF = ("", "none", "null", *FALSE)


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a command. flags: {name: text of its last value} of all its flags, also of other
    projects' flags. values: the same, and for other flags of ours the values without the flag.
    """

    flags: Mapping[str, str]
    values: Mapping[str, Any]


Conversion = Callable[[str, Call], dict[str, str]]


def is_true(text: str) -> bool:
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError("must be true or false")


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def max_steps(text: str, call: Call) -> dict[str, str]:
    # -1, the default of transformers' Trainer, leaves the length to the number of epochs
    return {} if number(text) < 0 else {"num_train_steps": text}


def warmup_steps(text: str, call: Call) -> dict[str, str]:
    if 0 < number(text) < 1:  # since transformers 5, a share of the run's steps
        return {"warmup_proportion": text}
    if number(text) == 0 and "warmup_ratio" in call.flags:
        return {}  # transformers 4: only a number above 0 overrides warmup_ratio
    return {"num_warmup_steps": text}


def whole_steps(flag: str) -> Conversion:
    def convert(text: str, call: Call) -> dict[str, str]:
        if 0 < number(text) < 1:
            raise ValueError(f"a share of the run; give --{flag}=STEPS")
        return {flag: text}

    return convert


def metric(text: str, call: Call) -> dict[str, str]:
    """Convert the value of --metric_for_best_model, such as eval_accuracy or accuracy, to
    --best_metric.
    """
    return {"best_metric": text.removeprefix("eval_")}


def percentage(text: str, call: Call) -> dict[str, str]:
    return {"validation_share": repr(number(text) / 100)}


def config_name(text: str, call: Call) -> dict[str, str]:
    path = text if text.endswith(".json") else os.path.join(text, "config.json")
    return {"bert_config_file": path}


def folders(flag: str) -> Conversion:
    """Return a Conversion from a list of folders, separated by commas, to our flag `flag` with a
    glob for all files in each folder.
    """
    return lambda text, call: {
        flag: ",".join(os.path.join(folder, "*") for folder in text.split(","))
    }


def evaluation(text: str, call: Call) -> dict[str, str]:
    if text == "epoch":
        return {"validation_epochs": "1"}
    if text == "steps" and "eval_steps" in call.flags:
        return {}
    raise ValueError(
        "a run validates at every checkpoint, or every --eval_steps=STEPS; "
        "records without a validation share (--validation_share=0) are not validated"
    )


def scheduler(text: str, call: Call) -> dict[str, str]:
    """Convert --lr_scheduler_type. Its curves begin after the warm-up, and no flag means that there
    is none; its polynomial has power 1 and ends at a rate of 1e-7, its cosine at 0.
    """
    has_warmup = any("warmup" in name or name == "recipe" for name in call.flags)
    warmup = {} if has_warmup else {"warmup_proportion": "0"}
    rate = number_in(str(call.values["learning_rate"])) or 1.0
    curves = {
        "linear": {"curve": "one_cycle"},
        "constant": {"curve": "constant", "num_warmup_steps": "0"},
        "constant_with_warmup": {"curve": "constant"},
        "polynomial": {"curve": "one_cycle", "min_lr_ratio": f"{1e-7 / rate:.12g}"} | warmup,
        "cosine": {"curve": "one_cycle_cosine" if has_warmup else "cosine", "min_lr_ratio": "0"}
        | warmup,
    }
    if text.lower() not in curves:
        raise ValueError(
            f"has no counterpart here; must be one of {', '.join(curves)}, or choose a --curve"
        )
    return curves[text.lower()]


def overwrite_nothing(text: str, call: Call) -> dict[str, str]:
    """Accept --overwrite_output_dir where the folder holds no run, and beside --overwrite."""
    is_run = os.path.lexists(os.path.join(call.values["output_dir"], RUN))
    if text == "true" and is_run and call.flags.get("overwrite", "").lower() not in TRUE:
        raise ValueError(
            "--overwrite removes the run in --output_dir and starts over; "
            "without it the command resumes"
        )
    return {}


def early_exit(text: str, call: Call) -> dict[str, str]:
    """Convert --early_exit_time_marker, which ends a run without changing its schedule."""
    total = call.flags.get("total_training_time", text)
    if parse_time(text, "hours") < parse_time(total, "hours"):
        raise ValueError(
            f"would end the run before its schedule of {total[:40]} hours; here they end together: "
            "drop the flag, or give that time as --total_training_time"
        )
    return {} if "total_training_time" in call.flags else {"total_training_time": total}


def needing(flag: str, other: str, *texts: str) -> Conversion:
    """Return a Conversion to our flag `flag`, which has an effect only beside the flag `other` with
    one of the values `texts`.
    """
    return lambda text, call: {flag: text} if call.flags.get(other, "").lower() in texts else {}


# The flags of 24-hour BERT that say when it validates, with its defaults. Its epochs are shards of
# its data, whose share of a run is not known. Here an epoch counts as 1 % of the run at the
# beginning, 5/3 % in the middle and 0.5 % at the end, which gives the marks of --recipe=budget24h
# for the paper's numbers.
VALIDATIONS = dict(
    validation_epochs="10",
    validation_epochs_begin="1",
    validation_epochs_end="1",
    validation_begin_proportion="0.1",
    validation_end_proportion="0.1",
)
RUN_LENGTH = 60_000


def validations(text: str, call: Call) -> dict[str, str]:
    """Convert the flags in VALIDATIONS, all at once, to marks: shares of the run at which to
    validate, at other distances in its first and in its last part.
    """
    if call.flags.get("do_validation", "true").lower() in OFF:
        return {}
    texts = VALIDATIONS | {name: call.flags[name] for name in VALIDATIONS if name in call.flags}
    for name, value in texts.items():
        is_share = name.endswith("proportion")
        x = number_in(value)
        if x is None or not (0 <= x <= 1 if is_share else x >= 1 and not x % 1):
            raise ValueError(
                f"--{name}={value[:40]} must be "
                + ("a share of the run, from 0 to 1" if is_share else "a whole number, at least 1")
            )
    *epochs, begin, end = map(float, texts.values())
    middle_step, step, last_step = (
        int(number) * unit for number, unit in zip(epochs, (1000, 600, 300), strict=True)
    )
    first = round(begin * RUN_LENGTH)
    last = max(first, round((1 - end) * RUN_LENGTH))
    marks = {
        *range(step, first + 1, step),
        *(mark for mark in range(middle_step, last, middle_step) if mark > first),
        *range(last, RUN_LENGTH, last_step),
    }
    return {
        "validation_marks": ",".join(
            f"{mark / RUN_LENGTH:.6g}" for mark in sorted(marks) if 0 < mark < RUN_LENGTH
        )
    }
