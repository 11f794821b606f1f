"""Pretraining objectives: a module and a row of table.py each; joint.py trains several at once."""
