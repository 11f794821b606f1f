"""A sample of a text -> warnings of faults that would make a poor data set or vocabulary, each with
a remedy.

Samples are taken from all over the text, so that the checks take the same time for a text of any
size.
"""

import collections
import csv
import itertools
import os
import re
from collections.abc import Callable, Sequence

import numpy as np

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.text import clean, corpus
from bert_gpu.text.corpus import Block
from bert_gpu.text.formats.inputs import HEAD_LINES, read_head, spread
from bert_gpu.text.formats.plain import parse_documents
from bert_gpu.text.sentences import WITH_RULES, split_sentences
from bert_gpu.text.tokenizers import basic, sentence_piece
from bert_gpu.text.tokenizers.hugging_face import HuggingFaceTokenizer
from bert_gpu.text.tokenizers.wordpiece import (
    MAX_WORD_CHARACTERS,
    SPECIAL_PIECES,
    Tokenizer,
    WordPieceTokenizer,
)
from bert_gpu.text.vocabulary import wordpiece_learner

NUM_SAMPLES = 16
SAMPLE_BYTES = 1 << 14  # approximate bytes of text in each sample
MIN_LONE_SENTENCES = 50  # a lone document of fewer sentences, a small experiment, needs no warning
MAX_SENTENCES_PER_DOCUMENT = 20_000  # more bring a warning; a long novel has 10,000
COMMON_SHARE = 0.5  # a fault in a larger share of rows or lines brings a warning
# shares of a sample above which a fault brings a warning
MARKUP_SHARE = 0.05  # a larger share of sentences with markup, or like JSON, brings a warning
UNKNOWN_SHARE = 0.05  # a larger share of unknown tokens brings a warning
UNUSED_SHARE = 0.01  # a larger share of pieces that no text uses brings a warning
COPIES_SHARE = 0.2  # a larger share of sentences that are copies brings a warning
NUM_UNKNOWN_SHOWN = 10
MARKUP = re.compile(
    rb"</?[A-Za-z][A-Za-z0-9]*(?:\s[^<>]*)?/?>|&(?:[a-z]{2,6}|#\d+);|\[\[[^\]]+\]\]|\{\{|\]\(http"
    rb"|^#{1,6} \S|^```|\*\*[^\s*][^*]*\*\*"
    rb"|\\(?:begin|end|(?:sub)*section|cite|ref|textbf|emph)\*?\{"
)
JSON_LINE = re.compile(rb'\{\s*"|\[\s*[{"]|"[^"]+"\s*:\s')
# The header of a table: words without spaces at the delimiters. Prose has spaces after its commas.
WORD = r'(?:"[A-Za-z_][\w .-]*"|[A-Za-z_][\w.-]*|)'
HEADERS = {
    "csv": (",", re.compile(rf"{WORD}(?:,{WORD})+")),
    "tsv": ("\t", re.compile(r"[A-Za-z_]?[\w .-]*(?:\t[A-Za-z_][\w .-]*)+")),
}
MIN_TABLE_ROWS = 2  # rows below the header from which a file is taken for a table
SENTENCE_END = re.compile(r"[.!?:;…。！？][\"'”’»)\]]*$")
FEW_LINES = 20  # fewer lines are too few to judge a text by
INSIDE_SHARE = 0.05  # wrapped prose has a sentence's end inside at least this share of its lines


def sample(blocks: Sequence[Block], drop_duplicates: bool = False) -> list[list[bytes]]:
    """Return documents (lists of sentences) from all over a text, with `drop_duplicates` each once.
    A small text is returned whole; of a larger one, documents may be cut at their ends.
    """
    documents = sample_text(blocks)
    if drop_duplicates:
        documents = list({tuple(document): document for document in documents}.values())
    return documents


