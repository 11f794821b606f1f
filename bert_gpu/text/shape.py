"""Looks at the shape of text: decides its format, and says what would make a poor data set.

The format of a file comes from its name where that says it (.jsonl, .csv, ...), and otherwise from
its first lines; all files whose names say nothing have one format. What is warned of is found in
samples from all over the text, so that it costs the same for a text of any size.
"""

import csv
import dataclasses
import json
import os
import re

import numpy as np
import tensorflow as tf

from bert_gpu.settings import UserError
from bert_gpu.text import archives, corpus, own_files, sentence_piece, wordpiece_learner
from bert_gpu.text.config import AUTO
from bert_gpu.text.encodings import shortened_path
from bert_gpu.text.formats import parse_documents
from bert_gpu.text.progress import format_bytes
from bert_gpu.text.sentences import has_rules, split_sentences
from bert_gpu.text.wordpiece import SPECIAL_PIECES, WordPieceTokenizer

HEAD_BYTES = 1 << 16  # of a file, from which its format is decided
NUM_HEADS, HEAD_LINES = 16, 200  # files that are looked at, and lines of each
BY_NAME = {
    **{f".{kind}": kind for kind in ("jsonl", "csv", "tsv", "parquet", "arrow")},
    ".ndjson": "jsonl",
    ".feather": "arrow",
}
FORMAT_NAMES = dict(
    lines="lines: one sentence a line, documents end at blank lines",
    documents="lines: every line is a document, split into sentences",
    jsonl="JSON Lines: every object is a document, its text in the field {field!r}",
    json="JSON: every object is a document, its text in the field {field!r}",
    csv="CSV: every row is a document, its text in the column {field!r}",
    tsv="TSV: every row is a document, its text in the column {field!r}",
    parquet="parquet: every row is a document, its text in the column {field!r}",
    arrow="Arrow: every row is a document, its text in the column {field!r}",
)

