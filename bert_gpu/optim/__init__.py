"""Optimizers and schedules, as functions on state."""
