"""Laws of the labels of pairs, from text to records, for any number and size of documents.

Each token occurs once in a text, so that it says which document and sentence it is from.
"""

import tempfile
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.data import build
from bert_gpu.data.config import DataConfig, InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.text import corpus
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer

SILENT = Console(quiet=True)
NUM_WORDS, FIRST_WORD = 2000, 5


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(NUM_WORDS))]
    path.write_text("\n".join(words))
    return str(path)


@pytest.fixture(scope="module")
def tokenizer(vocab_file):
    return WordPieceTokenizer(vocab_file)


def text_of(documents):
    """Text of documents, each a list of lengths of sentences; words are numbered from w0 on. A
    sentence of length 0 has a character that cleaning removes.
    """
    number, lines = 0, []
    for document in documents:
        for length in document:
            lines.append(" ".join(f"w{number + i}" for i in range(length)) or "\x07")
            number += length
        lines.append("")
    return "\n".join(lines)


def read_pairs(records):
    """Yield the two segments of each compact record, arrays of token numbers, and its label."""
    for serialized in records.read(np.arange(len(records))):
        feature = tf.train.Example.FromString(serialized).features.feature
        ids = np.array(feature["input_ids"].int64_list.value)
        start = feature["starts"].int64_list.value[1]
        segments = [part[part >= FIRST_WORD] - FIRST_WORD for part in (ids[:start], ids[start:])]
        yield *segments, feature["next_sentence_labels"].int64_list.value[0]


def build_data(folder, documents, vocab_file, **settings):
    (folder / "in.txt").write_text(text_of(documents))
    config = DataConfig(
        input_file=f"{folder}/in.txt",
        output_file=f"{folder}/out/x.tfrecord",
        vocab_file=vocab_file,
        num_workers=1,
        masking="dynamic",
        **settings,
    )
    made, *_ = build.run_job(build.open_job(config))
    return made, Dataset(InputConfig(input_file=f"{folder}/out"))


def check_labels(documents, data, made, objective, num_tokens):
    """The law, and the shares in dataset.json against those of the records."""
    sentences = [length for document in documents for length in document if length]
    document_of = np.repeat(np.arange(len(documents)), [sum(each) for each in documents])
    sentence_of = np.repeat(np.arange(len(sentences)), sentences)
    of_split, labels, used = {}, [], 0
    for split in ("train", "validation"):
        pairs = list(read_pairs(getattr(data, split))) if getattr(data, split) else []
        of_split[split] = set()
        for first, second, label in pairs:
            assert len(first) and len(second)
            for segment in (first, second):
                assert (np.diff(segment) == 1).all()
                assert len(set(document_of[segment])) == 1
                of_split[split].add(document_of[segment[0]])
            same = document_of[first[0]] == document_of[second[0]]
            assert same == (label == 0 or objective == "sop")
            if same:
                before, after = (second, first) if label else (first, second)
                assert before[-1] < after[0]
                is_whole = len(first) + len(second) + 3 < made.max_seq_length
                assert after[0] == before[-1] + 1 or not is_whole
                assert sentence_of[after[0]] - sentence_of[before[-1]] <= 1 or not is_whole
            labels.append(label)
            used += len(first) + same * len(second)
    assert not of_split["train"] & of_split["validation"]
    assert made.label_1_share == pytest.approx(np.mean(labels))
    assert made.used_token_share == pytest.approx(used / num_tokens(of_split["validation"]))


SENTENCE = st.one_of(st.integers(0, 12), st.integers(13, 60))
DOCUMENT = st.one_of(
    st.lists(SENTENCE, min_size=1, max_size=6), st.lists(SENTENCE, min_size=25, max_size=60)
)


@hypothesis.settings(max_examples=20)
@hypothesis.given(
    documents=st.lists(DOCUMENT, min_size=2, max_size=8),
    objective=st.sampled_from(["nsp", "nsp", "sop"]),
    window=st.sampled_from([300, 2000, 8_000_000]),
    validation_share=st.sampled_from([None, 0.0, 0.4]),
    seed=st.integers(0, 99),
)
def test_labels_are_true_for_any_documents(
    vocab_file, documents, objective, window, validation_share, seed
):
    hypothesis.assume(sum(map(sum, documents)) <= NUM_WORDS)
    settings = dict(objective=objective)
    settings |= dict(validation_share=validation_share, random_seed=seed, dupe_factor=2)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "WINDOW_BYTES", window)
        try:
            made, data = build_data(
                Path(folder), documents, vocab_file, max_seq_length=32, **settings
            )
        except UserError as error:
            few = len(documents) < 4 and validation_share and objective == "nsp"
            small = sum(map(sum, documents)) < 3 or sum(sum(each) > 0 for each in documents) < 3
            assert few or small, error
            return

        def num_tokens(held_out):
            return sum(sum(d) * (1 if i in held_out else 2) for i, d in enumerate(documents))

        check_labels(documents, data, made, objective, num_tokens)


@pytest.mark.parametrize("num_documents, share", [(1, None), (2, 0.1), (3, 0.5)])
def test_too_few_documents_for_pairs(tmp_path, vocab_file, num_documents, share):
    documents = [[9] * 40] * num_documents
    with pytest.raises(UserError, match="one document|two documents each") as caught:
        build_data(tmp_path, documents, vocab_file, validation_share=share)
    assert "full_sentences" in str(caught.value) and not (tmp_path / "out").exists()
    made, _ = build_data(tmp_path, documents, vocab_file, objective="sop")
    assert made.num_train_instances


def test_one_document_left_by_cleaning_is_too_few_for_pairs(tmp_path, vocab_file):
    """Sentences of unknown pieces have many tokens per character."""
    documents = [[9] * 9] * 5
    settings = dict(max_tokens_per_character=0.3, validation_share=0.0)
    (tmp_path / "in.txt").write_text("\n\n".join(["x y z"] * 4 + [text_of(documents[:1])]))
    flags = dict(input_file=f"{tmp_path}/in.txt", output_file=f"{tmp_path}/out/x.tfrecord")
    for overwrite in (False, True):
        config = DataConfig(**flags, vocab_file=vocab_file, **settings)
        with pytest.raises(UserError, match="fewer than two documents are left to train on"):
            build.run_job(build.open_job(config, overwrite))
        assert not list(tmp_path.glob("out/*.tfrecord"))


def test_a_document_alone_in_its_window_draws_from_at_most_a_megabyte_of_the_next(monkeypatch):
    from bert_gpu.data import shards

    monkeypatch.setattr(shards, "LENT_BYTES", 100)
    builder = shards.ShardBuilder(DataConfig(), "none", None)
    long = [b"x" * 30] * 9
    for documents, sizes in (([long], [3]), ([long[:2], long], [2, 1]), ([[b"y" * 500]], [1])):
        monkeypatch.setattr(builder, "_read", lambda window, made=documents: (made, []))
        assert [len(document) for document in builder._first_documents(None)] == sizes
