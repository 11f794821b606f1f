"""Rows of tables: csv, tsv, json, jsonl, parquet and Arrow -> values, or the texts of cells.

The functions parse rows, and the readers of corpora (containers.py) and Table call them. A Table is
a whole file, whose rows are read as the texts of their cells (cells.py), in pieces except for a
JSON array, so that its size does not matter. It is read again whenever its rows are needed.
"""

import codecs
import collections
import contextlib
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.files import check_regular, parse_json
from bert_gpu.text.formats.cells import (
    DIALECTS,
    NoText,
    are_enclosing,
    separated_rows,
    text_of,
    values_of,
)
from bert_gpu.text.formats.encodings import ENDINGS, check_plain, not_utf8
from bert_gpu.text.formats.plain import cut_at_lines

tf = LazyModule("tensorflow")

ROWS_PER_BATCH = 256  # rows of parquet and Arrow that are converted at once
READ_BYTES = 1 << 20
LONGEST_OBJECT = 1 << 28  # characters; a longer object has a brace that nothing closes
BYTE_ORDER_MARK = "\ufeff"
# patterns of the text between JSON objects that follow one another, and between objects in an array
SEPARATORS = re.compile(r"[ \t\r\n]*"), re.compile(r"[ \t\r\n,]*")
HEAD_BYTES = 256  # first bytes of a file from which its kind is recognised
ARROW_FILE = b"ARROW1"  # first bytes of an Arrow file; an Arrow stream lacks them
CONVERT = "convert it, for example with pandas: read_csv(file, sep=';').to_csv(new, index=False)"
# {delimiter of a table: remedy if its kind has another delimiter}
OTHER_DELIMITERS = {";": CONVERT, "|": CONVERT.replace(";", "|")}
DELIMITERS = OTHER_DELIMITERS | {"\t": "name it .tsv", ",": "name it .csv"}
REMEDIES = {
    "tsv": "quote texts with a tab, line break or quote, as Python's csv module does",
    "csv": "a text with a comma or line break needs quotes",
}
LINES = "lines"  # the kind of a plain text, whose lines are the cells of one column
KINDS = ("tsv", "csv", "jsonl", "parquet")  # of tables, by their ending
UNITS = dict(json="object", parquet="row")  # {kind: name of a row in messages}, else a line
QUOTES = "its quotes enclose cells, as in .csv, and are read so"


