"""The whole job on random documents, for every objective: what is read back is the text, and the
summary is right.
"""

import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.data import build
from bert_gpu.data.config import DataConfig, InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.text.tokenizers.open import open_tokenizer

LENGTH = 32
QUIET = Console(quiet=True)
# the last has no token
WORDS = [
    "the",
    "sea",
    "old",
    "yesterday",
    "unquestionably",
    "Zürich",
    "42",
    ",",
    ".",
    "木",
    "\u200b",
]

sentence = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
documents = st.lists(st.lists(sentence, max_size=6), max_size=6)
HARD = [
    [""],
    ["sea"],
    ["the old sea"],
    [" ".join(["sea", "old", "the", "42"] * 2500)],
    ["\u200b"],
    ["the sea .", "the old sea ."],
]


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory, sample_text):
    """{tokenization: file}, learnt by the job itself."""
    found = {}
    for tokenization in ("WordPiece", "SentencePiece"):
        folder = tmp_path_factory.mktemp(tokenization)
        make(folder, sample_text, vocab_size=500, tokenization=tokenization)
        found[tokenization] = str(
            folder / ("vocab.txt" if tokenization == "WordPiece" else "sentencepiece.model")
        )
    return found


def make(folder, text, **changes):
    base = dict(
        input_file=str(text),
        output_file=f"{folder}/x.tfrecord",
        max_seq_length=LENGTH,
        dupe_factor=1,
        validation_share=0.0,
    )
    return build.run_job(build.open_job(DataConfig(**base | changes)))


def read_back(folder):
    """(batch of all rows, their ids before masking, the tokenizer)."""
    data = Dataset(InputConfig(input_file=f"{folder}/*.tfrecord"))
    tokenizer = open_tokenizer(f"{folder}/{data.info.vocab_file}", True)
    reader = data.reader("train", tokenizer, 1)
    batch = reader.read(np.arange(len(reader)), np.zeros(len(reader), int))
    ids = batch["input_ids"].copy()
    rows, columns = np.nonzero(batch["masked_lm_weights"] > 0)
    ids[rows, batch["masked_lm_positions"][rows, columns]] = batch["masked_lm_ids"][rows, columns]
    return batch, ids, tokenizer


def tokens_of(texts, tokenizer):
    """The ids of each document that has any, by the tokenizer alone."""
    ids = [tokenizer.tokenize(document)[0].tolist() for document in texts if document]
    return [document for document in ids if document]


def is_run(part, whole):
    """Whether the list `part` stands somewhere in the list `whole`."""
    return any(whole[i : i + len(part)] == part for i in range(len(whole) - len(part) + 1))


def check_masks(batch, ids, tokenizer):
    real = batch["masked_lm_weights"] > 0
    special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id]
    assert not np.isin(batch["masked_lm_ids"][real], special).any()
    lengths = batch["input_mask"].sum(1)
    assert (batch["masked_lm_positions"] < lengths[:, None])[real].all()
    maskable = (~np.isin(ids, special) & (batch["input_mask"] > 0)).sum(1)
    wanted = np.minimum(
        np.maximum(1, np.round(lengths * 0.15)),
        np.minimum(maskable, batch["masked_lm_weights"].shape[1]),
    )
    assert (real.sum(1) == wanted).all()


