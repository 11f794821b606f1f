"""Converts arrays to tf.train.Example bytes and back.

Writing: compiled loops lay out protocol-buffer bytes for whole batches, because building
`tf.train.Example` objects in Python costs more than everything else in the job. Reading:
`tf.io.parse_example` reads the files of any writer.

Legend: N records, S row length, P predictions a row.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.compiled import compiled

STATIC = "static"  # records with Google's seven features, each of fixed length
# records with the features input_ids (without padding or masks), starts (the positions where
# segments or sequences begin), for pairs next_sentence_labels and, where the text marks words,
# word_starts (the positions where words begin)
COMPACT = "compact"

# {feature name in Google's create_pretraining_data.py: name with Model Garden's
# --use_v2_feature_names}
V2_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
MASKED_WORDS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


@dataclasses.dataclass(frozen=True)
class Schema:
    """The format of a record.

    kind: STATIC or COMPACT.
    max_seq_length, max_predictions_per_seq: tokens and predictions per row; 0 for COMPACT, whose
    records do not contain these numbers.
    has_next_sentence_labels: whether rows are pairs. is_packed: whether rows hold several
    sequences. v2_names: whether two features have Model Garden's v2 names.
    """

    kind: str
    max_seq_length: int
    max_predictions_per_seq: int
    has_next_sentence_labels: bool
    is_packed: bool = False
    v2_names: bool = False

    def shapes(self, max_seq_length: int) -> dict[str, list[int]]:
        """Return {feature: shape of its values in one row of a batch}, in the order in which the
        features are checked.
        """
        names = ["input_ids", "input_mask", "segment_ids", *["sequence_ids"] * self.is_packed]
        shapes = dict.fromkeys(names, [max_seq_length])
        if self.kind == STATIC:
            shapes |= dict.fromkeys(MASKED_WORDS, [self.max_predictions_per_seq])
        if self.has_next_sentence_labels:
            shapes["next_sentence_labels"] = []
        return shapes

    @property
    def features(self) -> set[str]:
        """The names of all features of a batch, including the features of masked words, which
        compact records get when they are read.
        """
        return {*self.shapes(self.max_seq_length), *MASKED_WORDS}

    def describe(self) -> str:
        """Return a phrase for messages that distinguishes this schema from others, such as "dynamic
        (compact) packed rows".
        """
        rows = (
            "pairs" if self.has_next_sentence_labels else "packed" if self.is_packed else "single"
        )
        if self.kind == COMPACT:
            return f"dynamic (compact) {rows} rows"
        names = ", v2 feature names" if self.v2_names else ""
        return (
            f"static {rows} rows of {self.max_seq_length} tokens and "
            f"{self.max_predictions_per_seq} predictions{names}"
        )


def sniff_schema(record: bytes) -> Schema:
    """Return the Schema of one serialized record, by its features. Raise ValueError for a missing
    feature.
    """
    example = tf.train.Example.FromString(record)
    sizes = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        sizes[name] = len(getattr(feature, kind).value) if kind else 0
    if "starts" in sizes and "input_ids" in sizes:
        is_pair = "next_sentence_labels" in sizes
        return Schema(COMPACT, 0, 0, has_next_sentence_labels=is_pair, is_packed=not is_pair)
    v2_names = "input_word_ids" in sizes
    names = {
        name: V2_NAMES[name] if v2_names and name in V2_NAMES else name
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    for name in (*names.values(), *MASKED_WORDS):
        if name not in sizes:
            raise ValueError(f"a record has no feature {name!r}")
    return Schema(
        kind=STATIC,
        max_seq_length=sizes[names["input_ids"]],
        max_predictions_per_seq=sizes["masked_lm_positions"],
        has_next_sentence_labels="next_sentence_labels" in sizes,
        is_packed="sequence_ids" in sizes,
        v2_names=v2_names,
    )


def parse_static(records: Sequence[bytes], schema: Schema) -> dict[str, np.ndarray]:
    """Parse N serialized records. Return {feature: array}: int64 (N, S) or (N, P);
    masked_lm_weights are float32 (N, P), and next_sentence_labels int64 (N,). The values are not
    checked here, but in checks.py.

    Packed rows also have sequence_ids (N, S): 1, 2, ... for the sequences of a row, 0 for padding.

    Raise tf.errors.InvalidArgumentError when a record does not fit the schema.
    """
    rename = V2_NAMES if schema.v2_names else {}
    spec = {
        name: tf.io.FixedLenFeature(shape, tf.float32 if "weights" in name else tf.int64)
        for name, shape in schema.shapes(schema.max_seq_length).items()
    }
    parsed = tf.io.parse_example(
        records, {rename.get(name, name): feature for name, feature in spec.items()}
    )
    return {name: parsed[rename.get(name, name)].numpy() for name in spec}


def parse_compact(
    records: Sequence[bytes], schema: Schema, max_seq_length: int
) -> dict[str, np.ndarray]:
    """Parse N serialized records of the compact schema. Return {feature: int64 array}.

    The features are input_ids, input_mask, segment_ids (N, S), padded with 0 to S = max_seq_length;
    next_sentence_labels (N,) for pairs, and sequence_ids (N, S) for packed rows; starts (N,), 1 if
    the start positions in the record rise from 0 to below its length, else 0; word_starts (N, S),
    1 where a word begins, 0 in a row that does not say it.

    Raise tf.errors.InvalidArgumentError when a record does not fit the schema or its row is longer
    than S.
    """
    spec = {
        name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
        for name in ("input_ids", "starts", "word_starts")
    }
    if schema.has_next_sentence_labels:
        spec["next_sentence_labels"] = tf.io.FixedLenFeature([], tf.int64)
    parsed = tf.io.parse_example(records, spec)
    ids, starts = parsed["input_ids"], parsed["starts"]
    lengths = np.diff(ids.row_splits)
    rows = np.repeat(np.arange(len(lengths)), np.diff(starts.row_splits))
    if len(lengths) and lengths.max() > max_seq_length:
        raise tf.errors.InvalidArgumentError(
            None, None, f"a row is longer than {max_seq_length} tokens"
        )
    is_token = np.arange(max_seq_length) < lengths[:, None]
    input_ids = np.zeros(is_token.shape, np.int64)
    input_ids[is_token] = ids.values.numpy()
    sequence_ids = count_starts(rows, starts.values.numpy(), is_token)
    is_sound = rise_from_0(rows, starts.values.numpy(), lengths).astype(np.int64)
    batch = dict(input_ids=input_ids, input_mask=is_token.astype(np.int64), starts=is_sound)
    words = parsed["word_starts"]
    of_words = np.repeat(np.arange(len(lengths)), np.diff(words.row_splits))
    counts = count_starts(of_words, words.values.numpy(), is_token)
    batch["word_starts"] = np.maximum(np.diff(counts, axis=1, prepend=0), 0)  # padding has count 0
    if schema.has_next_sentence_labels:
        batch["segment_ids"] = np.maximum(sequence_ids - 1, 0)
        batch["next_sentence_labels"] = parsed["next_sentence_labels"].numpy()
    else:
        batch["segment_ids"] = np.zeros_like(sequence_ids)
        batch["sequence_ids"] = sequence_ids
    return batch


def count_starts(rows: np.ndarray, starts: np.ndarray, is_token: np.ndarray) -> np.ndarray:
    """Return sequence_ids (N, S): for each token, how many sequences of its row start at or before
    it; 0 for padding.

    rows, starts: row and position of each start. is_token: (N, S) bool, False for padding.
    """
    is_inside = (starts >= 0) & (starts < is_token.shape[1])
    counts = np.zeros(is_token.shape, np.int64)
    np.add.at(counts, (rows[is_inside], starts[is_inside]), 1)
    return np.cumsum(counts, 1) * is_token


def rise_from_0(rows: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return (N,) bool: whether the start positions in a row rise from 0 to below the row's length.

    rows, starts: row (in rising order) and position of each start. lengths: (N,) lengths of the
    rows.
    """
    is_first = np.diff(rows, prepend=-1) > 0
    is_good = np.where(is_first, starts == 0, np.diff(starts, prepend=0) > 0)
    is_good &= starts < lengths[rows]
    has_start = np.bincount(rows, minlength=len(lengths)) > 0
    return has_start & (np.bincount(rows, ~is_good, len(lengths)) == 0)


