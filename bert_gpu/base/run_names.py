"""Names of the files and folders in a run's OUTPUT_DIR. They are in base/ because interop/, which
may not import runs/, recognises a run's folder by them.
"""

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
