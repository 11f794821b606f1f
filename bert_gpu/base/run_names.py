"""Names of the files and folders in a run's OUTPUT_DIR. They are in base/ because interop/, which
may not import runs/, recognises a run's folder by them.
"""

import hashlib
import os
import re

RUN = "run.json"
METRICS = "metrics.jsonl"
EVAL_RESULTS = "eval_results.json"
MLFLOW_RUN_ID = "mlflow_run_id.txt"  # holds MLflow's id of the run, for resuming it
LOCK = ".run.lock"  # the lock file of files.only_writer, which is never removed
MODEL = "model"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
MARKS = "marks"
WANDB = "wandb"

# files in the folder of a checkpoint
VARIABLES = "variables.safetensors"
PROGRESS = "progress.json"
# an empty file of this name protects the checkpoint from removal by --keep_checkpoint_max
KEEP = "KEEP"
LONGEST_NAME = 200  # bytes of the name of a cell's folder; file systems allow 255


def folder_name(cell: str) -> str:
    """Return the name of the folder of a cell of a grid: the cell's text or, where that has slashes
    or is too long, its beginning, with "-" for characters that are unsafe in a name, and a digest
    of the text.
    """
    name = cell.replace(" ", ",")
    if os.sep not in name and len(os.fsencode(name)) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(os.fsencode(cell)).hexdigest()[:8]
    plain = re.sub(r"[^\w=,.+-]", "-", name, flags=re.ASCII)
    return f"{plain[: LONGEST_NAME - len(digest) - 1]}-{digest}"
