"""The same entities in every scheme, separator, order and case give the same scores, those of
seqeval where it reads the scheme; tags that do not fit change nothing else.
"""

import collections
import itertools

import pytest
import seqeval.metrics
import seqeval.scheme
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.finetune.tasks.tag_schemes import (
    NAMES,
    SCHEMES,
    TYPES,
    WORDS,
    as_entities,
    entity_scores,
    find_scheme,
    foreign_scheme,
)

# letters of a begin, an inside, an end and a single word
STRICT = dict(BILOU="BILU", BMES="BMES", BMEWO="BMEW")
LETTERS = dict(BIO="BIIB", IOB1="IIII", IOE2="IIEE", BIOES="BIES") | STRICT
KINDS = ["B", "E", "I", "per.ind", "x-y", "a_b", "LOC:2", "人"]
WRITTEN = st.tuples(st.sampled_from("-_:."), st.booleans(), st.booleans())


def spelled(letter, kind, written):
    """A tag. written: (separator, whether the letter is behind, whether it is lower case)."""
    separator, is_behind, is_lower = written
    letter = letter.lower() if is_lower else letter
    if letter in "Oo" or kind is None:
        return letter
    return f"{kind}{separator}{letter}" if is_behind else f"{letter}{separator}{kind}"


def tags_of(scheme, spans, written):
    """The tags of a sentence. spans: [(type, "" of unnamed, None of outside, length)]."""
    tags, before = [], None
    for kind, length in spans:
        begin, inside, end, single = LETTERS[scheme]
        letters = single if length == 1 else begin + inside * (length - 2) + end
        if kind is None:
            letters = "O" * length
        elif scheme == "IOB1" and before == kind:
            letters = "B" + letters[1:]
        tags += [spelled(letter, kind or None, written) for letter in letters]
        before = kind
    return tags


def entities_of(spans):
    """{(type, first word, word after the last one)}, counted directly."""
    ends = list(itertools.accumulate(length for _, length in spans))
    places = zip(spans, ends, strict=True)
    return {(kind, end - length, end) for (kind, length), end in places if kind is not None}


def spans_of(types):
    return st.lists(st.tuples(st.sampled_from([None, *types]), st.integers(1, 4)), min_size=1)


@st.composite
def judged_sentences(draw, types):
    """(true spans, predicted spans) of equal lengths."""
    found = []
    for spans in draw(st.lists(spans_of(types), min_size=1, max_size=3)):
        predicted = []
        for kind, length in spans:
            is_kept = draw(st.booleans())
            cut = draw(st.integers(0, length - 1)) if not is_kept else 0
            other = draw(st.sampled_from([None, *types])) if not is_kept else kind
            predicted += [(kind, cut)] * bool(cut) + [(other, length - cut)]
        found.append((spans, predicted))
    return found


def scores_of(sentences, scheme, written, types):
    """The scores of spans that are written, and read by what the training file shows."""
    shown = [span for kind in types for span in [(kind, 1), (None, 1), (kind, 2), (kind, 3)]]
    train = tags_of(scheme, [*shown, *shown[::-1]], written)
    truth, predicted = (
        [tags_of(scheme, pair[side], written) for pair in sentences] for side in (0, 1)
    )
    every = sorted({*train, *itertools.chain(*truth, *predicted)})
    means = dict(
        zip(every, as_entities(every, find_scheme(collections.Counter(train))), strict=True)
    )
    return entity_scores(
        *([[means[tag] for tag in one] for one in part] for part in (truth, predicted))
    )


def counted(sentences):
    """The same by a direct count."""
    true, guessed = (
        {(number, *one) for number, pair in enumerate(sentences) for one in entities_of(pair[side])}
        for side in (0, 1)
    )
    right = len(true & guessed)
    precision = right / len(guessed) if guessed else 0
    if not true:
        return dict(precision=precision, recall=None, f1=None)
    return dict(
        precision=precision, recall=right / len(true), f1=2 * right / (len(true) + len(guessed))
    )


