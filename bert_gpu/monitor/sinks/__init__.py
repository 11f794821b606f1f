"""Where metrics go, one module a place: a file, the console, TensorBoard, W&B, MLflow."""
