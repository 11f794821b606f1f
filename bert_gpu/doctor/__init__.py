"""Examines whether training works on this machine: its packages, its hardware, and trial steps."""