@settings(max_examples=60)
@given(st.data(), st.sampled_from(sorted(LETTERS)), WRITTEN)
def test_entities_are_counted_alike_in_every_scheme(data, scheme, written):
    kinds = st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True)
    types = ["PER", *data.draw(kinds)]
    sentences = data.draw(judged_sentences(types))
    assert scores_of(sentences, scheme, written, types) == pytest.approx(counted(sentences))


@settings(max_examples=20)
@given(judged_sentences([""]), st.sampled_from(["BIO", "BIOES", *STRICT]), st.booleans())
def test_bare_letters_are_entities_of_one_type(sentences, scheme, is_lower):
    found = scores_of(sentences, scheme, ("-", False, is_lower), [""])
    assert found == pytest.approx(counted(sentences))


def theirs_of(truth, predicted, scheme):
    how = dict(mode="strict", scheme=seqeval.scheme.BILOU) if scheme in STRICT else {}
    return {
        name: getattr(seqeval.metrics, f"{name}_score")(truth, predicted, zero_division=0, **how)
        for name in ("precision", "recall", "f1")
    }


@settings(max_examples=60)
@given(st.data(), st.sampled_from(["BIO", "BIOES", *STRICT]), WRITTEN)
def test_any_tags_at_all_are_counted_as_seqeval_counts_them(data, scheme, written):
    """Also tags that a model may predict and no person would write."""
    letters, types = sorted({*LETTERS[scheme]}), ["PER", "LOC"]
    theirs = dict(zip(LETTERS[scheme], "BILU", strict=True)) if scheme in STRICT else {}
    pairs = [("O", None), *itertools.product(letters, types)]
    tags = [spelled(*pair, written) for pair in pairs]
    places = st.lists(st.integers(0, len(tags) - 1), min_size=6, max_size=6)
    truth, predicted = data.draw(st.lists(st.tuples(places, places), min_size=1, max_size=4)), None
    truth, predicted = zip(*truth, strict=True)
    means = as_entities(tags, find_scheme(dict.fromkeys(tags, 1)))
    found = entity_scores(
        *([[means[at] for at in one] for one in part] for part in (truth, predicted)), means
    )
    plain = [f"{theirs.get(one, one)}-{kind}" if kind else one for one, kind in pairs]
    expected = theirs_of(
        *([[plain[at] for at in one] for one in part] for part in (truth, predicted)), scheme
    )
    if found["f1"] is None:
        assert expected["recall"] == expected["f1"] == 0
        expected |= dict(recall=None, f1=None)
    assert found == pytest.approx(expected)


ODD = ["X", "[CLS]", "[SEP]", "PRT", "-", "_", "B/PER", "Q-PER", "B-", "-PER", "OUT", "IN"]


@settings(max_examples=60)
@given(
    st.sampled_from(["BIO", "BIOES", *STRICT]),
    WRITTEN,
    st.dictionaries(st.sampled_from(ODD), st.integers(1, 10**6), max_size=3),
)
def test_tags_that_do_not_fit_change_no_other(scheme, written, odd):
    """However many words have them."""
    letters = sorted({*LETTERS[scheme]})
    tags = ["O", *(spelled(*pair, written) for pair in itertools.product(letters, ["PER", "LOC"]))]
    counts = dict.fromkeys(tags, 5)
    alone = find_scheme(counts)
    assert alone.startswith(f"{scheme} as ")
    assert find_scheme(counts | odd) == alone
    means = as_entities([*tags, *odd], alone)
    assert means[: len(tags)] == as_entities(tags, alone)
    assert means[0] == "O" and "O" not in means[1 : len(tags)]
    assert set(means[len(tags) :]) <= {"O"}


