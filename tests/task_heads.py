"""The weights of an encoder with the head of a task, for tests."""

from bert_gpu.interop.heads import HEADS


def specs(name, encoder, num_classes=1):
    """{name: WeightSpec} of an Encoder and the row `name` of HEADS."""
    return {**encoder.weights(), **HEADS[name].weights(encoder.config, num_classes)}
