"""Checks the next-sentence labels of data sets of earlier versions, whose dataset.json lacks the
shares of pairs (manifest.SHARES).

Earlier versions drew a "random" second segment from the first segment's own document when no other
document was in the same window of text, and gave every pair made from a long line a random second
segment. A row does not say which document it is from; but a data set with fewer than two training
documents for each window must have had a window with only one.
"""

import numpy as np

from bert_gpu.data.dataset import Dataset
from bert_gpu.data.manifest import Manifest
from bert_gpu.data.shards import is_usual
from bert_gpu.text.tokenizers.wordpiece import Tokenizer

NUM_ROWS = 4000  # size of the sample of rows, taken from all over the data


def label_warnings(data: Dataset, tokenizer: Tokenizer | None) -> list[str]:
    """Return a list with a warning for the first folder whose next-sentence labels are wrong, which
    its dataset.json or a sample of its rows shows; [] without such a folder.
    """
    for folder, info in data.infos.items():
        if info is None or info.objective != "nsp" or info.label_1_share is not None:
            continue
        random = random_share(data, info.paths(folder, "train"), tokenizer)
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


def has_lone_documents(info: Manifest) -> bool:
    """Return whether a data set has fewer than two training documents for each window of text."""
    num_bytes = sum(size for _, size, _ in info.inputs)
    num_windows = max(1, round(num_bytes / (info.settings["window_megabytes"] * 1e6)))
    num_documents = info.num_documents - (info.num_validation_instances > 0)
    return num_documents < 2 * num_windows


def random_share(data: Dataset, paths: list[str], tokenizer: Tokenizer | None) -> float:
    """Return the share of rows with label 1 (random second segment), among up to NUM_ROWS training
    rows of the files in `paths`.
    """
    is_sampled = [file.path in paths for file in data.train.files]
    indices = np.flatnonzero(np.repeat(is_sampled, [len(file) for file in data.train.files]))
    rows = indices[np.linspace(0, len(indices) - 1, min(len(indices), NUM_ROWS)).astype(int)]
    batch = data.reader("train", tokenizer, 0).read(rows, np.zeros(len(rows), int))
    return float(batch["next_sentence_labels"].mean())
