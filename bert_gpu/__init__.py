"""bert-gpu: BERT pretraining on the GPUs of one machine, from text to a fine-tuned classifier."""

from bert_gpu.base import environment

__version__ = "0.1.0"

environment.prepare()
