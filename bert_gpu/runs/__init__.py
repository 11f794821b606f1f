"""The files that a run leaves in its folder: names, progress, run.json, metrics, checkpoints."""
