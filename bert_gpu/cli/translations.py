"""How values of other projects' flags become ours.

A translation is a function: (text of the value, names of all flags of other projects in the call)
-> {flag of ours: text of its value}. It raises ValueError, whose message says what is wrong with
the value and what to do.
"""

import os

FALSE = ("false", "f", "0", "no", "n")


def renamed(flag):
    """The same value under our name."""
    return lambda text, names: {flag: text}


def switch(on, off):
    """Settings for true and for false."""
    return lambda text, names: dict(on if is_true(text) else off)


def chosen(flag, values, otherwise):
    """One of some values, each with its settings. otherwise: what to do for the others."""

    def translate(text, names):
        if text.lower() not in values:
            raise ValueError(f"has no counterpart here; {otherwise}")
        return dict(values[text.lower()])

    return translate


def refuse_unless_off(reason):
    """Refuses every value, also a path, but those that ask for nothing."""

    def translate(text, names):
        if text.lower() in ("", "none", "null", *FALSE):
            return {}
        raise ValueError(reason)

    return translate


def is_true(text):
    if text.lower() in ("true", "t", "1", "yes", "y"):
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError("must be true or false")


def number(text):
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def translate_max_steps(text, names):
    # Trainer: -1, its default, is to count epochs
    return {} if number(text) < 0 else {"num_train_steps": text}


def translate_warmup_steps(text, names):
    if 0 < number(text) < 1:  # a share of the run since transformers 5
        return {"warmup_proportion": text}
    if number(text) == 0 and "warmup_ratio" in names:
        return {}  # transformers 4: only a number above 0 overrides the ratio
    return {"num_warmup_steps": text}


def translate_whole_steps(flag):
    def translate(text, names):
        if 0 < number(text) < 1:
            raise ValueError(f"a share of the run; give --{flag}=STEPS")
        return {flag: text}

    return translate


def translate_metric(text, names):
    """--metric_for_best_model=eval_accuracy, or accuracy."""
    return {"best_metric": text.removeprefix("eval_")}


def translate_percentage(text, names):
    return {"validation_share": repr(number(text) / 100)}


def translate_config_name(text, names):
    return {
        "bert_config_file": text if text.endswith(".json") else os.path.join(text, "config.json")
    }


def translate_folders(flag):
    """Folders, separated by commas -> globs of all files in them."""
    return lambda text, names: {
        flag: ",".join(os.path.join(folder, "*") for folder in text.split(","))
    }


def translate_evaluation(text, names):
    if text == "epoch":
        return {"validation_epochs": "1"}
    if text == "steps" and "eval_steps" in names:
        return {}
    raise ValueError(
        "a run validates at every checkpoint, or every --eval_steps=STEPS; "
        "records without a validation share (--validation_share=0) are not validated"
    )


def translate_report_to(text, names):
    values = {"none": "false", "tensorboard": "true"}
    if text not in values:
        raise ValueError(
            "name tensorboard or none here; Weights & Biases needs --wandb_project=NAME"
        )
    return {"tensorboard": values[text]}