@pytest.mark.parametrize("masking", ["static", "dynamic"])
@pytest.mark.parametrize("objective", ["nsp", "sop", "full_sentences", "packed"])
def test_any_text_comes_back(tmp_path_factory, vocabularies, objective, masking):
    @settings(
        max_examples=2,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(documents)
    @example(HARD)
    @example([["sea"]])
    @example([[]])
    def check(texts):
        folder = tmp_path_factory.mktemp("job")
        text = folder / "text.txt"
        text.write_text(
            "\n\n".join("\n".join(filter(str.strip, document)) for document in texts) + "\n"
        )
        tokenizer = open_tokenizer(vocabularies["WordPiece"], True)
        expected = tokens_of(texts, tokenizer)
        is_tiny = all(len(document) < 2 for document in expected)
        arguments = dict(
            vocab_file=vocabularies["WordPiece"],
            objective=objective,
            masking=masking,
            order="as_is",
        )
        if not expected:
            with pytest.raises(UserError, match="text.txt: has no"):
                make(folder / "out", text, **arguments)
            assert not (folder / "out").exists()
            return
        if len(expected) < (2 if objective == "nsp" else 1) or objective == "sop" and is_tiny:
            with contextlib.suppress(UserError):  # a lone document, or tokens without a neighbour
                make(folder / "out", text, **arguments)
            return
        manifest, counts, _ = make(folder / "out", text, **arguments)
        batch, ids, _ = read_back(folder / "out")
        assert counts.num_tokens == sum(map(len, expected)) == manifest.num_tokens
        assert counts.num_unknown == sum(
            token == tokenizer.unk_id for document in expected for token in document
        )
        assert counts.num_instances == manifest.num_train_instances == len(ids)
        assert counts.num_row_tokens == batch["input_mask"].sum()
        check_masks(batch, ids, tokenizer)
        frame = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id)
        if objective in ("full_sentences", "packed"):
            found = [token for row in ids.tolist() for token in row if token not in frame]
            assert found == [token for document in expected for token in document], (
                "every token once, in the order of the text"
            )
            if objective == "packed" and len(ids) > 1:
                assert batch["input_mask"][:-1].mean() > 1 - 2.5 / LENGTH
            return
        assert len(ids) >= (len(expected) if objective == "nsp" else 1)
        for row, segments, label in zip(
            ids.tolist(), batch["segment_ids"], batch["next_sentence_labels"].ravel(), strict=True
        ):
            first, second = (
                [
                    token
                    for token, segment in zip(row, segments, strict=True)
                    if segment == number and token not in frame
                ]
                for number in (0, 1)
            )
            homes = [
                [number for number, document in enumerate(expected) if is_run(part, document)]
                for part in (first, second)
            ]
            assert first and second and all(homes), (
                "both segments are runs of tokens of some document"
            )
            if not label or objective == "sop":
                assert set(homes[0]) & set(homes[1]), "of the same one"
            else:
                assert homes[0] != homes[1] or len(homes[0]) > 1, "of two documents"

    check()


def test_sentencepiece_round_trip_and_whole_words(tmp_path, vocabularies, sample_text):
    """Records of a learnt model decode to the text, and no word is masked in part."""
    settings = dict(
        tokenization="SentencePiece",
        sp_model_file=vocabularies["SentencePiece"],
        objective="packed",
        order="as_is",
    )
    make(tmp_path, sample_text, **settings, do_whole_word_mask=True, pack_separator="none")
    batch, ids, tokenizer = read_back(tmp_path)
    with open(sample_text) as file:
        text = " ".join(file.read().lower().split())
    words, decoded = text.split(), tokenizer.decode(ids[batch["input_mask"] > 0]).split()
    assert len(decoded) == len(words) > 10000
    differ = sum(ours != theirs for ours, theirs in zip(decoded, words, strict=True))
    assert differ <= (ids == tokenizer.unk_id).sum() < 5, (
        "but for a character too rare to be learnt"
    )
    hidden = np.zeros(ids.shape, bool)
    rows, columns = np.nonzero(batch["masked_lm_weights"] > 0)
    hidden[rows, batch["masked_lm_positions"][rows, columns]] = True
    continues = ~tokenizer.word_starts(ids) & (batch["input_mask"] > 0)
    assert continues[:, 1:].sum() > 1000
    assert (hidden[:, 1:] == hidden[:, :-1])[continues[:, 1:]].all()


def test_the_bytes_of_the_summary_are_those_of_the_shards(tmp_path, vocabularies, sample_text):
    config = DataConfig(
        input_file=sample_text,
        output_file=f"{tmp_path}/x.tfrecord",
        vocab_file=vocabularies["WordPiece"],
        dupe_factor=1,
    )
    _, counts, _ = build.run_job(build.open_job(config))
    assert counts.num_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.tfrecord"))
