"""Converts values of other projects' flags to ours, where the table of aliases is not enough.

A conversion is a function: (text of the value, names of all flags in the call) -> {flag of ours:
text of its value}. It raises ValueError, whose message says what is wrong with the value and what
to do.
"""

import os
from collections.abc import Callable, Collection

FALSE = ("false", "f", "0", "no", "n")
OFF = ("", "none", "null", *FALSE)
Conversion = Callable[[str, Collection[str]], dict[str, str]]


def is_true(text: str) -> bool:
    if text.lower() in ("true", "t", "1", "yes", "y"):
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError("must be true or false")


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def max_steps(text: str, names: Collection[str]) -> dict[str, str]:
    # -1, the default of transformers' Trainer, leaves the length to the number of epochs
    return {} if number(text) < 0 else {"num_train_steps": text}


def warmup_steps(text: str, names: Collection[str]) -> dict[str, str]:
    if 0 < number(text) < 1:  # since transformers 5, a share of the run's steps
        return {"warmup_proportion": text}
    if number(text) == 0 and "warmup_ratio" in names:
        return {}  # transformers 4: only a number above 0 overrides warmup_ratio
    return {"num_warmup_steps": text}


def whole_steps(flag: str) -> Conversion:
    def convert(text: str, names: Collection[str]) -> dict[str, str]:
        if 0 < number(text) < 1:
            raise ValueError(f"a share of the run; give --{flag}=STEPS")
        return {flag: text}

    return convert


def metric(text: str, names: Collection[str]) -> dict[str, str]:
    """Convert the value of --metric_for_best_model, such as eval_accuracy or accuracy, to
    --best_metric.
    """
    return {"best_metric": text.removeprefix("eval_")}


def percentage(text: str, names: Collection[str]) -> dict[str, str]:
    return {"validation_share": repr(number(text) / 100)}


def config_name(text: str, names: Collection[str]) -> dict[str, str]:
    path = text if text.endswith(".json") else os.path.join(text, "config.json")
    return {"bert_config_file": path}


def folders(flag: str) -> Conversion:
    """Return a Conversion from a list of folders, separated by commas, to our flag `flag` with a
    glob for all files in each folder.
    """
    return lambda text, names: {
        flag: ",".join(os.path.join(folder, "*") for folder in text.split(","))
    }


def evaluation(text: str, names: Collection[str]) -> dict[str, str]:
    if text == "epoch":
        return {"validation_epochs": "1"}
    if text == "steps" and "eval_steps" in names:
        return {}
    raise ValueError(
        "a run validates at every checkpoint, or every --eval_steps=STEPS; "
        "records without a validation share (--validation_share=0) are not validated"
    )