def encode_examples(
    features: Mapping[str, np.ndarray | tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
    """Encode rows as serialized tf.train.Examples, whose features are sorted by name.

    Args:
      features: {name: (N, K) int32, int64 or float32 array}, where K may differ between features;
        or (values, splits), rows of integers of any lengths: row i is values[splits[i] : splits[i +
        1]].

    Returns (buffer, splits): record i is buffer[splits[i] : splits[i + 1]], uint8.
    """
    payloads = []
    payload_splits = []
    keys = []
    codes = []
    for name in sorted(features):
        feature = features[name]
        if not isinstance(feature, tuple):
            feature = feature.reshape(-1), np.arange(len(feature) + 1) * feature[:1].size
        values, splits = feature
        code = 2 if values.dtype == np.float32 else 3
        if code == 2:
            payload = values.view(np.uint8)
            splits = splits * values.itemsize
        else:
            kind = np.int32 if values.dtype == np.int32 else np.int64
            payload, splits = _pack_varints(
                values.astype(kind, copy=False), splits.astype(np.int64, copy=False)
            )
        payloads.append(payload)
        payload_splits.append(splits)
        keys.append(np.frombuffer(name.encode(), np.uint8))
        codes.append(code)
    bases = np.concatenate([[0], np.cumsum([len(payload) for payload in payloads])])[:-1]
    key_splits = np.concatenate([[0], np.cumsum([len(key) for key in keys])])
    starts = np.stack(
        [splits[:-1] + base for splits, base in zip(payload_splits, bases, strict=True)], axis=1
    )
    sizes = np.stack([np.diff(splits) for splits in payload_splits], axis=1)
    return _assemble(
        np.concatenate(payloads), starts, sizes, np.concatenate(keys), key_splits, np.array(codes)
    )


@compiled
def _varint_size(value: int | np.uint64) -> int:
    size = 1
    value = np.uint64(value)
    while value >= np.uint64(128):
        value >>= np.uint64(7)
        size += 1
    return size


@compiled
def _put_varint(buffer: np.ndarray, offset: int, value: int | np.uint64) -> int:
    value = np.uint64(value)
    while value >= np.uint64(128):
        buffer[offset] = np.uint8((value & np.uint64(127)) | np.uint64(128))
        value >>= np.uint64(7)
        offset += 1
    buffer[offset] = np.uint8(value)
    return offset + 1


@compiled
def _pack_varints(values: np.ndarray, splits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encode rows of integers as protocol-buffer varints; row i is values[splits[i] : splits[i +
    1]]. Return (the bytes, uint8; the offset of each row in the bytes).
    """
    bits = values.dtype.type(0)
    for value in values:
        bits |= value
    # no value has more bytes than `bits`
    buffer = np.empty(_varint_size(bits) * len(values), np.uint8)
    byte_splits = np.zeros(len(splits), np.int64)
    offset = 0
    for row in range(len(splits) - 1):
        for i in range(splits[row], splits[row + 1]):
            offset = _put_varint(buffer, offset, values[i])
        byte_splits[row + 1] = offset
    return buffer[:offset], byte_splits


@compiled
def _assemble(
    payload: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    keys: np.ndarray,
    key_splits: np.ndarray,
    codes: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Wrap the encoded values of N records x F features in tf.train.Example's nested messages,
    Example > Features > map entry > Feature > list. Return (the bytes, uint8; the offset of each
    record in them).
    """
    num_records, num_features = sizes.shape
    entry_sizes = np.empty((num_records, num_features), np.int64)
    splits = np.zeros(num_records + 1, np.int64)
    features_sizes = np.zeros(num_records, np.int64)
    for record in range(num_records):
        for feature in range(num_features):
            key_size = key_splits[feature + 1] - key_splits[feature]
            list_size = 1 + _varint_size(sizes[record, feature]) + sizes[record, feature]
            feature_size = 1 + _varint_size(list_size) + list_size
            entry = (
                1
                + _varint_size(key_size)
                + key_size
                + 1
                + _varint_size(feature_size)
                + feature_size
            )
            entry_sizes[record, feature] = entry
            features_sizes[record] += 1 + _varint_size(entry) + entry
        splits[record + 1] = (
            splits[record] + 1 + _varint_size(features_sizes[record]) + features_sizes[record]
        )
    buffer = np.empty(splits[-1], np.uint8)
    offset = 0
    for record in range(num_records):
        buffer[offset] = 0x0A  # tag of Example.features
        offset = _put_varint(buffer, offset + 1, features_sizes[record])
        for feature in range(num_features):
            key_size = key_splits[feature + 1] - key_splits[feature]
            size = sizes[record, feature]
            list_size = 1 + _varint_size(size) + size
            buffer[offset] = 0x0A  # tag of Features.feature, a map entry
            offset = _put_varint(buffer, offset + 1, entry_sizes[record, feature])
            buffer[offset] = 0x0A  # tag of the map entry's key, the feature's name
            offset = _put_varint(buffer, offset + 1, key_size)
            buffer[offset : offset + key_size] = keys[key_splits[feature] : key_splits[feature + 1]]
            offset += key_size
            buffer[offset] = 0x12  # tag of the map entry's value, the Feature
            offset = _put_varint(buffer, offset + 1, 1 + _varint_size(list_size) + list_size)
            buffer[offset] = np.uint8(codes[feature] << 3 | 2)  # tag of float_list or int64_list
            offset = _put_varint(buffer, offset + 1, list_size)
            buffer[offset] = 0x0A  # tag of the list's packed values
            offset = _put_varint(buffer, offset + 1, size)
            start = starts[record, feature]
            buffer[offset : offset + size] = payload[start : start + size]
            offset += size
    return buffer, splits
