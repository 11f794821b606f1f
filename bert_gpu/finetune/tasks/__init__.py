"""Kinds of tasks: the table of known tasks, and one module per kind."""
