"""Names of files -> the files of a text and their formats.

The name of a file decides its format where it can (.jsonl, .csv, ...); otherwise its first lines
do. All files whose names do not decide it get one format.
"""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.console import Console, format_bytes
from bert_gpu.base.errors import UserError
from bert_gpu.base.standard_input import STANDARD_INPUT, open_standard_input
from bert_gpu.text import corpus
from bert_gpu.text.config import AUTO, FILE_NAMES, TextFormat
from bert_gpu.text.formats import archives
from bert_gpu.text.formats.table import FORMATS
from bert_gpu.text.progress import ByteProgress
from bert_gpu.text.sentences import split_sentences

HEAD_BYTES = 1 << 16  # bytes of a file from which its format is decided
MULTI_SENTENCE_SHARE = 0.5  # lines are documents if a larger share of them has several sentences
NUM_HEADS = 16  # number of files from whose first lines a format is decided
HEAD_LINES = 200  # first lines of each file that are looked at
JSON_BEGINS = re.compile(r'\s*(?:\[\s*)?\{\s*"(?:[^"\\]|\\.)*"\s*:')


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The files of a text.

    Attributes:
      names: names of the files for messages.
      formats: format of each file, never auto.
      lines: lines to print, which say which formats were decided and why.
      warnings: warnings about files that were left out of folders, with remedies.
    """

    paths: list[str]
    names: list[str]
    formats: list[TextFormat]
    lines: list[str]
    warnings: list[str]

    def without_effect(self) -> list[str]:
        """Return warnings about settings that have no effect on these files."""
        field = self.formats[0].text_field
        if field == AUTO.text_field or any(each.row.text_in for each in self.formats):
            return []
        return [
            f"--text_column={field[:50]} (or --text_field) has no effect: no input is a table or "
            "JSON; give --input_format if one is"
        ]

    @property
    def needs_spool(self) -> bool:
        return any(map(archives.needs_spool, self.paths, self.formats))


def find_inputs(
    patterns: str | Sequence[str],
    text_format: TextFormat,
    standard_input: str | None = None,
    is_own: Callable[[str], bool] = lambda path: False,
) -> Inputs:
    """Return the Inputs of the files that `corpus.find_files` finds.

    Args:
      standard_input: path of the copy of standard input, if a pattern is "-".
      is_own: function that returns whether bert-gpu wrote the file at a path, so that the file is
        no text.

    Raises UserError.
    """
    matches, others = corpus.find_files(patterns)
    names, left_out = without_own(matches, patterns, is_own)
    paths = [standard_input or name if name == STANDARD_INPUT else name for name in names]
    names = ["standard input" if name == STANDARD_INPUT else name for name in names]
    decisions = decide(paths, names, text_format)
    lines = []
    for decision in dict.fromkeys(decisions):
        kind, reason = decision
        indices = [index for index, other in enumerate(decisions) if other == decision]
        size = sum(file_bytes(paths[index], names[index]) for index in indices)
        row = FORMATS[kind]
        place = f", its text in the {row.text_in} {text_format.text_field!r}" if row.text_in else ""
        files = "1 file" if len(indices) == 1 else f"{len(indices):,} files"
        lines.append(f"input: {files}, {format_bytes(size)}, {row.description}{place} ({reason})")
    if left_out:
        examples = ", ".join(left_out[:3]) + (", ..." if len(left_out) > 3 else "")
        lines.append(f"input: left out, because bert-gpu wrote them: {examples}")
    formats = [text_format.replaced(kind) for kind, _ in decisions]
    vocabularies = FILE_NAMES.values()  # vocabularies are not text, whatever their endings are
    others = [
        path for path in others if os.path.basename(path) not in vocabularies and not is_own(path)
    ]
    warnings = []
    if others:
        number = f"{len(others):,} files of other kinds"
        if len(others) == 1:
            number = "1 file of another kind"
        warnings = [f"left out: {number} ({corpus.endings_of(others)}); {corpus.TO_TEXT}"]
    return Inputs(paths, names, formats, lines, warnings)


def file_bytes(path: str, name: str) -> int:
    """Return the size of a file as it is stored. Raises UserError when the file is missing, as
    behind a broken link.
    """
    with corpus.readable(name):
        return tf.io.gfile.stat(path).length


def without_own(
    names: list[str], patterns: str | Sequence[str], is_own: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """Split files into (inputs, files that are left out because bert-gpu wrote them). Raises
    UserError when one of the latter is named by itself in patterns, or when there are no inputs.
    """
    left_out = [name for name in names if is_own(name)]
    patterns = patterns.split(",") if isinstance(patterns, str) else patterns
    for name in sorted({part.strip() for part in patterns}.intersection(left_out)):
        raise UserError("was written by bert-gpu and is not text", setting="input_file", value=name)
    if left_out and len(left_out) == len(names):
        raise UserError(
            "was written by bert-gpu, and so was every other file found",
            "name files with text",
            setting="input_file",
            value=left_out[0],
        )
    return [name for name in names if name not in set(left_out)], left_out


def decide(paths: list[str], names: list[str], text_format: TextFormat) -> list[tuple[str, str]]:
    """Return (input_format, reason) of each file. Raises UserError."""
    if text_format.input_format != "auto":
        kind = text_format.input_format
        return [(kind, f"--input_format={kind}")] * len(paths)
    kinds = list(map(kind_by_name, paths, names))
    plain = [index for index, kind in enumerate(kinds) if kind is None]
    heads = [head_lines(paths[index], names[index]) for index in spread(plain)]
    decided = kind_of_lines(heads, text_format.language)
    return [kind or decided for kind in kinds]


def spread(items: list) -> list:
    """Return at most NUM_HEADS items of a list, evenly spread over it."""
    indices = np.linspace(0, len(items) - 1, min(NUM_HEADS, len(items))).astype(int)
    return [items[index] for index in dict.fromkeys(indices.tolist())]


def kind_by_name(path: str, name: str) -> tuple[str, str] | None:
    """Return (input_format, reason) of a file whose name decides it; None otherwise."""
    plain = archives.plain_name(path)
    ending = os.path.splitext(plain)[1].lower()
    rows = [row for row in FORMATS.values() if ending in row.endings]
    if not rows:
        return None
    if rows[0].reads_path and archives.is_compressed(path):
        raise UserError("unpack it first", f"{ending} is compressed inside", where=name)
    if len(rows) > 1:
        text = read_head(path, name).decode("utf-8", "ignore").lstrip("\ufeff \t\r\n")
        # .json may also be JSON Lines: one object a line
        return rows[0 if is_object(text.split("\n", 1)[0]) else 1].name, "by its name"
    return rows[0].name, "by its name"


def kind_of_lines(heads: list[list[str]], language: str) -> tuple[str, str]:
    """Return the (input_format, reason) that files have in common, judged by the first lines of
    some of them. heads: these lines, of each file.
    """
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
    most_have_several = several > MULTI_SENTENCE_SHARE * len(lines)
    if most_have_several and (not has_blanks or len(lines) < 1.5 * num_groups):
        return "documents", "most lines have several sentences" + (
            " and stand alone" if has_blanks else ", and there are no blank lines"
        )
    return "lines", "as its first lines show" if has_blanks else "no blank line is seen"


def is_object(line: str) -> bool:
    try:
        return line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def head_lines(path: str, name: str) -> list[str]:
    """Return the first lines of a file, at most HEAD_LINES, each without space at its ends."""
    head = read_head(path, name)
    if len(head) == HEAD_BYTES:
        head = head[: head.rfind(b"\n") + 1] or head
    text = head.decode("utf-8-sig", "ignore")
    return [line.strip() for line in text.split("\n")][:HEAD_LINES]


def read_head(path: str, name: str) -> bytes:
    """Return the first HEAD_BYTES of a file, unpacked; fewer of a broken archive, which is refused
    later. Raises UserError.
    """
    head = b""
    with corpus.readable(name), contextlib.suppress(*archives.BROKEN):
        for piece in archives.plain_pieces(path, lambda num_bytes: None):
            head += piece
            if len(head) >= HEAD_BYTES:
                break
    return head[:HEAD_BYTES]


def unpack(inputs: Inputs, spool: str, console: Console) -> tuple[list[str], list[TextFormat]]:
    """Return (paths, formats) of plain text for Inputs. Compressed files and tables are unpacked
    into the folder `spool`; see `archives.unpack`.
    """
    if not inputs.needs_spool:
        return inputs.paths, inputs.formats
    total = archives.packed_bytes(inputs.paths, inputs.formats)
    with ByteProgress(console, total, "unpacking") as progress:
        return archives.unpack(inputs.paths, inputs.formats, spool, progress.add, inputs.names)


def read_standard_input(input_file: str, spool: str) -> tuple[str | None, bool]:
    """Copy standard input, if it is an input, to a file in the folder `spool`. Returns (path or
    None, whether the file is new). Raises UserError.
    """
    if STANDARD_INPUT not in map(str.strip, input_file.split(",")):
        return None, False
    return archives.spool_standard_input(
        open_standard_input(
            "--input_file=-: nothing is piped to standard input; give a file, or pipe one"
        ),
        spool,
    )
