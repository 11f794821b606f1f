"""Sentences end where a reader would end them; no text is lost, and no text takes long."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bert_gpu.text import sentences
from bert_gpu.text.sentences import split_sentences

# Sentences parted by "|".
CASES = [
    ("en", "Mr. Smith met Dr. Jones.| They talked."),
    ("en", "He uses tools, e.g. a hammer, i.e. the big one.| It works."),
    ("en", "Pi is 3.14 and e is 2.718.| Both matter."),
    ("en", "It rose to $1.5 million.| Then it fell."),
    ("en", '"Is it late?" he asked.| "No!" she said.'),
    ("en", "She said, “Go home.” |Then she left."),
    ("en", "The U.S. is big.| So is the U.K. |They agreed."),
    ("en", "We meet at 5 p.m. on Monday.| Bring food."),
    ("en", "J. R. R. Tolkien wrote it.| I read it."),
    ("en", "Visit www.example.com.| It is v1.2.3 now."),
    ("en", "Really?! |Yes!! |Wait... what?| OK."),
    ("en", "Smith et al. 2010 found it.| Others did not."),
    ("en", "Acme Inc. sold Foo Ltd. to Bar Corp. yesterday.| Done."),
    ("en", "first sentence.| second sentence without capitals."),
    ("en", "a line\n|another line\r\n|\n| \n|a third\u2028|a fourth"),
    ("en", "no mark at all, only words"),
    ("zh", "我爱北京。|你呢？|太好了！|真的。"),
    ("zh", "他说：“你好。”|然后走了。"),
    ("en", "我爱北京。|你呢？"),
    ("ja", "私は学生です。|彼は先生です！|「はい。」"),
    ("de", "Das ist z.B. ein Test.| Am 3. Oktober war es.| Gut."),
    ("es", "¿Qué?| ¡Hola!| El Sr. López vino."),
    ("hi", "यह एक है।| यह दो है।"),
    ("ar", "كيف حالك؟| أنا بخير."),
    ("en", "A\u2003. B\xa0. C\u3000.| What the library panics over."),
]
# What is known to be wrong, so that a new version of the library that gets it right is noticed.
WRONG = [
    ("en", "See Eq. |2. |It is clear."),  # an abbreviation that it does not know
    ("en", "(This is one.) This is two."),  # never ends a sentence behind a bracket
    ("en", "He lives in the U.S. Government matters bore him."),
    ("fr", "M. |Dupont arrive."),
]


@pytest.mark.parametrize("language, marked", CASES + WRONG)
def test_hard_cases(language, marked):
    expected = [part.strip() for part in marked.split("|") if part.strip()]
    assert split_sentences(marked.replace("|", ""), language) == expected


def squeeze(text):
    return "".join(text.split())


@given(st.text(max_size=60), st.sampled_from(["en", "de", "zh", "xx"]))
@example("A\u2028.", "en")
@example("\x1c", "en")
@example("“" + "x. Yes. No. " * 50, "en")
def test_nothing_but_space_is_lost(text, language):
    result = split_sentences(text, language)
    assert squeeze("".join(result)) == squeeze(text)
    assert all(sentence == sentence.strip() != "" for sentence in result) and bool(result) == bool(
        text.strip()
    )


@pytest.mark.parametrize(
    "unit", ["Some words here. ", "我爱北京。", "words ", "“x. ", "e.g. ", "'Go. ", "(a [b. "]
)
def test_a_long_paragraph_takes_no_longer_than_many_short_ones(unit, monkeypatch):
    calls = []
    split_window = sentences.split_window
    monkeypatch.setattr(
        sentences,
        "split_window",
        lambda text, language: calls.append(len(text)) or split_window(text, language),
    )
    text = unit * (200_000 // len(unit))
    assert squeeze("".join(split_sentences(text))) == squeeze(text)
    # The library sees every character a few times at most, and never very many at once where there
    # are ends of sentences.
    assert sum(calls) < 5 * len(text) and (
        unit in ("words ", "e.g. ", "(a [b. ") or max(calls) <= sentences.WINDOW
    )


def test_ten_thousand_words_without_a_stop_are_one_sentence():
    assert split_sentences("word " * 10_000) == [("word " * 10_000).strip()]


def test_what_never_ends_is_cut_at_spaces(monkeypatch):
    monkeypatch.setattr(sentences, "WINDOW", 16)
    monkeypatch.setattr(sentences, "LONGEST_SENTENCE", 64)
    parts = split_sentences("four " * 100)
    assert {*itertools.chain(*map(str.split, parts))} == {"four"} and max(map(len, parts)) <= 64
    assert split_sentences("x" * 100) == ["x" * 64, "x" * 36]


def test_windows_do_not_break_sentences(monkeypatch):
    text = " ".join(
        f"This is sentence number {number} of Mr. Smith, e.g. with a stop." for number in range(300)
    )
    whole = split_sentences(text)
    monkeypatch.setattr(sentences, "WINDOW", 200)
    assert split_sentences(text) == whole and len(whole) == 300


def test_a_long_quotation_is_split_inside():
    inside = "Here is something that he said. " * 20
    result = split_sentences(f"He said: “{inside}”. Then he left.")
    assert (
        len(result) >= 20
        and result[1] == "Here is something that he said."
        and result[-1] == "Then he left."
    )


def test_a_panic_of_the_library_leaves_the_text_whole(monkeypatch):
    class PanicException(BaseException):
        pass

    def panic(language, text):
        raise PanicException("end byte index 7 is not a char boundary")

    monkeypatch.setattr(sentences.sentencex, "segment", panic)
    assert split_sentences("One. Two.\nThree.") == ["One. Two.", "Three."]

    def stop(language, text):
        raise KeyboardInterrupt

    monkeypatch.setattr(sentences.sentencex, "segment", stop)
    with pytest.raises(KeyboardInterrupt):
        split_sentences("One.")
