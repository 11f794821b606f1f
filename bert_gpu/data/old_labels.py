"""Checks the next-sentence labels of data sets whose dataset.json lacks the shares of pairs.

Earlier data jobs drew "random" second segments from the first segment's own document when that was
alone in its window of text, and gave rows of long lines random second segments only. Rows do not
say which document they are from; but where a data set has fewer than two documents to train on for
each window, some window had one.
"""

import numpy as np

from bert_gpu.data.shards import is_usual

NUM_ROWS = 4000  # that are read, from all over the data


def label_warnings(data, tokenizer) -> list[str]:
    """Return what is wrong with the labels of a dataset.Dataset, from its rows and dataset.json."""
    for folder, info in data.infos.items():
        if info is None or info.objective != "nsp" or info.label_1_share is not None:
            continue
        random = random_share(data, folder, tokenizer)
        if has_lone_documents(info):
            problem = "random second segments are from the first segment's own document"
        elif not is_usual(random, min(NUM_ROWS, info.num_train_instances)):
            problem = f"{random:.0%} of the second segments are random"
        else:
            continue
        return [
            f"{folder or '.'}: an earlier version wrote this data set with wrong next-sentence "
            f"labels: {problem}; write it again with create_pretraining_data.py --overwrite"
        ]
    return []


def has_lone_documents(info) -> bool:
    """Return whether a Manifest has fewer than two training documents for each window of text."""
    num_bytes = sum(size for _, size, _ in info.inputs)
    num_windows = max(1, round(num_bytes / (info.settings["window_megabytes"] * 1e6)))
    num_documents = info.num_documents - (info.num_validation_instances > 0)
    return num_documents < 2 * num_windows


def random_share(data, folder, tokenizer) -> float:
    """Return the share of label 1 in up to NUM_ROWS training rows of a folder."""
    is_own = [file.path in data.infos[folder].paths(folder, "train") for file in data.train.files]
    own = np.flatnonzero(np.repeat(is_own, [len(file) for file in data.train.files]))
    rows = own[np.linspace(0, len(own) - 1, min(len(own), NUM_ROWS)).astype(int)]
    batch = data.reader("train", tokenizer, 0).read(rows, np.zeros(len(rows), int))
    return float(batch["next_sentence_labels"].mean())
