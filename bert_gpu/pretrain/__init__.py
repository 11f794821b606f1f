"""Pretraining: records in, a BERT out."""
