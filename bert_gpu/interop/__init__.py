"""Weights to and from other projects' formats."""
