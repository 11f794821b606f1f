"""The cells of tables: a value of JSON, parquet or Arrow -> its text, and lines of csv or tsv ->
rows of cells. All readers of tables call these functions, so that a cell means the same to all.
"""

import csv
import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from bert_gpu.base.errors import UserError, shortened

# The most characters of a cell; a longer one has a quotation mark that nothing closes.
LONGEST_CELL = 1 << 27
# Arguments of csv.reader: quotes in .csv follow RFC 4180, and in .tsv they mean nothing unless the
# whole file shows that they enclose cells (`are_enclosing`), which is the dialect "quoted".
DIALECTS: dict[str, dict[str, Any]] = {
    "csv": dict(delimiter=",", strict=True),
    "tsv": dict(delimiter="\t", quoting=csv.QUOTE_NONE),
    "quoted": dict(delimiter="\t", strict=True),
    "lines": dict(delimiter="\0", quoting=csv.QUOTE_NONE),  # a plain text as a table of one column
}
# regular expressions: a cell in quotes, the characters that need quotes, a cell with or without
# quotes, a row of cells, the beginning of a cell whose quotes a blank makes part of the text
QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"')
NEEDS_QUOTES = re.compile(r'["\t\r\n]')
CELL = rf'(?:{QUOTED.pattern}|[^"\t\r\n]*)'
QUOTED_ROW = re.compile(rf"{CELL}(?:\t{CELL})*[\r\n]*")
BLANK_AND_QUOTE = re.compile(r'[ \t]+"')
MAX_ROW_CHARACTERS = 1 << 20  # of a row whose quotes may enclose cells
NULL = type(None)


class NoText(ValueError):
    """The error of a value that has no text; its message says what the value is."""


def text_of(value: object, allowed: type | tuple[type, ...] = ()) -> str:
    """Return the text of a cell: a string itself, bytes decoded as UTF-8, true or false, and the
    str of a number, a date or the like. Half of a surrogate pair, which is no character, becomes
    U+FFFD.

    allowed: types that have a text here although they have none by themselves: NULL is empty (NaN
    is one), a list or an object is its JSON, and with `object` bytes may be any.

    Raises NoText.
    """
    if isinstance(value, str):
        if value.isascii() or value.isprintable():
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, bytes):
        try:
            return value.decode(errors="replace" if isinstance(value, allowed) else "strict")
        except UnicodeDecodeError:
            raise NoText("bytes that are not UTF-8") from None
    if value is None or value != value:  # NaN
        if isinstance(None, allowed):
            return ""
        raise NoText("no value (null)")
    if not isinstance(value, list | dict | tuple):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, allowed):
        return json.dumps(
            value, ensure_ascii=False, default=functools.partial(text_of, allowed=allowed)
        )
    raise NoText("an object" if isinstance(value, dict) else "a list")


def values_of(column: Any) -> list[object]:
    """Return the values of a pyarrow array as values of Python. A number of 32 bits has no more
    digits than it needs; strings that are not UTF-8 are bytes, and times for which Python has
    no value are strings.
    """
    import pyarrow

    if column.type == pyarrow.float32():
        column = column.cast(pyarrow.string()).cast(pyarrow.float64())
    try:
        return column.to_pylist()
    except (ValueError, OverflowError) as error:
        return column.cast(
            pyarrow.large_binary() if isinstance(error, UnicodeDecodeError) else pyarrow.string()
        ).to_pylist()


def separated_rows(
    lines: Iterable[str], dialect: str, name: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line on which it begins, from 1; cells) of each row of csv or tsv, whose lines have
    their ends; a blank line is no row. dialect: a key of DIALECTS. name: of the file.

    Raises UserError for quotes that are not closed, or that follow a blank: `a, "b"`.
    """
    csv.field_size_limit(LONGEST_CELL)
    lines, copies = itertools.tee(lines)
    reader = csv.reader(lines, **DIALECTS[dialect])
    line = 1
    width = 0
    try:
        for cells in reader:
            row = "".join(itertools.islice(copies, reader.line_num + 1 - line))
            for cell in cells if dialect == "csv" else ():
                if (
                    BLANK_AND_QUOTE.match(cell)
                    and '"{}"'.format(cell.replace('"', '""')) not in row
                ):
                    raise UserError(
                        f"line {line} has a blank before a quote ({shortened(cell)}), so that the "
                        "quote encloses nothing",
                        "delete the blank, as pandas.read_csv(file, skipinitialspace=True) does",
                        where=name,
                    )
            if len(cells) > 1 - (width == 1) or "".join(cells).strip():  # not blank
                width = width or len(cells)
                yield line, cells
            line = reader.line_num + 1  # a quoted cell may span several lines
    except csv.Error as error:
        raise UserError(
            f"line {line} is not valid {'CSV' if dialect == 'csv' else 'TSV'} ({error})",
            "check its quotes",
            where=name,
        ) from None


def are_enclosing(lines: Iterable[str]) -> bool:
    """Return whether the quotes of a .tsv enclose cells: no quote stands elsewhere, all rows have
    the same number of cells, and either some cell needs its quotes or all cells of the header have
    quotes.
    """
    row = ""
    widths: set[int] = set()
    needs_quotes = False
    for line in lines:
        row += line
        if row.count('"') % 2 and len(row) < MAX_ROW_CHARACTERS:  # it continues in the next line
            continue
        if not QUOTED_ROW.fullmatch(row):
            return False
        cells = QUOTED.findall(row)
        width = QUOTED.sub("", row).count("\t") + 1
        needs_quotes |= not widths and len(cells) == width
        needs_quotes |= any(NEEDS_QUOTES.search(cell[1:-1]) for cell in cells)
        widths |= {width} if row.strip("\r\n") else set()
        row = ""
    return needs_quotes and not row and len(widths) == 1
