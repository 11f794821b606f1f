"""Readers of tables and JSON: csv, tsv, json, parquet and arrow -> their texts, one after another.

A csv, tsv or json file can be read from the beginning only, and parquet and arrow hold many texts
in one piece. So archives.py writes the texts to a plain file, from which any worker reads any part.
Reading is streamed: it takes the memory of a small batch of rows and of the longest text.
"""

import codecs
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bert_gpu.base.errors import UserError, shortened
from bert_gpu.text.config import TextFormat
from bert_gpu.text.formats.cells import (
    NULL,
    NoText,
    are_enclosing,
    separated_rows,
    text_of,
    values_of,
)
from bert_gpu.text.formats.encodings import ENDINGS, check_plain, not_utf8
from bert_gpu.text.formats.plain import BadLine, cut_at_lines, text_of_record

ROWS_PER_BATCH = 256  # rows of parquet and arrow that are read at once
READ_BYTES = 1 << 20
LONGEST_OBJECT = 1 << 28  # characters; a longer object has a brace that nothing closes
BYTE_ORDER_MARK = "\ufeff"
REMEDIES = {
    "csv": "a text with a comma or line break needs quotes",
    "tsv": "a text with a tab needs csv",
}
# {delimiter of a table: remedy if its kind has another delimiter}
CONVERT = "convert it, for example with pandas: read_csv(file, sep=';').to_csv(new, index=False)"
OTHER_DELIMITERS = {
    "\t": "give --input_format=tsv",
    ";": CONVERT,
    "|": CONVERT.replace(";", "|"),
    ",": "give --input_format=csv",
}
MAX_TITLE_CHARACTERS = 50  # characters in the name of a column; more are a text
MAX_TITLE_SPACES = 4  # spaces in the name of a column; more are a text
# patterns of the text between JSON objects that follow one another, and between objects in an array
SEPARATORS = re.compile(r"[ \t\r\n]*"), re.compile(r"[ \t\r\n,]*")
HEAD_BYTES = 256  # first bytes of a file from which its kind is recognised
ARROW_FILE = b"ARROW1"  # first bytes of an Arrow file; an Arrow stream lacks them


def table_texts(
    pieces: Iterable[bytes],
    text_format: TextFormat,
    name: str,
    again: Iterable[bytes] | None = None,
) -> Iterator[str]:
    """Yield the texts in a column of csv or tsv, whose first line names the columns. again: the
    same pieces, of a tsv whose quotes may enclose cells.
    """
    kind = text_format.input_format
    field = text_format.text_field
    header: list[str] | None = None
    dialect = "quoted" if again and are_enclosing(decoded_lines(again, name)) else kind
    for line, row in separated_rows(decoded_lines(pieces, name), dialect, name):
        if header is None:
            header = [title.strip() for title in row]
            if field not in header:
                check_header(header, name, field, kind)
            check_column(header, field, name)
            column = header.index(field)
        elif len(row) != len(header):
            raise UserError(
                f"line {line} has {len(row)} columns, but the first line names {len(header)}",
                REMEDIES[kind],
                where=name,
            )
        else:
            yield row[column]


def check_delimiter(line: str, kind: str, name: str, remedies: Mapping[str, str]) -> None:
    """Raise UserError when the only column of a header seems to be several, with another delimiter
    than that of `kind`, csv or tsv. remedies: {delimiter: remedy}.
    """
    for delimiter, remedy in remedies.items():
        if delimiter in line and (kind, delimiter) != ("tsv", "\t"):
            separator = "a tab" if delimiter == "\t" else repr(delimiter)
            raise UserError(
                f"line 1 has {separator} between its columns ({line[:40]!r}), and a .{kind} has "
                f"{'commas' if kind == 'csv' else 'tabs'}",
                remedy,
                where=name,
            )


def check_header(header: list[str], name: str, field: str, kind: str) -> None:
    """Raise UserError when the header of a table seems to have another delimiter than its kind, csv
    or tsv, or to be a row of texts, because a cell is too long for the name of a column.
    """
    if len(header) == 1:
        check_delimiter(header[0], kind, name, OTHER_DELIMITERS)
    if any(
        len(title) > MAX_TITLE_CHARACTERS or title.count(" ") > MAX_TITLE_SPACES for title in header
    ):
        raise UserError(
            f"has no column {field[:50]!r}, and line 1 seems to be text, not a header",
            "add a first line that names the columns",
            where=name,
        )


