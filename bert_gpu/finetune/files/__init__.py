"""The files of a task: tables and tagged text in, examples and encoded rows out."""
