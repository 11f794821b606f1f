"""Text is warned of exactly where a direct count finds more than a fifth of copies; samples take no
line twice, so that none is a copy of itself.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.text import corpus, quality
from bert_gpu.text.config import LINES, TextFormat


def copies(lines):
    """The number of lines that have the same letters and marks as an earlier one."""
    seen, number = [], 0
    for line in lines:
        bare = "".join(c for c in line.lower() if not c.isdecimal())
        number += bare in seen
        seen.append(bare)
    return number


def repetition_warnings(path, documents, **cleaning):
    path.write_text("\n\n".join("\n".join(lines) for lines in documents), encoding="utf-8")
    blocks = corpus.plan_blocks([str(path)], 1 << 20, LINES)
    sample = quality.sample(blocks, **cleaning)
    warnings = quality.shape_warnings(blocks, sample, "full_sentences")
    return [warning for warning in warnings if "are copies of earlier ones" in warning]


@st.composite
def documents(draw):
    """Documents of lines, some of which repeat with other digits or in another case."""
    num_lines = draw(st.integers(1, 60))
    fresh = [f"This is line {'ab'[i % 2]}{'xyz' * i} of it." for i in range(num_lines)]
    copied = draw(st.lists(st.integers(0, 3), max_size=num_lines // 2))
    changes = st.sampled_from([str, str.upper, lambda line: f"12{line}٣", lambda line: line + "!"])
    lines = draw(st.permutations([*fresh, *(draw(changes)(fresh[i % num_lines]) for i in copied)]))
    size = draw(st.integers(1, 9))
    return [lines[i : i + size] for i in range(0, len(lines), size)]


def test_text_is_warned_of_exactly_where_more_than_a_fifth_are_copies(tmp_path):
    @settings(max_examples=80)
    @given(documents())
    def check(texts):
        path = tmp_path / "text"
        lines = [line for document in texts for line in document]
        warnings = repetition_warnings(path, texts)
        is_repetitive = len(lines) >= 20 and copies(lines) > 0.2 * len(lines)
        assert len(warnings) == is_repetitive
        if is_repetitive:
            assert warnings[0].startswith(f"{copies(lines) / len(lines):.0%} of the sentences")
            assert "remove repeated lines" in warnings[0] and len(warnings[0]) < 290
        # What --drop_duplicates removes is no repetition.
        different = list(dict.fromkeys(map(tuple, texts)))
        with_copies = repetition_warnings(path, [*texts, *texts], drop_duplicates=True)
        assert with_copies == repetition_warnings(path, different)

    check()


def test_samples_take_no_line_twice(tmp_path, monkeypatch):
    """Also where lines are longer than the part of a sample that they begin in."""
    monkeypatch.setattr(quality, "SAMPLE_BYTES", 20)
    path = tmp_path / "text"

    @settings(max_examples=80)
    @given(
        st.lists(st.integers(1, 300), min_size=1, max_size=60),
        st.sampled_from(["lines", "documents"]),
        st.sampled_from([100, 1 << 20]),
    )
    def check(lengths, kind, block_bytes):
        lines = [f"{number}{'x' * length}" for number, length in enumerate(lengths)]
        path.write_text("\n".join(lines))
        blocks = corpus.plan_blocks([str(path)], block_bytes, TextFormat(input_format=kind))
        found = [line.decode() for document in quality.sample(blocks) for line in document]
        assert found == [line for line in lines if line in set(found)]
        assert found and lines[0] == found[0]

    check()


def test_the_remedy_is_one_that_the_command_has(tmp_path):
    path = tmp_path / "text"
    path.write_text("Page 1\nPAGE 22\n" * 20)
    blocks = corpus.plan_blocks([str(path)], 1 << 20, LINES)
    for objective, has_flag in (("packed", True), (None, False)):
        (warning,) = quality.shape_warnings(blocks, quality.sample(blocks), objective)
        assert warning.startswith("98% of the sentences") and "40 of 'Page 1'" in warning
        assert ("--drop_duplicates" in warning) == has_flag


DIALOGUE = """\
Is the ferry still running?
Yes.
At this hour, and with that wind?
Yes. The captain is not one to wait.
Then I will have two tickets.
Two?
My sister is coming with me.
I see. And the dog?
What about the dog?
It needs a ticket, too.
A dog needs a ticket?
Yes.
How much is it?
Half of yours.
Fine. Three tickets, then.
Two and a half.
Yes, two and a half.
Here you are.
Thank you.
The gate is on the left.
The left?
Yes.
Thank you.
Good night.
Good night.
"""


def test_dialogue_is_not_taken_for_copies(tmp_path):
    lines = DIALOGUE.splitlines()
    assert len(lines) >= quality.FEW_LINES and copies(lines) == 4
    assert repetition_warnings(tmp_path / "text", [lines]) == []


def test_the_sample_text_does_not_repeat_itself(sample_text):
    blocks = corpus.plan_blocks([sample_text], 1 << 20, LINES)
    assert quality.shape_warnings(blocks, quality.sample(blocks), "nsp") == []
