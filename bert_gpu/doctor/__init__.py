"""Examines whether a training works on this machine: the packages, the hardware, and trials."""
