"""Runs a SavedModel in a process that has only TensorFlow and tensorflow_text.

python saved_model_process.py MODEL TEXTS.json OUTPUT.npz
    TEXTS.json: [[text a, text b], ...]
"""

import json
import sys

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its ops)


def main(folder, texts, output):
    with open(texts, encoding="utf-8") as file:
        pairs = json.load(file)
    signatures = tf.saved_model.load(folder).signatures
    found = {}
    for first in range(0, len(pairs), 100):  # batches of any size and length
        part = pairs[first : first + 100]
        texts_a, texts_b = (tf.constant([pair[side] for pair in part]) for side in (0, 1))
        results = dict(
            classify=signatures["classify"](text=texts_a),
            classify_pairs=signatures["classify_pairs"](text_a=texts_a, text_b=texts_b),
            embed=signatures["embed"](text=texts_a),
            fill_mask=signatures["fill_mask"](text=texts_a),
            serving_default=signatures["serving_default"](text=texts_a),
        )
        for name, values in results.items():
            for key, value in values.items():
                base = first if (name, key) == ("fill_mask", "text") else 0
                value = value.numpy()
                if value.dtype == object:  # strings, for which NumPy's files have another type
                    value = np.strings.decode(value.astype(bytes), "utf-8")
                found.setdefault(f"{name}/{key}", []).append(value + base if base else value)
    assert "bert_gpu" not in sys.modules
    np.savez(output, **{name: np.concatenate(parts) for name, parts in found.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
