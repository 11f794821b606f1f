"""Names of the files and folders in OUTPUT_DIR. They are here because interop/, which may not
import runs/, recognises a run's folder by them.
"""

RUN = "run.json"
METRICS = "metrics.jsonl"
EVAL_RESULTS = "eval_results.json"
MLFLOW_RUN_ID = "mlflow_run_id.txt"  # a resumed run keeps its id
LOCK = ".run.lock"  # the lock file of files.only_writer, which is never removed
MODEL = "model"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
MARKS = "marks"
WANDB = "wandb"

# files in the folder of a checkpoint
VARIABLES = "variables.safetensors"
PROGRESS = "progress.json"
# an empty file of this name keeps the checkpoint, whatever --keep_checkpoint_max is
KEEP = "KEEP"
