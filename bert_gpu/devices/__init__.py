"""The GPUs of this machine, the workers of several, signals, and the launcher of workers."""
