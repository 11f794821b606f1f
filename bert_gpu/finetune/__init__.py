"""Downstream tasks on a pretrained encoder."""