def decoded_lines(pieces: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield the lines, with their line ends, of a text file whose bytes come in pieces. Raises
    UserError for a file that is not plain UTF-8 text.
    """
    pieces = iter(pieces)
    head = next(pieces, b"")
    check_plain(name, head[:HEAD_BYTES], ENDINGS)
    parts = cut_at_lines(itertools.chain([head], pieces))
    lines = itertools.chain.from_iterable(part.splitlines(keepends=True) for part in parts)
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise not_utf8(name, f"line {number}", line if number == 1 else b"") from None
        yield text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text


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


def json_values(pieces: Iterable[bytes], name: str) -> Iterator[object]:
    """Yield the JSON values in one or several arrays, or objects that follow one another, from a
    file whose bytes come in pieces.
    """
    index = num_arrays = position = 0
    in_array = False
    buffer = ""
    pieces = filter(None, pieces)
    head = next(pieces, b"")
    parts = codecs.iterdecode(itertools.chain([head], pieces), "utf-8-sig")
    scan = json.JSONDecoder().raw_decode

    def more(size: int) -> str:
        """Return the text that follows, more than `size` characters if there are as many, so that
        an object in many pieces is not scanned once for each piece.
        """
        text = ""
        try:
            while len(text) <= size and (part := next(parts, "")):
                text += part
        except UnicodeDecodeError:
            check_plain(name, head[:HEAD_BYTES], ENDINGS)
            raise not_utf8(name, f"the text near object {index + 1}", head) from None
        return text

    while True:
        # The patterns match everywhere, if only the empty string.
        position = SEPARATORS[in_array].match(buffer, position).end()  # type: ignore[union-attr]
        mark = buffer[position : position + 1]
        if mark and mark == "[]"[in_array] and (num_arrays or index == 0):
            in_array = not in_array
            num_arrays += in_array
            position += 1
            continue
        if mark and num_arrays and not in_array:
            raise UserError(
                f"something follows the array after object {index}",
                "the file must be arrays of objects, or objects in a row",
                where=name,
            )
        try:
            record, position = scan(buffer, position)
        except (ValueError, RecursionError):
            rest = buffer[position:]
            buffer = rest + more(len(rest) if len(rest) < LONGEST_OBJECT else -1)
            position = 0
            if len(buffer) > len(rest):
                continue
            if not rest and not in_array:
                return
            problem = f"object {index + 1} is not valid JSON"
            remedy = "the file is an array of objects, or objects in a row"
            if not rest:
                problem = f"the array is not closed after object {index}"
                remedy = "the file is truncated, so copy it again"
            raise UserError(problem, remedy, where=name) from None
        yield record
        index += 1


def typed_rows(
    path: str,
    kind: str,
    name: str,
    check: Callable[..., object],
    fields: list[str] | None = None,
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a parquet or Arrow file, a few of which are read at a time, as values of
    Python.

    Args:
      kind: "parquet" or "arrow". check: function of the file's pyarrow schema, called before the
        first row, that raises UserError when the file lacks what is needed. fields: names of the
        columns; None = all.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with contextlib.ExitStack() as stack:
            if kind == "parquet":
                # With these settings pyarrow reads pages one by one, and not whole row groups.
                file = parquet.ParquetFile(path, buffer_size=READ_BYTES, pre_buffer=False)
                check(stack.enter_context(file).schema_arrow)
                batches = file.iter_batches(ROWS_PER_BATCH, columns=fields, use_threads=False)
            else:
                source = stack.enter_context(pyarrow.memory_map(path))
                is_file = source.read(len(ARROW_FILE)) == ARROW_FILE  # and no stream
                source.seek(0)
                batches = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(source)
                check(batches.schema)
                if is_file:
                    batches = map(batches.get_batch, range(batches.num_record_batches))
            for batch in batches:
                for first in range(0, batch.num_rows, ROWS_PER_BATCH):
                    rows = batch.slice(first, ROWS_PER_BATCH)
                    columns = map(rows.column, fields or range(rows.num_columns))
                    yield from zip(*map(values_of, columns), strict=True)
    except (pyarrow.ArrowException, OSError) as error:
        problem = " ".join(str(error).split())[:100]
        raise UserError(f"cannot be read ({problem})", "copy it again", where=name) from None


class WholeFile:
    """A file that is read from its beginning to its end, once or several times.

    Attributes:
      digest: SHA-256 of the file, "" before it has been read to its end.
    """

    digest = ""

    def __init__(self, path: str) -> None:
        self.path = path

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the file. Raises UserError when it cannot be read, is an archive,
        or has changed since it was last read.
        """
        check_regular(self.path)
        digest = hashlib.sha256()
        try:
            with tf.io.gfile.GFile(self.path, "rb") as file:
                for number, piece in enumerate(iter(lambda: file.read(READ_BYTES), b"")):
                    if not number:
                        check_plain(self.path, piece)
                    digest.update(piece)
                    yield piece
        except (tf.errors.OpError, OSError) as error:
            is_folder = tf.io.gfile.isdir(self.path)
            reason = "it is a folder" if is_folder else getattr(error, "message", error)
            raise UserError(
                f"cannot be read ({shortened(reason)})", "a table is needed", where=self.path
            ) from None
        if self.digest not in ("", digest.hexdigest()):
            raise UserError("has changed while it was read", "repeat the command", where=self.path)
        self.digest = digest.hexdigest()

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file with their ends. Raises UserError unless it is text."""
        return decoded_lines(self.pieces(), self.path)


class Table(WholeFile):
    """A table in a file.

    Args of the constructor:
      names: names of the columns of a .tsv or .csv without a header line; its first line is still a
        header if it has the names `expected`.
      expected: names of columns by which a header line is recognised. skips_broken: whether rows
        with more or fewer cells than there are columns are left out instead of refused. kind: LINES
        for a plain text; None = as `kind_of` says.

    Attributes:
      header: names of the columns; is_headed: whether the first line has them. unit: name of a row
        in messages. notes: remarks for the user: (QUOTES,) for a .tsv whose quotes enclose cells,
        else ().
      allowed: {index of a column: types that may stand in it beside texts, as for cells.text_of};
        an unnamed column may hold anything. absent: names of columns that a JSON object may only
        have if the first one has them. Both are set before `rows` is called.
      num_skipped: number of broken rows, known when `rows` has been read to its end.

    Raises:
      UserError: the file does not exist, is not in its format, has no row, or has another number of
        columns than `names`.
    """

    def __init__(
        self,
        path: str,
        names: Sequence[str] | None = None,
        expected: Iterable[str] = (),
        skips_broken: bool = False,
        kind: str | None = None,
    ) -> None:
        super().__init__(path)
        self.kind = kind or kind_of(path)
        self.unit = UNITS.get(self.kind, "line")
        self.names = names or ()
        self.expected = set(expected)
        self.skips_broken = skips_broken
        self.header: list[str] = []
        self.is_headed = True
        self.num_skipped = 0
        self.allowed: dict[int | None, type | tuple[type, ...]] = {}
        self.absent: set[str] = set()
        self.notes = (QUOTES,) if self.kind == "tsv" and are_enclosing(self.lines()) else ()
        if next(self.rows(), None) is None:
            raise UserError(
                "has no examples", "a header line and at least one row are needed", where=path
            )

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Return an iterator of (line, cells) of each row: the line on which it begins (in a
        parquet file the row's number), from 1, and its cells, one for each name of `header`.
        """
        if self.kind in DIALECTS:
            return self._separated_rows()
        rows = self._parquet_rows() if self.kind == "parquet" else self._json_rows()
        return ((line, self.texts(line, values)) for line, values in rows)

    def _separated_rows(self) -> Iterator[tuple[int, list[str]]]:
        self.num_skipped = 0
        self.header = []
        dialect = "quoted" if self.notes else self.kind
        for line, cells in separated_rows(self.lines(), dialect, self.path):
            if not self.header:
                self.header = self._header_of(cells)
                if self.is_headed:
                    continue
            if len(cells) == len(self.header):
                yield line, cells
            elif not self.skips_broken:
                where = "the header" if self.is_headed else "its first line"
                raise UserError(
                    f"line {line} has {len(cells)} columns, {where} {len(self.header)}",
                    REMEDIES[self.kind],
                    where=self.path,
                )
            else:
                self.num_skipped += 1

    def _header_of(self, cells: Sequence[str]) -> list[str]:
        titles = [title.strip() for title in cells]
        is_expected = self.expected <= set(titles)
        if len(titles) == 1 and len(self.names) != 1 and not is_expected:
            check_delimiter(titles[0], self.kind, self.path, DELIMITERS)
        self.is_headed = not self.names or is_expected
        if not self.is_headed and len(cells) != len(self.names):
            raise UserError(
                f"line 1 has {len(cells)} columns and is no header (it lacks "
                f"{shortened(min(self.expected - set(titles)))!r})",
                f"--columns must name each column, and {len(self.names)} are named: "
                f"{shortened(', '.join(self.names))}",
                where=self.path,
            )
        return titles if self.is_headed else list(self.names)

    def _json_rows(self) -> Iterator[tuple[int, Sequence[object]]]:
        is_array = self.kind == "json"
        for first, text in enumerate(["".join(self.lines())] if is_array else self.lines(), 1):
            if not text.strip():
                continue
            try:
                value = parse_json(text)
            except (ValueError, RecursionError) as error:
                raise self._refused(first, f"is not valid JSON ({str(error)[:60]})") from None
            for line, record in enumerate(value if is_array else [value], first):
                # a JSON object whose values are all objects is a table by columns, as pandas
                # writes it
                if not isinstance(record, dict) or all(
                    isinstance(x, dict) for x in record.values()
                ):
                    raise self._refused(line, "is not an object with a row's cells")
                self.header = self.header or list(record)
                missing = [name for name in self.header if name not in record]
                if missing:
                    raise self._refused(line, f"has no {missing[0][:60]!r}")
                if late := self.absent.intersection(record).difference(self.header):
                    raise self._refused(line, f"has {min(late)[:60]!r}, which the first has not")
                yield line, [record[name] for name in self.header]

    def _refused(self, line: int, problem: str) -> UserError:
        return UserError(
            f"{self.unit} {line} {problem}",
            'each is an object such as {"text_a": "...", "label": "1"}, with the keys of the first',
            where=self.path,
        )

    def _parquet_rows(self) -> Iterator[tuple[int, Sequence[object]]]:
        self.header = []
        rows = typed_rows(
            self.path, self.kind, self.path, lambda schema: self.header.extend(schema.names)
        )
        yield from enumerate(rows, 1)
        collections.deque(self.pieces(), 0)  # for their digest

    def texts(self, line: int, values: Sequence[object], list_in: int | None = None) -> list[str]:
        """Return the texts of a row's values or, if they are a list in the column with the index
        list_in, of its entries. Raises UserError for a value without a text where it needs one.
        """
        texts: list[str] = []
        try:
            for place, value in enumerate(values):
                allowed = self.allowed.get(place, object) if list_in is None else ()
                texts.append(text_of(value, allowed))
        except NoText as error:
            title = self.header[len(texts) if list_in is None else list_in]
            raise UserError(
                f"{self.unit} {line} has {error} in {shortened(title)!r}",
                "write a text there, or leave the row out",
                where=self.path,
            ) from None
        return texts

    def class_names(self, column: int) -> tuple[str, ...]:
        """Return the class names that stand for the numbers in a column, or in the column's lists,
        as Hugging Face's `datasets` notes them in the schema of a parquet file; () where nothing
        notes them.
        """
        if self.kind != "parquet":
            return ()
        from pyarrow import parquet

        noted = (parquet.read_schema(self.path).metadata or {}).get(b"huggingface", b"{}")
        try:
            feature = json.loads(noted)["info"]["features"][self.header[column]]
            while isinstance(feature, list) or "feature" in feature:  # a list: look at its entries
                feature = feature[0] if isinstance(feature, list) else feature["feature"]
            return tuple(map(str, feature["names"]))
        except (ValueError, LookupError, TypeError, RecursionError):
            return ()


def kind_of(path: str) -> str:
    """Return the kind of a table, one of KINDS or "json" (an array): by the ending of its path or,
    where that does not tell, by the beginning of the file.
    """
    ending = str(path).rpartition(".")[2].lower()
    if ending in KINDS:
        return ending
    begin = next(WholeFile(path).pieces(), b"")
    line = begin.partition(b"\n")[0]
    is_kind = dict(
        parquet=begin.startswith(b"PAR1"),
        json=ending == "json" and begin.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["),
        jsonl=line.lstrip().startswith(b"{"),
        tsv=b"\t" in line,
    )
    return next((kind for kind, is_so in is_kind.items() if is_so), "csv")