def sample_text(blocks: Sequence[Block]) -> list[list[bytes]]:
    """Return documents from all over a text, as `sample` does, but not yet cleaned. No line is
    taken twice.
    """
    ends = np.cumsum([block.end - block.start for block in blocks])
    if ends[-1] <= NUM_SAMPLES * SAMPLE_BYTES:
        return [document for block in blocks for document in corpus.read_block(block)]
    documents: list[list[bytes]] = []
    end = 0
    for offset in np.linspace(0, ends[-1], NUM_SAMPLES, endpoint=False).astype(int).tolist():
        # A long line may reach beyond the next offset.
        index = int(np.searchsorted(ends, max(offset, end), side="right"))
        if index == len(blocks):
            break
        shift = blocks[index].end - int(ends[index])
        near, end_in_file = documents_near(blocks[index], max(offset, end) + shift, SAMPLE_BYTES)
        documents += near
        end = end_in_file - shift
    return documents


def documents_near(block: Block, offset: int, num_bytes: int) -> tuple[list[list[bytes]], int]:
    """Return the documents in about num_bytes of whole lines of a block, from an offset in its file
    on, and the offset where the last of these lines ends.
    """
    with corpus.open_binary(block.path) as file:
        # one byte earlier, to see the line break before a line that begins at the offset
        position = max(block.start, offset - 1)
        file.seek(position)
        content = b""
        size = block.end - position
        num_next = num_bytes
        while True:
            content += file.read(min(num_next, size - len(content)))
            is_all = len(content) == size
            first = content.find(b"\n") + 1 if position > block.start else 0
            last = len(content) if is_all else content.rfind(b"\n") + 1
            if is_all or last > first:
                break
            num_next = len(content)  # no whole line yet: read as many bytes again
    if position > block.start and not first:
        return [], block.end  # the offset is in the last line
    content = content[first:last]
    if first and block.text_format.has_sentence_lines:
        # begin with a whole document, unless there is none
        content = content[content.find(b"\n\n") + 1 :]
    return parse_documents(content, block.text_format), position + last


def shape_warnings(
    blocks: Sequence[Block],
    documents: list[list[bytes]],
    objective: str | None = None,
    drops_lines: bool = False,
) -> list[str]:
    """Return warnings about a text that is no plain text, is badly divided into documents or lines,
    or repeats itself.

    Args:
      blocks: all blocks of the text. documents: from `sample`.
      objective: pretraining objective of the data set; None for a vocabulary alone, for which
        documents, and lines of several sentences, do not matter.
      drops_lines: whether repeated sentences are dropped, so that they do not matter.
    """
    sentences = [sentence for document in documents for sentence in document]
    has_lines = all(block.text_format.has_sentence_lines for block in blocks)
    language = blocks[0].text_format.language
    not_text = looks_like(
        sentences,
        JSON_LINE.match,
        "JSON",
        "give --input_format=jsonl or json and --text_field, or extract the plain text",
    ) or table_warnings(blocks)
    if not_text:
        return not_text  # further warnings would only be their consequences
    warnings = [] if objective is None else document_warnings(blocks)
    if has_lines and not warnings:
        lines = [sentence.decode("utf-8", "ignore") for sentence in sentences]
        warnings = line_warnings(lines, language, objective is not None)
    warnings += looks_like(
        sentences,
        MARKUP.search,
        "markup (tags, entities, links, Markdown or LaTeX)",
        "extract the plain text",
    )
    warnings += [] if drops_lines else repetition_warnings(sentences, objective)
    num_empty = sum(block.num_empty for block in blocks)
    num_rows = num_empty + sum(block.num_documents for block in blocks)
    if num_empty > COMMON_SHARE * num_rows:
        warnings.append(
            f"{num_empty:,} of {num_rows:,} rows have no text and are left out; check that "
            "--text_column (for JSON --text_field) names the right column"
        )
    if not has_lines and language not in WITH_RULES:
        warnings.append(
            f"--language={language}: the splitter has no rules for it and takes those of English; "
            "give a related language that has rules, or one sentence a line"
        )
    return warnings


def describe_empty(blocks: Sequence[Block]) -> list[str]:
    """Return [line for the log with the number of rows and objects without text], or [] if there
    are none.
    """
    num_empty = sum(block.num_empty for block in blocks)
    return [f"input: {num_empty:,} rows have no text and are left out"] if num_empty else []


