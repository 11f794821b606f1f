"""Our NSP data against Model Garden's create_pretraining_data on the same text: the same instances
from the same random numbers, and the same distributions from others, within sampling error.
"""

import itertools
import random

import numpy as np
import pytest

from bert_gpu.data import instances, masking
from bert_gpu.data.random_bits import GOLDEN, MASK64, mix_int, row_keys
from bert_gpu.text import corpus
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from bert_gpu.text.vocabulary import wordpiece_learner

PASSES, LENGTH, SHARE, SHORT = 6, 96, 0.15, 0.1


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory, sample_text):
    path = str(tmp_path_factory.mktemp("vocab") / "vocab.txt")
    blocks = corpus.plan_blocks([sample_text], 1 << 20)
    documents = [document for block in blocks for document in corpus.read_block(block)]
    wordpiece_learner.write_vocab(
        path,
        wordpiece_learner.learn_wordpiece(wordpiece_learner.count_words(documents, True), 2000),
    )
    return path


@pytest.fixture(scope="module")
def theirs(vocab_file, sample_text):
    """Statistics of Model Garden's instances."""
    from official.nlp.data import create_pretraining_data as garden
    from official.nlp.tools import tokenization

    tokenizer = tokenization.FullTokenizer(vocab_file, do_lower_case=True)
    made = garden.create_training_instances(
        [sample_text],
        tokenizer,
        garden.get_processor_text_fn(False, True),
        LENGTH,
        PASSES,
        SHORT,
        SHARE,
        20,
        random.Random(1),
    )
    masked = [
        (instance.tokens[p], label)
        for instance in made
        for p, label in zip(instance.masked_lm_positions, instance.masked_lm_labels, strict=True)
    ]
    return dict(
        number=len(made),
        lengths=np.array([len(instance.tokens) for instance in made]),
        first=np.array([instance.segment_ids.count(0) for instance in made]),
        random_next=np.mean([instance.is_random_next for instance in made]),
        predictions=np.array([len(instance.masked_lm_positions) for instance in made]),
        masked=np.mean([shown == "[MASK]" for shown, _ in masked]),
        kept=np.mean([shown == label for shown, label in masked]),
        num_masked=len(masked),
    )


@pytest.fixture(scope="module")
def tokens(vocab_file, sample_text):
    documents = [
        document
        for block in corpus.plan_blocks([sample_text], 1 << 20)
        for document in corpus.read_block(block)
    ]
    ids, splits = WordPieceTokenizer(vocab_file).tokenize(
        [line for document in documents for line in document]
    )
    return instances.Documents.from_sentences(
        ids, splits, [len(document) for document in documents]
    )


@pytest.fixture(scope="module")
def ours(vocab_file, tokens):
    tokenizer = WordPieceTokenizer(vocab_file)
    every = np.arange(len(tokens))
    rows = np.concatenate(
        [
            instances.pair_instances(
                tokens, every, every, max_seq_length=LENGTH, short_seq_prob=SHORT, key=key
            )
            for key in range(PASSES)
        ]
    )
    made = instances.PairRows(rows).tokens(tokens, LENGTH, tokenizer)
    input_ids, lengths, first = made.input_ids, made.lengths, (made.sequence_ids == 1).sum(1)
    spec = masking.MaskingSpec(
        max_predictions=20,
        share=SHARE,
        vocab_size=tokenizer.vocab_size,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        mask_id=tokenizer.mask_id,
    )
    result = masking.mask_rows(input_ids, lengths, None, row_keys(0, np.arange(len(rows))), spec)
    weights = result["masked_lm_weights"] > 0
    shown = np.take_along_axis(result["input_ids"], result["masked_lm_positions"], 1)[weights]
    labels = result["masked_lm_ids"][weights]
    return dict(
        number=len(rows),
        lengths=lengths,
        first=first,
        random_next=rows[:, 4].mean(),
        predictions=weights.sum(1),
        masked=np.mean(shown == tokenizer.mask_id),
        kept=np.mean(shown == labels),
        num_masked=len(labels),
    )


def near(ours, theirs, share, number):
    """Two shares of `number` draws each differ by less than four standard errors."""
    return abs(ours - theirs) < 4 * np.sqrt(2 * share * (1 - share) / number)


class OurDraws:
    """Our random numbers behind the interface of Python's `random`. Heads and tails of the coin
    that truncation throws are exchanged: there Model Garden takes the front below one half.
    """

    def __init__(self, key, is_coin=False):
        self.state, self.is_coin = key, is_coin

    def bits(self):
        self.state = (self.state + GOLDEN) & MASK64
        return mix_int(self.state) >> 11

    def random(self):
        share = self.bits() / 2**53
        return 1.0 - share if self.is_coin else share

    def randint(self, low, high):
        return low + self.bits() % (high - low + 1)


@pytest.mark.parametrize("short_seq_prob", [0.0, SHORT, 1.0])
def test_the_same_draws_give_the_same_instances(tokens, monkeypatch, short_seq_prob):
    """Every instance, and so their number, is the one that Model Garden's code makes when it gets
    our random numbers. Masks are left out: they are drawn elsewhere.
    """
    from official.nlp.data import create_pretraining_data as garden

    truncate = garden.truncate_seq_pair

    def truncate_by_our_coin(first, second, max_tokens, draws):
        coin = OurDraws(draws.state, is_coin=True)
        truncate(first, second, max_tokens, coin)
        draws.state = coin.state

    monkeypatch.setattr(garden, "truncate_seq_pair", truncate_by_our_coin)
    monkeypatch.setattr(
        garden, "create_masked_lm_predictions", lambda shown, *rest: (shown, [], [])
    )
    # sentences of token numbers, so that equal tokens are the same token of the corpus
    sentences = np.split(np.arange(len(tokens.ids)), tokens.sentence_splits[1:-1])
    documents = [
        [sentence.tolist() for sentence in sentences[first:last]]
        for first, last in itertools.pairwise(tokens.document_splits)
    ]
    every = np.arange(len(tokens))
    for key in range(PASSES):
        draws, expected = OurDraws(key), []
        for document in every:
            expected += garden.create_instances_from_document(
                documents, document, LENGTH, short_seq_prob, SHARE, 20, [], draws
            )
        rows = instances.pair_instances(
            tokens, every, every, max_seq_length=LENGTH, short_seq_prob=short_seq_prob, key=key
        )
        assert len(rows) == len(expected) > 100
        for (a_start, a_end, b_start, b_end, label, _), instance in zip(
            rows.tolist(), expected, strict=True
        ):
            first, second = list(range(a_start, a_end)), list(range(b_start, b_end))
            assert instance.tokens == ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
            assert instance.is_random_next == label


def test_random_next_share(ours, theirs):
    assert near(ours["random_next"], theirs["random_next"], 0.5, theirs["number"])


def test_disguises(ours, theirs):
    assert near(ours["masked"], theirs["masked"], 0.8, theirs["num_masked"])
    assert near(ours["kept"], theirs["kept"], 0.1, theirs["num_masked"])


@pytest.mark.parametrize("what", ["lengths", "first", "predictions"])
def test_distributions(ours, theirs, what):
    """Two-sample Kolmogorov-Smirnov distance below the 0.1 % critical value."""
    grid = np.arange(LENGTH + 1)
    shares = [
        np.searchsorted(np.sort(values), grid, side="right") / len(values)
        for values in (ours[what], theirs[what])
    ]
    critical = 1.95 * np.sqrt(1 / ours["number"] + 1 / theirs["number"])
    assert np.abs(shares[0] - shares[1]).max() < critical
