"""Texts or minimal pairs -> how well models predict the words.

A pseudo-log-likelihood (Salazar et al. 2020) is the sum, over the tokens of a text, of the log
probability of the token when it alone is masked; the variant "within word" (Kauf and Ivanova 2023)
also masks the later tokens of its word. Each masked copy of a text is a row, made only when its
batch is computed.

Legend: N texts, T tokens of all texts, C masked copies, M masked positions, B batch, S sequence, H
hidden.
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.console import LOG, Console
from bert_gpu.base.errors import UserError
from bert_gpu.base.signals import sigterm_unwinds
from bert_gpu.base.standard_input import STANDARD_INPUT
from bert_gpu.data.masking import MaskingSpec, mask_rows
from bert_gpu.data.random_bits import derive_key, row_keys
from bert_gpu.inference.arrays import PartialFile
from bert_gpu.inference.config import EvaluateConfig
from bert_gpu.inference.embeddings import check_output
from bert_gpu.inference.lines import empty_input, windows
from bert_gpu.inference.masked_words import in_parts, open_masked
from bert_gpu.inference.opened import ROWS
from bert_gpu.interop.models import find_model
from bert_gpu.model.heads import cross_entropy_and_correct, mlm_logits
from bert_gpu.runs.marks import find_marks, hours_at
from bert_gpu.text.formats.cells import text_of
from bert_gpu.text.framing import Framed, frame

SHARE = 0.15  # of the tokens, which mlm_loss and mlm_accuracy are about
MASKS = dict(masked_lm_prob=SHARE, do_whole_word_mask=False, max_ngram_size=1)
PAIRS = re.compile(r"(.+)\.jsonl(\.gz|\.zst)?")  # names of files of minimal pairs
PAIR = '{"sentence_good": "...", "sentence_bad": "..."}'
# Sentences whose pseudo-log-likelihoods, in nats, differ by less are equal: other batches may
# change them by as much.
LEAST_DIFFERENCE = 1e-4


class Scorer:
    """A model that scores texts. config: its model is not used. path: of the model."""

    def __init__(self, config: EvaluateConfig, path: str) -> None:
        self.opened = opened = open_masked(dataclasses.replace(config, model=path))
        self.max_seq_length = opened.config.num_positions
        self.key = derive_key(config.seed, "evaluate")
        hidden = tf.TensorSpec([None, None, opened.config.hidden_size], opened.dtype)
        self.encode = opened.compile(opened.hidden, *ROWS)
        self.score = opened.compile(self._score, hidden, *2 * [tf.TensorSpec([None], tf.int32)])
        most = round(self.max_seq_length * SHARE) + 1
        self.masks = MaskingSpec.from_settings(MASKS, most, opened.tokenizer)

    def frame(self, texts: Sequence[str | bytes]) -> tuple[Framed, np.ndarray]:
        """Return the rows of texts, cut to the model's positions, and which were cut, (N,) bool."""
        tokenizer = self.opened.tokenizer
        is_cut = np.diff(tokenizer.tokenize(texts)[1]) > self.max_seq_length - 2
        return frame(tokenizer, texts, None, self.max_seq_length), is_cut

    def masked_words(self, rows: Framed, first_line: int) -> np.ndarray:
        """Return (3,): the sum of the losses of masked words, the number of those for which no
        other word is likelier, and their number. The masks of a row follow from the seed and the
        index of its line, first_line + its index in `rows`.
        """
        totals = np.zeros(3)
        for indices, length, num_rows in self.opened.batches(rows.lengths, self.max_seq_length):
            batch = self.opened.pad(rows.ids, rows.splits, indices, length, num_rows)
            keys = row_keys(self.key, first_line + np.resize(indices, num_rows))
            masked = mask_rows(*batch, None, keys, self.masks)
            is_real = masked["masked_lm_weights"] > 0
            is_real[len(indices) :] = False
            positions = masked["masked_lm_positions"] + np.arange(num_rows)[:, None] * length
            labels = masked["masked_lm_ids"][is_real]
            scored = self._scored(masked["input_ids"], batch[1], positions[is_real], labels)
            totals += *scored.sum(1), len(labels)
        return totals

    def pseudo_log_likelihoods(self, rows: Framed) -> np.ndarray:
        """Return float64 (2, N): of each row the pseudo-log-likelihood, and that within words."""
        tokens = np.arange(len(rows.ids))
        owners = np.repeat(np.arange(len(rows.lengths)), rows.lengths)
        columns = tokens - rows.splits[owners]
        is_inner = (columns > 0) & (columns < rows.lengths[owners] - 1)
        is_start = self.opened.tokenizer.word_starts(rows.ids) | ~is_inner | (columns == 1)
        starts = np.append(np.flatnonzero(is_start), len(tokens))
        ends = starts[np.searchsorted(starts, tokens, side="right")]
        copies = np.stack([owners, columns, columns + 1])[:, is_inner]
        alone = self._log_probabilities(rows, *copies)
        size = (ends - tokens)[is_inner]
        copies[2] += size - 1
        within = alone.copy()
        within[size > 1] = self._log_probabilities(rows, *copies[:, size > 1])
        num_rows = len(rows.lengths)
        return np.stack([np.bincount(copies[0], part, num_rows) for part in (alone, within)])

    def _log_probabilities(
        self, rows: Framed, owners: np.ndarray, begins: np.ndarray, ends: np.ndarray
    ) -> np.ndarray:
        """Return float64 (C,): for each copy of a row, whose index is in `owners`, with its tokens
        from `begins` to before `ends` masked, the log probability of the first of these. All (C,).
        """
        result = np.zeros(len(owners))
        lengths = rows.lengths[owners]
        for indices, length, num_rows in self.opened.batches(lengths, self.max_seq_length):
            copies = owners[indices]
            input_ids, num_tokens = self.opened.pad(rows.ids, rows.splits, copies, length, num_rows)
            own = np.arange(len(indices))
            first, last = begins[indices], ends[indices]
            labels = input_ids[own, first]
            columns = np.arange(length)
            is_masked = (columns >= first[:, None]) & (columns < last[:, None])
            input_ids[: len(indices)][is_masked] = self.opened.tokenizer.mask_id
            result[indices] = -self._scored(input_ids, num_tokens, own * length + first, labels)[0]
        return result

    def _scored(
        self,
        input_ids: np.ndarray,
        num_tokens: np.ndarray,
        positions: np.ndarray,
        labels: np.ndarray,
    ) -> np.ndarray:
        """Return float64 (2, M): the losses of labels (M,) at positions (M,) of the B * S of a
        batch, and 1 where no other piece is likelier, else 0.
        """
        parts = [np.zeros((2, 0))]
        hidden = self.encode(input_ids, num_tokens)
        parts += map(np.stack, in_parts(self.score, hidden, positions, labels))
        return np.concatenate(parts, 1)

    def _score(
        self, hidden: tf.Tensor, positions: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return two float32 (M,) as `_scored` does. hidden: (B, S, H). positions, labels: (M,)."""
        opened = self.opened
        flat = tf.reshape(hidden, [1, -1, opened.config.hidden_size])
        logits = mlm_logits(opened.weights, flat, positions[None], opened.config, opened.dtype)[0]
        return cross_entropy_and_correct(logits, labels)


def evaluate(config: EvaluateConfig, console: Console = LOG) -> list[dict[str, object]]:
    """Return the scores of each model, as entries of --output, and write them to it. Raises
    UserError for a wrong setting or a wrong file; then no file is left.
    """
    path = config.input
    if path is None or path == STANDARD_INPUT:
        raise UserError("a file or a folder is needed, such as --input=texts.txt", setting="input")
    if config.output is not None:
        check_output(config.output, config.overwrite)
    files = find_pairs(path)
    models = list(find_models(config.model))
    for model, _ in models:  # a wrong name is found before the models ahead of it are scored
        find_model(model, "model")
    score = (
        functools.partial(score_pairs, paths=files)
        if files
        else functools.partial(score_texts, path=path)
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(sigterm_unwinds())
        file = stack.enter_context(PartialFile(config.output)) if config.output else None
        result = [place | score(Scorer(config, model), console=console) for model, place in models]
        if file is not None:
            content = dict(input=path, seed=config.seed, models=result)
            file.append(json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")
    return result


def find_models(names: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (path, {"model": path}) of each model that --model names; for those of a folder marks/
    also "mark", the share of the run, and "hours" of training until then, None = not known.
    """
    for name in map(str.strip, names.split(",")):
        hours = hours_at(name)
        marks = find_marks(name).items()
        yield from [
            (path, dict(model=path, mark=mark, hours=hours.get(mark))) for mark, path in marks
        ] or [(name, dict(model=name))]


def find_pairs(path: str) -> list[str]:
    """Return the files of minimal pairs that a path names, [] for a text. Raises UserError for a
    folder without one.
    """
    if not os.path.isdir(path):
        return [path] if PAIRS.fullmatch(os.path.basename(path)) else []
    names = sorted(filter(PAIRS.fullmatch, os.listdir(path)))
    if not names:
        raise UserError("has no file NAME.jsonl of pairs", setting="input", value=path)
    return [os.path.join(path, name) for name in names]


def score_texts(scorer: Scorer, path: str, console: Console) -> dict[str, object]:
    """Return the scores of a model on the lines of a text file. A text that was cut to the model's
    positions counts per token, but not per character.
    """
    totals = np.zeros(11)
    num_lines = 0
    for lines in windows(path, console, scorer.opened.path):
        rows, is_cut = scorer.frame(lines)
        sums = scorer.pseudo_log_likelihoods(rows)
        sizes = rows.lengths - 2
        characters = np.array([len(line.decode()) for line in lines])[~is_cut]
        totals += [
            *[(sizes > 0).sum(), sizes.sum(), is_cut.sum(), characters.sum()],
            *scorer.masked_words(rows, num_lines),
            *sums.sum(1),
            *sums[:, ~is_cut].sum(1),
        ]
        num_lines += len(lines)
    texts, tokens, cut, whole, loss, correct, masked, *likelihoods = totals.tolist()
    if not tokens:
        raise empty_input(path)
    names = ("pll_per_token", "word_pll_per_token", "pll_per_character", "word_pll_per_character")
    counts = (tokens, tokens, whole, whole)
    return (
        dict(texts=int(texts), tokens=int(tokens), cut=int(cut))
        | dict(mlm_loss=loss / masked, mlm_accuracy=correct / masked)
        | {
            n: total / count if count else None
            for n, total, count in zip(names, likelihoods, counts, strict=True)
        }
    )


def score_pairs(scorer: Scorer, paths: Sequence[str], console: Console) -> dict[str, object]:
    """Return the scores of a model on minimal pairs: the share of the pairs of each phenomenon in
    which the good sentence has the higher pseudo-log-likelihood, and the mean over the phenomena. A
    tie counts one half.
    """
    # {phenomenon: pairs, ties, and pairs that are right by each of the two pseudo-log-likelihoods}
    totals: dict[str, np.ndarray] = {}
    num_cut = 0
    for path in paths:
        num_lines = 0
        for lines in windows(
            path, console, f"{scorer.opened.path} {os.path.basename(path)}", has_objects=True
        ):
            pairs = [pair_of(line, path, num_lines + n) for n, line in enumerate(lines, 1)]
            rows, is_cut = scorer.frame([text for pair in pairs for text in pair[1:]])
            good, bad = np.moveaxis(scorer.pseudo_log_likelihoods(rows).reshape(2, -1, 2), 2, 0)
            is_tie = np.abs(good - bad) < LEAST_DIFFERENCE
            right = np.where(is_tie, 0.5, good > bad)
            for (name, *_), tie, *values in zip(pairs, is_tie[0], *right, strict=True):
                totals[name] = totals.get(name, np.zeros(4)) + [1, tie, *values]
            num_cut += int(is_cut.sum())
            num_lines += len(lines)
        if not num_lines:
            raise empty_input(path)
    phenomena = {
        name: dict(
            pairs=int(n), ties=int(ties), pll_accuracy=right / n, word_pll_accuracy=word_right / n
        )
        for name, (n, ties, right, word_right) in totals.items()
    }
    means = {
        name: float(np.mean([scores[name] for scores in phenomena.values()]))
        for name in ("pll_accuracy", "word_pll_accuracy")
    }
    num_pairs, num_ties = (int(sum(total[i] for total in totals.values())) for i in (0, 1))
    return dict(pairs=num_pairs, ties=num_ties, cut=num_cut, **means, phenomena=phenomena)


def pair_of(line: bytes, path: str, number: int) -> tuple[str, str, str]:
    """Return (phenomenon, good sentence, bad sentence) of a line of a file of minimal pairs. The
    phenomenon is its UID, or the name of the file. Raises UserError, which names the line.
    """
    try:
        record = json.loads(line)
        good, bad = (text_of(str.strip(record[key])) for key in ("sentence_good", "sentence_bad"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(
            "is no minimal pair",
            f"write an object of JSON, {PAIR}",
            where=f"{path}, line {number:,}",
        ) from None
    return str(record.get("UID", PAIRS.fullmatch(os.path.basename(path))[1])), good, bad  # type: ignore[index]