NUM_SAMPLES, SAMPLE_BYTES = 16, 1 << 14  # of text, about
LONE_DOCUMENT = 50  # sentences of a text that is one document; fewer are a small experiment
LONE_FOR_PAIRS = 3  # the same for nsp, which needs other documents
ENDLESS_DOCUMENT = 20_000  # sentences; a long novel has 10,000
MANY = 0.5  # the share of documents, or of lines, from which a shape is taken for the rule
MARKUP_SHARE = 0.05  # of sentences, also of those that look like JSON
UNKNOWN_SHARE = 0.05  # of tokens
CAPITALS_SHARE = 0.01  # of pieces
NUM_UNKNOWN_SHOWN = 10
MARKUP = re.compile(
    rb"</?[A-Za-z][A-Za-z0-9]*(?:\s[^<>]*)?/?>|&(?:[a-z]{2,6}|#\d+);|\[\[[^\]]+\]\]|\{\{|\]\(http"
    rb"|^#{1,6} \S|^```|\*\*[^\s*][^*]*\*\*"
    rb"|\\(?:begin|end|(?:sub)*section|cite|ref|textbf|emph)\*?\{"
)
JSON_LINE = re.compile(rb'\{\s*"|\[\s*[{"]|"[^"]+"\s*:\s')
PLAIN = ("lines", "documents")
JSON_BEGINS = re.compile(r'\s*(?:\[\s*)?\{\s*"(?:[^"\\]|\\.)*"\s*:')
# A header of single words with nothing between; prose has spaces after its commas.
WORD = r'(?:"[A-Za-z_][\w .-]*"|[A-Za-z_][\w.-]*|)'
HEADERS = {
    "csv": (",", re.compile(rf"{WORD}(?:,{WORD})+")),
    "tsv": ("\t", re.compile(r"[A-Za-z_]?[\w .-]*(?:\t[A-Za-z_][\w .-]*)+")),
}
LEAST_ROWS = 2  # below the header
SENTENCE_END = re.compile(r"[.!?:;…。！？][\"'”’»)\]]*$")
FEW_LINES = 20  # say nothing of the rest of a text
INSIDE_SHARE = 0.05  # of the lines of wrapped prose have a sentence's end inside, at least


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The files of a text.

    Attributes:
      paths: list of str. names: list of str, for messages.
      formats: list of TextFormat, decided.
      lines: list of str: what was decided and why, to print.
      warnings: list of str: what was left out of folders, and what to do.
    """

    paths: list
    names: list
    formats: list
    lines: list
    warnings: list

    def without_effect(self):
        """What has no effect on these files: list of str."""
        field = self.formats[0].text_field
        if field == AUTO.text_field or any(each.input_format not in PLAIN for each in self.formats):
            return []
        return [
            f"--text_column={field[:50]} (or --text_field) has no effect: no input is a table or "
            "JSON; --input_format says of which kind a file is"
        ]

    @property
    def needs_spool(self):
        return any(map(archives.needs_spool, self.paths, self.formats))


def find_inputs(patterns, text_format, standard_input=None):
    """The Inputs of `corpus.expand_inputs`. standard_input: the file that holds what was read from
    it, if a pattern is "-". Raises UserError.
    """
    found, others = corpus.find_files(patterns)
    names, left_out = without_own(found, patterns)
    paths = [standard_input if name == corpus.STANDARD_INPUT else name for name in names]
    names = ["standard input" if name == corpus.STANDARD_INPUT else name for name in names]
    kinds, reasons = decide(paths, names, text_format)
    lines = []
    for kind, reason in dict.fromkeys(zip(kinds, reasons, strict=True)):
        chosen = [
            (path, name)
            for path, name, *decision in zip(paths, names, kinds, reasons, strict=True)
            if decision == [kind, reason]
        ]
        size = sum(file_bytes(path, name) for path, name in chosen)
        what = FORMAT_NAMES[kind].format(field=text_format.text_field)
        files = "1 file" if len(chosen) == 1 else f"{len(chosen):,} files"
        lines.append(f"input: {files}, {format_bytes(size)}, {what} ({reason})")
    if left_out:
        shown = ", ".join(left_out[:3]) + (", ..." if len(left_out) > 3 else "")
        lines.append(f"input: left out, because a job of ours wrote them: {shown}")
    formats = [text_format.replaced(kind) for kind in kinds]
    return Inputs(paths, names, formats, lines, other_warnings(others))


def other_warnings(paths):
    """Warns of the files in folders (paths) that are left out because of their endings, other than
    those of our own jobs.
    """
    others = [path for path in paths if not own_files.is_own(path)]
    if not others:
        return []
    several = f"{len(others):,} files of other kinds"
    files = several if len(others) > 1 else "1 file of another kind"
    return [f"left out: {files} ({corpus.endings_of(others)}); {corpus.TO_TEXT}"]


def file_bytes(path, name):
    """The size of a file, as it is stored. UserError when it is missing, such as a broken link."""
    with corpus.readable(name):
        return tf.io.gfile.stat(path).length


def without_own(names, patterns):
    """(names of inputs, names left out): files of our own jobs that a folder or a glob gives are
    left out. UserError for one that is named itself, and when nothing else is there.
    """
    left_out = [name for name in names if own_files.is_own(name)]
    named = patterns.split(",") if isinstance(patterns, str) else patterns
    for name in sorted({part.strip() for part in named}.intersection(left_out)):
        raise UserError(f"--input_file={name}: was written by a job of ours, and is no text"[:300])
    if left_out and len(left_out) == len(names):
        raise UserError(
            f"--input_file={left_out[0]}: was written by a job of ours, as all that is found; "
            "name files with text"[:300]
        )
    return [name for name in names if name not in set(left_out)], left_out


def decide(paths, names, text_format):
    """(input_format, reason) of each file, as two lists. Raises UserError."""
    if text_format.input_format != "auto":
        kind = text_format.input_format
        return [kind] * len(paths), [f"--input_format={kind}"] * len(paths)
    kinds = {path: kind_by_name(path, name) for path, name in zip(paths, names, strict=True)}
    plain = [path for path in paths if kinds[path] is None]
    shown = dict(zip(paths, names, strict=True))
    chosen = sorted({int(i) for i in np.linspace(0, len(plain) - 1, NUM_HEADS)}) if plain else []
    heads = [head_lines(plain[index], shown[plain[index]]) for index in chosen]
    decided = kind_of_lines(heads, text_format.language)
    return tuple(
        [decision[part] for decision in (kinds[path] or decided for path in paths)]
        for part in (0, 1)
    )


def kind_by_name(path, name):
    """(input_format, reason) of a file whose name says it; None otherwise."""
    plain = archives.plain_name(path)
    ending = os.path.splitext(plain)[1].lower()
    kind = BY_NAME.get(ending)
    if kind in ("parquet", "arrow") and archives.is_compressed(path):
        raise UserError(f"{name}: unpack it first; {ending} is compressed inside"[:300])
    if ending == ".json":
        text = read_head(path, name).decode("utf-8", "ignore").lstrip("\ufeff \t\r\n")
        # an object a line, under this name too; an array, or objects over several lines
        return ("jsonl" if is_object(text.split("\n", 1)[0]) else "json"), "by its name"
    return None if kind is None else (kind, "by its name")


def kind_of_lines(heads, language):
    """(input_format, reason) of files, from the first lines (lists of str) of some of them."""
    lines = [line for head in heads for line in head if line]
    if lines and all(is_object(line) for head in heads for line in [*filter(None, head)][:10]):
        return "jsonl", "every line is a JSON object"
    if lines and all(JSON_BEGINS.match("\n".join(head)) for head in heads if any(head)):
        return "json", "its first characters are JSON"
    num_groups = sum(
        bool(line) and (index == 0 or not head[index - 1])
        for head in heads
        for index, line in enumerate(head)
    )
    has_blanks = num_groups > sum(map(any, heads))
    several = sum(len(split_sentences(line, language)) > 1 for line in lines)
    most_have_several = several > MANY * len(lines)
    if most_have_several and (not has_blanks or len(lines) < 1.5 * num_groups):
        return "documents", "most lines have several sentences" + (
            " and stand alone" if has_blanks else ", and there are no blank lines"
        )
    return "lines", "as its first lines show" if has_blanks else "no blank line is seen"


def is_object(line):
    try:
        return line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def head_lines(path, name):
    """The first lines of a file, without space at the ends."""
    head = read_head(path, name)
    if len(head) == HEAD_BYTES:
        head = head[: head.rfind(b"\n") + 1] or head
    text = head.decode("utf-8-sig", "ignore")
    return [line.strip() for line in text.split("\n")][:HEAD_LINES]


def read_head(path, name):
    """The first HEAD_BYTES of a file, unpacked. A broken archive, which is refused later, has
    none. Raises UserError.
    """
    head = b""
    try:
        with corpus.readable(name):
            for piece in archives.plain_pieces(path, lambda num_bytes: None):
                head += piece
                if len(head) >= HEAD_BYTES:
                    break
    except archives.BROKEN:
        return b""
    return head[:HEAD_BYTES]


def sample(blocks):
    """Documents from all over a text: list of documents, each a list of sentences (bytes). A small
    text is whole; of others some documents may be cut at their ends.
    """
    ends = np.cumsum([block.end - block.start for block in blocks])
    if ends[-1] <= NUM_SAMPLES * SAMPLE_BYTES:
        return [document for block in blocks for document in corpus.read_block(block)]
    documents = []
    for offset in np.linspace(0, ends[-1], NUM_SAMPLES, endpoint=False).astype(int).tolist():
        index = int(np.searchsorted(ends, offset, side="right"))
        documents += documents_near(blocks[index], blocks[index].end + offset - int(ends[index]))
    return documents


def documents_near(block, offset):
    """The documents in whole lines of a block, of about SAMPLE_BYTES, from an offset of its file
    on.
    """
    with corpus.open_binary(block.path) as file:
        # a line that begins at the offset has a line break before it
        position = max(block.start, offset - 1)
        file.seek(position)
        content, size = b"", block.end - position
        wanted = SAMPLE_BYTES
        while True:
            content += file.read(min(wanted, size - len(content)))
            is_all = len(content) == size
            first = content.find(b"\n") + 1 if position > block.start else 0
            last = len(content) if is_all else content.rfind(b"\n") + 1
            if is_all or last > first:
                break
            wanted = len(content)  # a long line: as much again
    if position > block.start and not first:
        return []  # within the last line
    content = content[first:last]
    if first and block.text_format.has_sentence_lines:
        # not in the middle of a document, unless that is a long one
        content = content[content.find(b"\n\n") + 1 :]
    return parse_documents(content, block.text_format)


def shape_warnings(blocks, documents, objective=None):
    """What is wrong with the text: list of str, each with what to do.

    Args:
      blocks: list of Block, all of the plan. documents: from `sample`.
      objective: of the data set; None for a vocabulary alone, to which documents, and whether a
        line is one sentence, do not matter.
    """
    sentences = [sentence for document in documents for sentence in document]
    left_out = left_out_warnings(blocks)
    json_warnings = looks_like(
        sentences,
        JSON_LINE.match,
        "JSON",
        "give --input_format=jsonl or json and --text_field, or take out the text alone",
    )
    if json_warnings:
        return json_warnings + left_out  # the rest follows from it
    tables = table_warnings(blocks)
    if tables:
        return tables + left_out
    empty = empty_warnings(blocks)
    if objective is not None:
        warnings = document_warnings(blocks, documents, objective)
    elif all(block.text_format.has_sentence_lines for block in blocks):
        lines = [sentence.decode("utf-8", "ignore") for sentence in sentences]
        warnings = wrapped_warnings(lines, blocks[0].text_format.language)
    else:
        warnings = []
    warnings += looks_like(
        sentences,
        MARKUP.search,
        "markup (tags, entities, links, Markdown or LaTeX)",
        "take out the text alone",
    )
    warnings += empty + left_out
    formats = {block.text_format for block in blocks}
    language = next(iter(formats)).language
    if not all(each.has_sentence_lines for each in formats) and not has_rules(language):
        warnings.append(
            f"--language={language}: the splitter has no rules for it and takes those of English; "
            "give a related language that it knows, or one sentence a line"
        )
    return warnings


def empty_warnings(blocks):
    """Of rows and objects without text, when they are the rule."""
    num_empty = sum(block.num_empty for block in blocks)
    num_rows = num_empty + sum(block.num_documents for block in blocks)
    if num_empty <= MANY * num_rows:
        return []
    return [
        f"{num_empty:,} of {num_rows:,} rows have no text and are left out; see whether "
        "--text_column (of JSON --text_field) names the right one"
    ]


def left_out_warnings(blocks):
    """Of files without a document, among others that have some."""
    names = [name for block in blocks for name in block.left_out]
    if not names:
        return []
    first, others = shortened_path(names[0]), len(names) - 1
    has = (
        "has no document and is" if not others else f"and {others:,} more have no document and are"
    )
    return [f"{first} {has} left out; see whether text was lost"]


def describe_empty(blocks):
    """A line on rows and objects without text, in a list; none when there are none."""
    num_empty = sum(block.num_empty for block in blocks)
    return [f"input: {num_empty:,} rows have no text and are left out"] if num_empty else []


def table_warnings(blocks):
    """Of files that are read as lines, but begin as a table does: a header of words, and rows with
    as many cells.
    """
    paths = [block.path for block in blocks if block.text_format.input_format in PLAIN]
    paths = sorted(set(paths))
    for index in sorted(
        {int(i) for i in np.linspace(0, len(paths) - 1, NUM_HEADS)} if paths else ()
    ):
        text = read_head(paths[index], paths[index]).decode("utf-8-sig", "ignore")
        whole = text if len(text.encode()) < HEAD_BYTES - 4 else text[: text.rfind("\n") + 1]
        lines = whole.splitlines(keepends=True)[:HEAD_LINES]
        for kind, (delimiter, header) in HEADERS.items():
            if lines and header.fullmatch(lines[0].strip("\r\n")) and is_table(lines, delimiter):
                return [
                    f"{os.path.basename(paths[index])[:60]} looks like {kind}, with the header "
                    f"{shorten(lines[0].encode())}; give --input_format={kind} and --text_column"
                ]
    return []


def is_table(lines, delimiter):
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    try:
        rows = [row for row in csv.reader(lines, delimiter=delimiter, quoting=quoting) if row]
    except csv.Error:
        return False
    if len(lines) == HEAD_LINES:
        rows = rows[:-1]  # may be cut
    return len(rows) > LEAST_ROWS and len({len(row) for row in rows}) == 1


def looks_like(sentences, found, what, remedy):
    odd = [sentence for sentence in sentences if found(sentence)]
    if len(odd) <= MARKUP_SHARE * len(sentences):
        return []
    share = len(odd) / len(sentences)
    return [f"{share:.0%} of the sentences look like {what}, such as {shorten(odd[0])}; {remedy}"]


def document_warnings(blocks, documents, objective):
    num_documents = sum(block.num_documents for block in blocks)
    is_pairs = objective in ("nsp", "sop")
    most_alone = LONE_FOR_PAIRS if objective == "nsp" else LONE_DOCUMENT
    longest = max(
        (b.num_sentences // b.num_documents for b in blocks if b.num_sentences is not None),
        default=0,
    )
    if (num_documents == 1 and longest >= most_alone) or longest >= ENDLESS_DOCUMENT:
        return [
            f"a document has {longest:,} lines; put blank lines between documents, or give "
            "--input_format=documents if every line is a document"
            + (": pairs need second segments from other documents" if is_pairs else "")
        ]
    num_sentences = sum(map(len, documents))
    if num_documents == 1 and objective == "nsp" and num_sentences >= most_alone:
        return [
            f"the whole text is one document, of {num_sentences:,} sentences or more: pairs need "
            "second segments from other documents; give each document a line, row or object of "
            "its own, or --objective=full_sentences"
        ]
    sizes = np.array([len(document) for document in documents])
    alone = float((sizes == 1).mean()) if len(sizes) else 0.0
    if is_pairs and alone > MANY:
        return [
            f"{alone:.0%} of the documents have one sentence, so that all of their pairs are "
            "random; end documents, not sentences, with blank lines, give "
            "--input_format=documents if lines hold several sentences, or "
            "--objective=full_sentences"
        ]
    if all(block.text_format.has_sentence_lines for block in blocks):
        return line_warnings([s.decode("utf-8", "ignore") for d in documents for s in d], blocks)
    return []


def line_warnings(lines, blocks):
    """Of lines (list of str) that should be sentences."""
    language = blocks[0].text_format.language
    if wrapped := wrapped_warnings(lines, language):
        return wrapped
    several = num_several(lines, language)
    if len(lines) >= FEW_LINES and several > MANY * len(lines):
        return [
            f"{several / len(lines):.0%} of the lines have several sentences, and a line is taken "
            "for one; put each on a line of its own, or give --input_format=documents if every "
            "line is a document"
        ]
    return []


def wrapped_warnings(lines, language):
    """Of lines (list of str) that end within sentences, and cut words in two."""
    broken = sum(
        not SENTENCE_END.search(line) and following[:1].islower()
        for line, following in zip(lines, lines[1:], strict=False)
    )
    if len(lines) < FEW_LINES or broken <= MANY * len(lines):
        return []
    if num_several(lines, language) <= INSIDE_SHARE * len(lines):
        return []
    return [
        f"{broken / len(lines):.0%} of the lines break off within a sentence, such as "
        f"{shorten(lines[0].encode())}; join the lines of a paragraph, and give "
        "--input_format=documents"
    ]


def num_several(lines, language):
    """The number of lines with several sentences."""
    return sum(len(split_sentences(line, language)) > 1 for line in lines)


def vocabulary_warnings(tokenizer, documents, do_lower_case, is_given):
    """What is wrong with a vocabulary for the text: list of str, each with what to do.

    Args:
      tokenizer: of the vocabulary. documents: from `sample`, normalised.
      is_given: whether the user named it; one that was learnt fits the casing.
    """
    warnings = casing_warnings(tokenizer, documents, do_lower_case) if is_given else []
    sentences = [sentence for document in documents for sentence in document]
    ids, _ = tokenizer.tokenize(sentences)
    share = float((ids == tokenizer.unk_id).mean()) if len(ids) else 0.0
    if share > UNKNOWN_SHARE:
        words = ", ".join(map(repr, unknown_words(tokenizer, documents)))
        warnings.append(
            f"{share:.0%} of the tokens are [UNK]; the commonest unknown words: {words}; take "
            "another vocabulary"
            + (", or leave --vocab_file away to learn one" if is_given else ", or --vocab_size")
        )
    return warnings


def unknown_words(tokenizer, documents):
    """The commonest words of a text that have an unknown piece; at most NUM_UNKNOWN_SHOWN."""
    if isinstance(tokenizer, WordPieceTokenizer):
        counts = wordpiece_learner.count_words(documents, tokenizer.do_lower_case)
    else:
        counts = sentence_piece.count_words(documents)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    ids, splits = tokenizer.tokenize(words)
    is_unknown = np.zeros(len(words), bool)
    is_unknown[np.searchsorted(splits, np.flatnonzero(ids == tokenizer.unk_id), "right") - 1] = True
    return [words[index] for index in np.flatnonzero(is_unknown)[:NUM_UNKNOWN_SHOWN]]


def casing_warnings(tokenizer, documents, do_lower_case):
    pieces = [
        piece
        for piece in tokenizer.vocab
        if piece not in SPECIAL_PIECES and not re.fullmatch(r"[\[<].*[\]>]", piece)
    ]
    capitals = sum(piece != piece.lower() for piece in pieces)
    text = b" ".join(sentence for document in documents for sentence in document)
    has_capitals = text.decode("utf-8", "ignore").lower() != text.decode("utf-8", "ignore")
    if do_lower_case and capitals > CAPITALS_SHARE * len(pieces):
        return [
            f"{capitals:,} pieces of the vocabulary have capital letters, but the text is "
            "lower-cased and never uses them; give --nodo_lower_case"
        ]
    if not do_lower_case and not capitals and has_capitals:
        return [
            "no piece of the vocabulary has a capital letter, but the text keeps its own; "
            "give --do_lower_case"
        ]
    return []


def shorten(sentence):
    text = " ".join(sentence.decode("utf-8", "ignore").split())
    return repr(text if len(text) <= 60 else text[:57] + "...")


class Warner:
    """Says warnings on a console; with strict, the first one is an error."""

    def __init__(self, console, strict):
        self.console, self.strict = console, strict

    def __call__(self, warnings):
        for text in warnings:
            if self.strict:
                raise UserError(f"--strict: {text}"[:300])
            self.console.warn(text)