SPEECH = [
    "NN NNS NNP VB VBD VBZ IN DT JJ RB CC CD . , : $ # PRP PRP$ -LRB- `` TO WP MD POS",
    "NOUN VERB ADJ ADV PRON DET ADP NUM CONJ PRT . X",
    "ART NN ADJA APPR $. $, $( VVFIN VVINF KON PPER",
    "NP-SBJ VP NP-LOC PP-DIR S-TPC-1 S SBAR ADVP-TMP NP-PRD",
    "NOM VER:pper VER:infi DET:ART PRP:det ADV SENT PRO:PER",
    "名詞-普通名詞-一般 助詞-格助詞 動詞-一般 助動詞 補助記号-句点",
    "A B BN CC CS E E_RD FB FF FS I N NO PC PD RD RI S SP SW T V VA VM X",
    "noun_s noun_p verb_s verb_p adj_s adj_p",
    "n v a r d",
]


@given(st.sampled_from(SPEECH), st.data())
def test_parts_of_speech_are_no_entities(tags, data):
    tags = tags.split()
    counts = data.draw(st.lists(st.integers(1, 100), min_size=len(tags), max_size=len(tags)))
    common = dict(zip(tags, counts, strict=True))
    assert find_scheme(common) == WORDS and as_entities(tags, WORDS) is None


@pytest.mark.parametrize(
    "counts, scheme",
    [
        (dict.fromkeys(["B-X", "I-X", "O"], 1), "BIO as B-TYPE"),
        (dict.fromkeys(["I-X", "O"], 1), "BIO as B-TYPE"),  # IOB1
        (dict.fromkeys(["B-X", "E-X", "O"], 1), "BIOES as B-TYPE"),  # or BMES, BMEWO
        ({"B-X": 900, "I-X": 900, "L-X": 1, "E-X": 1, "O": 9}, "BIOES as B-TYPE"),
        ({"B-X": 120, "I-X": 200, "L-X": 1, "O": 9}, "BIO as B-TYPE"),  # a stray end
        ({"B-X": 120, "I-X": 200, "U-X": 1, "O": 9}, "BIO as B-TYPE"),
        ({"B-X": 120, "I-X": 200, "L-X": 60, "U-X": 9, "O": 9}, "BILOU as B-TYPE"),
        (dict.fromkeys(["B-I", "I-B", "B-B", "I-I", "O"], 1), "BIO as B-TYPE"),  # either order
        (dict.fromkeys(["B", "M", "E", "S"], 1), "BMES as B"),  # words of Chinese
        (dict(PER=3, LOC=3, O=90), TYPES),
        (dict(U=3, O=90), TYPES),
        (dict(B=3, C=3, O=90), TYPES),
        (dict(per=3, loc=3, o=90), TYPES),
        ({"B-PER": 1, "LOC": 9, "ORG": 9, "O": 90}, TYPES),
        ({"B-PER": 1, "LOC": 9, "O": 90}, "BIO as B-TYPE"),  # a tie
        ({"B-PER": 99, **{f"w{n}": 1 for n in range(50)}, "O": 90}, "BIO as B-TYPE"),
    ],
)
def test_the_scheme_is_that_of_most_tags(counts, scheme):
    assert find_scheme(counts) == scheme and scheme in NAMES and len(SCHEMES) == 45


@pytest.mark.parametrize(
    "labels, expected",
    [
        (["B-PER", "L-PER", "U-LOC", "S-LOC", "O"], ["B-PER", "E-PER", "S-LOC", "S-LOC", "O"]),
        (["B", "L", "U", "O"], ["B", "E", "S", "O"]),
        (["U", "O"], ["I-U", "O"]),
        (["B_PER", "I_PER", "O"], ["I-B_PER", "I-I_PER", "O"]),
        (["B-PER", "M-PER", "O"], ["I-B-PER", "I-M-PER", "O"]),
        (["PER", "LOC", "o"], None),
    ],
)
def test_tags_of_other_tools_are_bioes_bilou_or_plain(labels, expected):
    assert as_entities(labels, foreign_scheme(labels)) == expected
