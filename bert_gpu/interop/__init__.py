"""Reads and writes models in bert-gpu's own format and in those of other projects."""
