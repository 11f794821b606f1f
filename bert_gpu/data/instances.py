"""Documents of token ids -> next-sentence instances, as index ranges into the documents' tokens.

Both halves of an instance are runs of consecutive tokens, also after truncation (which only moves their ends), so an instance is
five numbers: where A begins and ends, where B begins and ends, and whether B is random. Tokens are copied once, when rows are made.
The semantics are those of `create_instances_from_document` in google-research/bert, create_pretraining_data.py; the loop is
sequential by nature (each draw decides where the next begins) and therefore compiled with Numba.

Legend: N instances, S row length.
"""

import dataclasses

import numba
import numpy as np

from bert_gpu.data.chance import draw, draw_integer, draw_share


@dataclasses.dataclass(frozen=True)
class Documents:
    """Tokenized documents. Sentences without tokens and documents without sentences are left out when made by `from_sentences`.

    ids: (T,) int32 token ids of all sentences, one after another.
    sentence_splits: sentence i is ids[sentence_splits[i] : sentence_splits[i + 1]].
    document_splits: document d has the sentences document_splits[d] : document_splits[d + 1].
    """

    ids: np.ndarray
    sentence_splits: np.ndarray
    document_splits: np.ndarray

    @classmethod
    def from_sentences(cls, ids, sentence_splits, sentences_per_document):
        """From a tokenizer's flat output and the number of sentences of each document."""
        has_tokens = np.diff(sentence_splits) > 0
        document_of = np.repeat(np.arange(len(sentences_per_document)), sentences_per_document)
        kept = np.bincount(document_of[has_tokens], minlength=len(sentences_per_document))
        splits = np.concatenate([[0], sentence_splits[1:][has_tokens]]).astype(np.int64)
        document_splits = np.concatenate([[0], np.cumsum(kept[kept > 0])]).astype(np.int64)
        return cls(ids, splits, document_splits)

    def __len__(self):
        return len(self.document_splits) - 1


def nsp_instances(documents, chosen, pool, *, max_seq_length, short_seq_prob, key):
    """One pass over the documents `chosen`: (N, 5) int64 rows [a_start, a_end, b_start, b_end, is_random_next].

    Args:
      documents: Documents.
      chosen: (C,) document numbers to make instances of.
      pool: (D,) document numbers from which the random second halves are drawn.
      max_seq_length: S; A and B together get S - 3 tokens.
      short_seq_prob: share of documents (per pass) that aim at a random shorter length.
      key: 64-bit key of all draws of this pass.
    """
    args = (np.asarray(chosen, np.int64), np.asarray(pool, np.int64), max_seq_length - 3, float(short_seq_prob))
    return _nsp_instances(documents.sentence_splits, documents.document_splits, *args, np.array([key], np.uint64))


@numba.njit(cache=True)
def _nsp_instances(sentence_splits, document_splits, chosen, pool, max_tokens, short_seq_prob, state):
    num_sentences = 0
    for document in chosen:
        num_sentences += document_splits[document + 1] - document_splits[document]
    instances = np.empty((num_sentences, 5), np.int64)
    count = 0
    for document in chosen:
        first, last = document_splits[document], document_splits[document + 1]
        target = max_tokens
        if draw_share(state) < short_seq_prob:
            target = draw_integer(state, 2, max_tokens)
        chunk_start, sentence = first, first
        while sentence < last:
            length = sentence_splits[sentence + 1] - sentence_splits[chunk_start]
            if sentence == last - 1 or length >= target:
                num_in_chunk = sentence + 1 - chunk_start
                split = chunk_start + 1
                if num_in_chunk >= 2:
                    split = chunk_start + draw_integer(state, 1, num_in_chunk - 1)
                a_start, a_end = sentence_splits[chunk_start], sentence_splits[split]
                is_random = num_in_chunk == 1 or draw_share(state) < 0.5
                if is_random:
                    other = _other_document(document, pool, state)
                    begin = draw_integer(state, document_splits[other], document_splits[other + 1] - 1)
                    end = begin + 1
                    wanted = target - (a_end - a_start)
                    while end < document_splits[other + 1] and sentence_splits[end] - sentence_splits[begin] < wanted:
                        end += 1
                    b_start, b_end = sentence_splits[begin], sentence_splits[end]
                    sentence = split - 1  # the chunk's unused sentences are put back
                else:
                    b_start, b_end = sentence_splits[split], sentence_splits[sentence + 1]
                a_start, a_end, b_start, b_end = _truncate(a_start, a_end, b_start, b_end, max_tokens, state)
                instances[count] = (a_start, a_end, b_start, b_end, np.int64(is_random))
                count += 1
                chunk_start = sentence + 1
            sentence += 1
    return instances[:count].copy()


@numba.njit(cache=True)
def _other_document(document, pool, state):
    """A random document of the pool, another one if ten tries find it."""
    other = document
    for _ in range(10):
        other = pool[draw_integer(state, 0, len(pool) - 1)]
        if other != document:
            break
    return other


@numba.njit(cache=True)
def _truncate(a_start, a_end, b_start, b_end, max_tokens, state):
    """Drops one token at a time from the longer side (a tie: B), at the front or the back by a coin."""
    while a_end - a_start + b_end - b_start > max_tokens:
        front = draw(state) >> np.uint64(63) == 1
        if a_end - a_start > b_end - b_start:
            if front:
                a_start += 1
            else:
                a_end -= 1
        elif front:
            b_start += 1
        else:
            b_end -= 1
    return a_start, a_end, b_start, b_end


def shuffle(rows, key):
    """Shuffles the rows of a 2-D array in place (Fisher-Yates), by a 64-bit key."""
    _shuffle(rows, np.array([key], np.uint64))


@numba.njit(cache=True)
def _shuffle(rows, state):
    for i in range(len(rows) - 1, 0, -1):
        j = draw_integer(state, 0, i)
        for column in range(rows.shape[1]):
            rows[i, column], rows[j, column] = rows[j, column], rows[i, column]


@numba.njit(cache=True)
def make_rows(ids, instances, max_seq_length, cls_id, sep_id):
    """Instances (N, 5) -> rows [CLS] A [SEP] B [SEP].

    Returns: input_ids (N, S) int32 padded with 0, lengths (N,) int32 of what is not padding, first_lengths (N,) int32 of
    [CLS] A [SEP], which is segment 0.
    """
    num_rows = len(instances)
    input_ids = np.zeros((num_rows, max_seq_length), np.int32)
    lengths, first_lengths = np.empty(num_rows, np.int32), np.empty(num_rows, np.int32)
    for row in range(num_rows):
        a_start, a_end, b_start, b_end = instances[row, 0], instances[row, 1], instances[row, 2], instances[row, 3]
        input_ids[row, 0] = cls_id
        position = 1
        for token in range(a_start, a_end):
            input_ids[row, position] = ids[token]
            position += 1
        input_ids[row, position] = sep_id
        position += 1
        first_lengths[row] = position
        for token in range(b_start, b_end):
            input_ids[row, position] = ids[token]
            position += 1
        input_ids[row, position] = sep_id
        lengths[row] = position + 1
    return input_ids, lengths, first_lengths
