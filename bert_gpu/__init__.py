"""bert-gpu: BERT pretraining on the GPUs of one machine, from text to a fine-tuned classifier."""

__version__ = "0.1.0"
