"""What a call without settings does on a machine without GPUs: the recipe "quick".

With any flag beyond names of files and how the call is watched, and wherever there is a GPU, the
defaults are Google's.
"""

import os

from bert_gpu.base.errors import UserError
from bert_gpu.devices.nvml import count_gpus

QUICK = "quick"
SAID = (
    "no GPU and no settings given: using --recipe=quick, which takes minutes on a CPU; "
    "--recipe=bert or any other flag selects BERT's settings; "
    "add --recipe=quick to keep the quick ones with other flags"
)
# Flags that leave the settings of a script open.
OPEN = {
    "data": "input_file input_format text_field output_file output_dir num_workers ray_address "
    "strict show",
    "pretrain": "input_file output_dir tensorboard",
    "classify": "task_name task_kind data_dir train_file dev_file test_file predict_file "
    "predictions_file dev_share test_share columns text_a text_b label output_dir do_train do_eval "
    "do_predict tensorboard",
}
COMMON = "overwrite quiet show_config save_config"


def implied_recipe(script, given):
    """The recipe of a call that names none: "quick" or None. given: names of the flags that the
    user gave.
    """
    if set(given) - set(f"{OPEN[script]} {COMMON}".split()) or count_gpus():
        return None
    return QUICK if script != "classify" or starts_quick() else None


def starts_quick():
    """Whether the model that fine-tuning starts from when none is named was trained by the
    recipe.
    """
    from bert_gpu.finetune.config import DEFAULT_START
    from bert_gpu.runs.folder import RunFolder

    try:
        stored = RunFolder(os.path.dirname(DEFAULT_START)).read_run()
    except UserError:
        return False
    return stored is not None and stored.get("free", {}).get("recipe") == QUICK