def table_warnings(blocks: Sequence[Block]) -> list[str]:
    """Return [warning] if a file that is read as plain lines begins like a table, with a header of
    words and rows of as many cells; else [].
    """
    paths = [block.path for block in blocks if not block.text_format.row.text_in]
    for path in spread(sorted(set(paths))):
        text = read_head(path, path).decode("utf-8-sig", "ignore")
        lines = text.splitlines(keepends=True)[:HEAD_LINES]
        for kind, (delimiter, header) in HEADERS.items():
            rows = list(filter(None, csv.reader(lines, delimiter=delimiter)))
            widths = {len(row) for row in rows[:-1]}  # the last row may be cut off
            is_table = len(rows) > MIN_TABLE_ROWS and len(widths) == 1
            if is_table and header.fullmatch(lines[0].strip("\r\n")):
                return [
                    f"{os.path.basename(path)[:60]} looks like {kind}, with the header "
                    f"{shorten(lines[0].encode())}; give --input_format={kind} and --text_column"
                ]
    return []


def looks_like(
    sentences: list[bytes], matches: Callable[[bytes], object], what: str, remedy: str
) -> list[str]:
    """Return [warning] if `matches` is true of more than MARKUP_SHARE of the sentences; else [].
    what: name, for the message, of the thing that these sentences look like.
    """
    odd = [sentence for sentence in sentences if matches(sentence)]
    if len(odd) <= MARKUP_SHARE * len(sentences):
        return []
    share = len(odd) / len(sentences)
    return [f"{share:.0%} of the sentences look like {what}, such as {shorten(odd[0])}; {remedy}"]


def repetition_warnings(sentences: list[bytes], objective: str | None) -> list[str]:
    """Return [warning] if many sentences equal earlier sentences apart from digits and case; else
    [].
    """
    keys = clean.plain_lines(sentences)
    counts = collections.Counter(keys)
    num_copies = len(keys) - len(counts)
    if len(keys) < FEW_LINES or num_copies <= COPIES_SHARE * len(keys):
        return []
    ((commonest, count),) = counts.most_common(1)
    remedy = (
        ""
        if objective is None
        else ", as --drop_repeated_lines does (--drop_duplicates drops equal documents only)"
    )
    return [
        f"{num_copies / len(keys):.0%} of the sentences are copies of earlier ones but for digits "
        f"and case, {count:,} of {shorten(sentences[keys.index(commonest)])}; remove repeated "
        f"lines from the text{remedy}"
    ]


