"""The sinks of metrics, one module each: a file, the console, TensorBoard, W&B, MLflow."""
