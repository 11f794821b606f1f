"""Reads and writes models in our own format and in those of other projects."""