def document_warnings(blocks: Sequence[Block]) -> list[str]:
    """Return [warning] if a document has too many lines; else []."""
    longest = max(
        (b.num_sentences // b.num_documents for b in blocks if b.num_sentences is not None),
        default=0,
    )
    is_alone = sum(block.num_documents for block in blocks) == 1
    if longest < (MIN_LONE_SENTENCES if is_alone else MAX_SENTENCES_PER_DOCUMENT):
        return []
    return [
        f"a document has {longest:,} lines; put blank lines between documents, or give "
        "--input_format=documents if every line is a document"
    ]


def line_warnings(lines: list[str], language: str, are_sentences: bool) -> list[str]:
    """Return [warning] if most lines break off within a sentence or, where each of them should be a
    sentence, have several; else [].
    """
    if len(lines) < FEW_LINES:
        return []
    several = sum(len(split_sentences(line, language)) > 1 for line in lines) / len(lines)
    broken = sum(
        not SENTENCE_END.search(line) and following[:1].islower()
        for line, following in itertools.pairwise(lines)
    ) / len(lines)
    if broken > COMMON_SHARE and several > INSIDE_SHARE:
        return [
            f"{broken:.0%} of the lines break off within a sentence, such as "
            f"{shorten(lines[0].encode())}; join the lines of a paragraph, and give "
            "--input_format=documents"
        ]
    if are_sentences and several > COMMON_SHARE:
        return [
            f"{several:.0%} of the lines have several sentences, but each line is read as one; put "
            "each sentence on a line of its own, or give --input_format=documents if every line is "
            "a document"
        ]
    return []


def vocabulary_warnings(
    tokenizer: Tokenizer,
    documents: list[list[bytes]],
    ids: np.ndarray,
    do_lower_case: bool,
    is_given: bool,
) -> list[str]:
    """Return warnings about a vocabulary that does not fit the text.

    Args:
      documents: from `sample`, normalised. ids: the ids of all their tokens.
      is_given: whether the user named the vocabulary. A vocabulary learnt from the text has the
        right case.
    """
    states_casing = isinstance(tokenizer, HuggingFaceTokenizer)
    warnings = []
    if is_given and not states_casing:
        warnings += casing_warnings(tokenizer, documents, do_lower_case)
    share = float((ids == tokenizer.unk_id).mean()) if len(ids) else 0.0
    if share > UNKNOWN_SHARE:
        words = unknown_words(tokenizer, documents)
        are_long = np.median([*map(len, words)] or [0]) > MAX_WORD_CHARACTERS
        warnings.append(
            f"{share:.0%} of the tokens are [UNK]; the commonest unknown words: "
            f"{shortened(', '.join(repr(shortened(word, 20)) for word in words), 100)}; "
            + (
                f"words of more than {MAX_WORD_CHARACTERS} characters are [UNK], so text without "
                f"spaces needs {'no --vocab_file and ' * is_given}--tokenization=SentencePiece"
                if are_long and isinstance(tokenizer, WordPieceTokenizer)
                else "take another vocabulary, or "
                + ("drop --vocab_file to learn one" if is_given else "--vocab_size")
            )
        )
    return warnings


def unknown_words(tokenizer: Tokenizer, documents: list[list[bytes]]) -> list[str]:
    """Return the commonest words of a text that have an unknown piece; at most
    NUM_UNKNOWN_SHOWN.
    """
    counts = (
        wordpiece_learner.count_words(documents, tokenizer.do_lower_case, tokenizer.strip_accents)
        if isinstance(tokenizer, WordPieceTokenizer)
        else sentence_piece.count_words(documents)
    )
    words = sorted(counts, key=lambda word: (-counts[word], word))
    ids, splits = tokenizer.tokenize(words)
    is_unknown = np.zeros(len(words), bool)
    is_unknown[np.searchsorted(splits, np.flatnonzero(ids == tokenizer.unk_id), "right") - 1] = True
    return [words[index] for index in np.flatnonzero(is_unknown)[:NUM_UNKNOWN_SHOWN]]


def casing_warnings(
    tokenizer: Tokenizer, documents: list[list[bytes]], do_lower_case: bool
) -> list[str]:
    """Return [warning] if the vocabulary has capitals or accents that lower-casing takes from the
    text, or lacks the capitals that the text keeps; else [].
    """
    pieces = [
        piece
        for piece in tokenizer.vocab
        if piece not in SPECIAL_PIECES and not re.fullmatch(r"[\[<].*[\]>]", piece)
    ]
    uncases = isinstance(tokenizer, WordPieceTokenizer) and tokenizer.strip_accents
    lower = basic.uncase if uncases else str.lower
    unused = [piece for piece in pieces if piece != "".join(lower(piece).split())]
    text = b" ".join(sentence for document in documents for sentence in document)
    has_capitals = text.decode("utf-8", "ignore").lower() != text.decode("utf-8", "ignore")
    if do_lower_case and len(unused) > UNUSED_SHARE * len(pieces):
        return [
            f"{len(unused):,} pieces of the vocabulary, such as {unused[0][:30]!r}, are never "
            "used, because lower-casing takes capital letters and accents from the text; give "
            "--nodo_lower_case, or a vocabulary without such pieces"
        ]
    if not do_lower_case and has_capitals and all(piece == piece.lower() for piece in pieces):
        return [
            "no piece of the vocabulary has a capital letter, but the text keeps its capitals; "
            "give --do_lower_case"
        ]
    return []


def shorten(sentence: bytes) -> str:
    return repr(shortened(" ".join(sentence.decode("utf-8", "ignore").split())))


class Warner:
    """Prints warnings on a console; with strict, raises the first warning as a UserError."""

    def __init__(self, console: Console, strict: bool) -> None:
        self.console = console
        self.strict = strict

    def __call__(self, warnings: Sequence[str]) -> None:
        for text in warnings:
            if self.strict:
                raise UserError(text, setting="strict")
            self.console.warn(text)
