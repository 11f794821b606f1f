"""The training engine: devices, step, loop, checkpoints, monitoring."""