def decoded_lines(pieces: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield the lines, with their line ends, of a text file whose bytes come in pieces. Raises
    UserError for a file that is not plain UTF-8 text.
    """
    parts = cut_at_lines(pieces)
    lines = itertools.chain.from_iterable(part.splitlines(keepends=True) for part in parts)
    for number, line in enumerate(lines, 1):
        if number == 1:
            check_plain(name, line, ENDINGS)
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise not_utf8(name, f"line {number}", line if number == 1 else b"") from None
        yield text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text


def json_texts(pieces: Iterable[bytes], text_format: TextFormat, name: str) -> Iterator[str]:
    """Yield the texts in a field of JSON objects, which are in one or several arrays or follow one
    another.
    """
    for index, record in enumerate(json_values(pieces, name)):
        try:
            yield text_of_record(record, text_format.text_field, index)
        except BadLine as error:
            raise UserError(
                f"object {index + 1} {error.problem}", error.remedy, where=name
            ) from None


def json_values(pieces: Iterable[bytes], name: str) -> Iterator[Any]:
    """Yield the JSON values in one or several arrays, or objects that follow one another, from a
    file whose bytes come in pieces.
    """
    index = 0
    in_array = False
    num_arrays = 0
    head = b""

    def with_head() -> Iterator[bytes]:
        nonlocal head
        for piece in pieces:
            head += piece[: HEAD_BYTES - len(head)]
            yield piece

    parts = codecs.iterdecode(with_head(), "utf-8-sig")
    scan = json.JSONDecoder().raw_decode

    def read(rest: str) -> str:
        """Return `rest` and the text that follows it: at least as much again, if there is, so that
        an object in many pieces is not scanned once for each piece.
        """
        added = [rest]
        num_missing = len(rest)
        try:
            while num_missing >= 0 and (part := next(parts, None)) is not None:
                added.append(part)
                num_missing -= len(part)
        except UnicodeDecodeError:
            check_plain(name, head, ENDINGS)
            raise not_utf8(name, f"the text near object {index + 1}", head) from None
        return "".join(added)

    buffer = read("")
    position = 0
    while True:
        # The patterns match everywhere, if only the empty string.
        position = SEPARATORS[in_array].match(buffer, position).end()  # type: ignore[union-attr]
        if position == len(buffer):
            buffer = read("")
            position = 0
            if buffer:
                continue
            if in_array:
                raise UserError(
                    f"the array is not closed after object {index}",
                    "the file is truncated, so copy it again",
                    where=name,
                )
            return
        if not in_array and (num_arrays or index == 0) and buffer[position] == "[":
            in_array = True
            num_arrays += 1
            position += 1
        elif in_array and buffer[position] == "]":
            in_array = False
            position += 1
        elif num_arrays and not in_array:
            raise UserError(
                f"something follows the array after object {index}",
                "the file must be arrays of objects, or objects in a row",
                where=name,
            )
        else:
            try:
                record, position = scan(buffer, position)
            except (ValueError, RecursionError):
                rest = buffer[position:]
                buffer = read(rest) if len(rest) < LONGEST_OBJECT else rest
                position = 0
                if len(buffer) > len(rest):
                    continue
                raise UserError(
                    f"object {index + 1} is not valid JSON",
                    "the file is an array of objects, or objects in a row",
                    where=name,
                ) from None
            yield record
            index += 1


def column_texts(path: str, text_format: TextFormat, name: str) -> Iterator[str]:
    """Yield the texts in a column of a parquet or Arrow file; a missing text is empty."""
    import pyarrow

    columns = parquet_columns if text_format.input_format == "parquet" else arrow_columns
    number = 0
    try:
        for column in columns(path, text_format.text_field, name):
            for first in range(0, len(column), ROWS_PER_BATCH):
                for value in values_of(column.slice(first, ROWS_PER_BATCH)):
                    number += 1
                    yield text_of(value, NULL)
    except NoText as error:
        raise UserError(
            f"row {number:,} has {error} in {text_format.text_field[:50]!r}",
            "write the file anew, with texts in UTF-8",
            where=name,
        ) from None
    except (pyarrow.ArrowException, OSError) as error:
        problem = " ".join(str(error).split())[:100]
        raise UserError(f"cannot be read ({problem})", "copy it again", where=name) from None


def parquet_columns(path: str, field: str, name: str) -> Iterator[Any]:
    """Yield a column of a parquet file as pyarrow arrays, a few rows at a time."""
    from pyarrow import parquet

    # With these settings pyarrow reads pages one by one, and not whole row groups.
    with parquet.ParquetFile(path, buffer_size=READ_BYTES, pre_buffer=False) as file:
        check_strings(file.schema_arrow, field, name)
        batches = file.iter_batches(ROWS_PER_BATCH, columns=[field], use_threads=False)
        yield from (batch.column(0) for batch in batches)


def arrow_columns(path: str, field: str, name: str) -> Iterator[Any]:
    """Yield a column of an Arrow file or stream, mapped into memory, as one pyarrow array for each
    record batch.
    """
    import pyarrow

    with pyarrow.memory_map(path) as source:
        is_file = source.read(len(ARROW_FILE)) == ARROW_FILE
        source.seek(0)
        reader = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(source)
        check_strings(reader.schema, field, name)
        column = reader.schema.get_field_index(field)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        yield from (batch.column(column) for batch in batches)


def check_strings(schema: Any, field: str, name: str) -> None:
    """Raise UserError unless a pyarrow schema has exactly one column `field`, which holds
    strings, or bytes, as Spark and Impala write them.
    """
    from pyarrow import types

    check_column(schema.names, field, name)
    kind = schema.field(field).type
    value = kind.value_type if types.is_dictionary(kind) else kind
    # pandas writes the type null for a column without values
    is_text = (
        *(types.is_string, types.is_large_string, types.is_string_view, types.is_null),
        *(types.is_binary, types.is_large_binary, types.is_binary_view),
        types.is_fixed_size_binary,
    )
    if not any(is_kind(value) for is_kind in is_text):
        raise UserError(
            f"the column {field[:50]!r} holds no strings ({shortened(kind)})",
            "name the column with the text by --text_column",
            where=name,
        )


def check_column(names: list[str], field: str, name: str) -> None:
    """Raise UserError unless exactly one of the columns has the name `field`."""
    if field not in names:
        raise UserError(
            f"has no column {field[:50]!r}",
            f"give --text_column=NAME (the columns are: {shortened(', '.join(names) or 'none')})",
            where=name,
        )
    if names.count(field) > 1:
        raise UserError(
            f"has {names.count(field)} columns {field[:50]!r}",
            "rename all but the one with the text, or name another by --text_column",
            where=name,
        )
