"""Readers of tables and JSON: csv, tsv, json, parquet and arrow -> their texts, one after another.

A csv, tsv or json file can be read from the beginning only, and parquet and arrow hold many texts
in one piece. So archives.py writes the texts to a plain file, from which any worker reads any part.
Reading is streamed: it takes the memory of a small batch of rows and of the longest text.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from bert_gpu.base.errors import UserError, shortened
from bert_gpu.text.config import TextFormat
from bert_gpu.text.formats.cells import NULL, NoText, are_enclosing, separated_rows, text_of
from bert_gpu.text.formats.plain import BadLine, text_of_record
from bert_gpu.text.formats.rows import (
    OTHER_DELIMITERS,
    check_delimiter,
    decoded_lines,
    json_values,
    typed_rows,
)

REMEDIES = {
    "csv": "a text with a comma or line break needs quotes",
    "tsv": "a text with a tab needs csv",
}
DELIMITERS = {"\t": "give --input_format=tsv"} | OTHER_DELIMITERS | {",": "give --input_format=csv"}
MAX_TITLE_CHARACTERS = 50  # characters in the name of a column; more are a text
MAX_TITLE_SPACES = 4  # spaces in the name of a column; more are a text


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


def check_header(header: list[str], name: str, field: str, kind: str) -> None:
    """Raise UserError when the header of a table seems to have another delimiter than its kind, csv
    or tsv, or to be a row of texts, because a cell is too long for the name of a column.
    """
    if len(header) == 1:
        check_delimiter(header[0], kind, name, DELIMITERS)
    if any(
        len(title) > MAX_TITLE_CHARACTERS or title.count(" ") > MAX_TITLE_SPACES for title in header
    ):
        raise UserError(
            f"has no column {field[:50]!r}, and line 1 seems to be text, not a header",
            "add a first line that names the columns",
            where=name,
        )


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


def column_texts(path: str, text_format: TextFormat, name: str) -> Iterator[str]:
    """Yield the texts in a column of a parquet or Arrow file; a missing text is empty."""
    field = text_format.text_field
    check = functools.partial(check_strings, field=field, name=name)
    rows = typed_rows(path, text_format.input_format, name, check, [field])
    for number, (value,) in enumerate(rows, 1):
        try:
            yield text_of(value, NULL)
        except NoText as error:
            raise UserError(
                f"row {number:,} has {error} in {field[:50]!r}",
                "write the file anew, with texts in UTF-8",
                where=name,
            ) from None


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
