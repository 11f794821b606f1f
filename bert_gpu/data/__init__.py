"""Turns documents into data sets, and data sets into batches."""
