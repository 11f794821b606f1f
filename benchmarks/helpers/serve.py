"""The child's side of a measurement: a process that holds one variant of training and runs steps on
request.

Settings come as JSON in the first argument; requests and answers are lines of JSON on stdin and
stdout, {"do": METHOD, ...} -> the result of the method. The process stays warm between requests, so
that variants can take turns without starting again. Nothing here imports a framework, because the
PyTorch peer has its own environment.
"""

import json
import os
import resource
import sys
import time

import numpy as np

VOCAB_SIZE = 30522
MASK, FIRST_WORD = 103, 1000


def num_predictions(length):
    """Return the number of masked tokens of a row, 15 % rounded up: 20 of 128, 77 of 512."""
    return -(-15 * length // 100)


def make_batch(rows, length, packed=False, vocab_size=VOCAB_SIZE, seed=0):
    """Return one batch of sentence pairs in Google's features, the same for every peer.

    A tenth of the rows, at least one, are shorter than the others, as with short_seq_prob, so that
    no peer can omit the padding mask. `packed` rows have neither padding nor labels: each holds
    several sequences, marked by sequence_ids, about four in 128 tokens.

    Returns: input_ids, input_mask, segment_ids (rows, length); masked_lm_positions, masked_lm_ids,
      masked_lm_weights (rows, P); next_sentence_labels (rows,), or sequence_ids (rows, length)
      instead. int32, weights float32.
    """
    rng = np.random.default_rng(seed)
    positions, predictions = np.arange(length), num_predictions(length)
    lengths = np.full(rows, length)
    if not packed:
        short = np.arange(rows) % 10 == min(9, rows - 1)
        lengths[short] = rng.integers(length // 4, length, short.sum())
    mask = (positions < lengths[:, None]).astype(np.int32)
    ids = rng.integers(FIRST_WORD, vocab_size, (rows, length)).astype(np.int32)
    masked_positions = np.sort(
        np.argsort(np.where(mask > 0, rng.random((rows, length)), 2.0), 1)[:, :predictions], 1
    ).astype(np.int32)
    masked = np.maximum(1, np.round(0.15 * lengths)).astype(int)
    weights = (np.arange(predictions) < masked[:, None]).astype(np.float32)
    targets = np.take_along_axis(ids, masked_positions, 1)
    np.put_along_axis(
        ids, np.where(weights > 0, masked_positions, masked_positions[:, :1]), MASK, 1
    )
    batch = dict(
        input_ids=ids * mask,
        input_mask=mask,
        segment_ids=(positions >= lengths[:, None] // 2).astype(np.int32) * mask,
        masked_lm_positions=masked_positions,
        masked_lm_ids=targets,
        masked_lm_weights=weights,
    )
    if packed:
        starts = rng.random((rows, length)) < 1 / 32
        starts[:, 0] = True
        return batch | dict(
            sequence_ids=np.cumsum(starts, 1).astype(np.int32), segment_ids=np.zeros_like(mask)
        )
    return batch | dict(next_sentence_labels=rng.integers(0, 2, rows).astype(np.int32))


class Trainer:
    """One variant of training. A peer implements `build` and `run`, and optionally `peak_bytes`,
    `matrix_rate` and `outside_products`.
    """

    OUT_OF_MEMORY = (MemoryError,)  # exceptions which mean that a batch does not fit

    def build(self, rows):
        """Prepare for steps of `rows` rows."""
        raise NotImplementedError

    def run(self, num_steps):
        """Run steps and wait for them; return the loss of the last one."""
        raise NotImplementedError

    def prepare(self, rows, warm=2):
        """Build and run the first steps, which trace and compile. Returns {"fits", "first_seconds",
        "step_seconds", "loss"}, or "error".
        """
        self.rows = rows
        try:
            self.build(rows)
            started = time.perf_counter()
            loss = self.run(1)
            first = time.perf_counter() - started
            for _ in range(warm):
                started = time.perf_counter()
                loss = self.run(1)
                self.step_seconds = time.perf_counter() - started
        except self.OUT_OF_MEMORY as error:
            return dict(fits=False, error=str(error)[:200])
        return dict(fits=True, first_seconds=first, step_seconds=self.step_seconds, loss=loss)

    def turn(self, seconds=0.0):
        """Run steps for about `seconds`, at least one. Returns {"step_seconds": mean of this turn,
        "steps", "loss"}.
        """
        return self.timed(max(1, round(seconds / self.step_seconds)))

    def timed(self, num_steps):
        started = time.perf_counter()
        loss = self.run(num_steps)
        self.step_seconds = (time.perf_counter() - started) / num_steps
        return dict(step_seconds=self.step_seconds, steps=num_steps, loss=loss)

    def peak_bytes(self):
        """Return the peak memory of this process: its resident set."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(kind):
    """Make kind(**settings) and answer requests until stdin ends. Output of libraries goes to
    stderr.
    """
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    trainer = kind(**json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), file=channel, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(trainer, request.pop("do"))(**request)
        print(json.dumps(answer), file=channel, flush=True)
