"""The input pipeline with one thread, for the benchmark of data: tokens per second, and the time to
the first batch far into the records.

    python data_reader.py FOLDER        # prints one line of JSON
"""

import itertools
import json
import sys
import time

import tensorflow as tf

from bert_gpu.data import pipeline
from bert_gpu.data.config import InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer


def main(folder):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    dataset = Dataset(InputConfig(input_file=f"{folder}/*.tfrecord"))

    def batches(position):
        reader = dataset.reader("train", WordPieceTokenizer(f"{folder}/vocab.txt"), 1)
        return len(reader), pipeline.training_batches(
            reader, batch_size=256, position=position, shuffle=True
        )

    num_records, first_batches = batches(0)
    next(first_batches)
    started, num_tokens = time.perf_counter(), 0
    for batch in itertools.islice(first_batches, 60):
        num_tokens += int(batch["input_mask"].sum())
    seconds = time.perf_counter() - started
    started = time.perf_counter()
    next(batches(10**6)[1])
    seek_seconds = time.perf_counter() - started
    result = dict(tokens_per_second=num_tokens / seconds, seek_seconds=seek_seconds)
    print(json.dumps(result | dict(num_records=num_records)))


if __name__ == "__main__":
    main(sys.argv[1])
