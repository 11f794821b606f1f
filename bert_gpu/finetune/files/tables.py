"""Reads the tables of tasks (.tsv, .csv, .jsonl, .json and .parquet) row by row.

A row is read as the texts of its cells (text/formats/cells.py). Columns of .tsv are separated by
tabs, and those of .csv by commas, with quotes (RFC 4180); blank lines are no rows. A line of
.jsonl, or an entry of the array of a .json, is an object, whose keys are the columns. A table is
read in pieces, except for a JSON array, so that its size does not matter. It is read again whenever
its rows are needed; a digest shows that the file has not changed.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bert_gpu.base import files
from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.finetune.tasks.table import ENDINGS
from bert_gpu.text.formats.cells import (
    DIALECTS,
    NoText,
    are_enclosing,
    separated_rows,
    text_of,
    values_of,
)
from bert_gpu.text.formats.containers import CONVERT, check_delimiter, decoded_lines
from bert_gpu.text.formats.encodings import check_plain

tf = LazyModule("tensorflow")

LINES = "lines"  # the kind of a plain text, whose lines are the cells of one column
UNITS = dict(json="object", parquet="row")  # {kind: name of a row in messages}, else a line
QUOTES = "its quotes enclose cells, as in .csv, and are read so"
OTHER_DELIMITERS = {  # {wrong delimiter in a header: remedy}
    ";": CONVERT,
    "|": CONVERT.replace(";", "|"),
    "\t": "name it .tsv",
    ",": "name it .csv",
}
REMEDIES = {
    "tsv": "quote texts with a tab, line break or quote, as Python's csv module does",
    "csv": "a text with a comma or line break needs quotes",
}
READ_BYTES = 1 << 20
ROWS_PER_BATCH = 1024


class Table:
    """A table in a file.

    Args of the constructor:
      path: of the file, whose format is that of `kind_of`.
      names: names of the columns of a .tsv or .csv without a header line; its first line is still a
        header if it has the names `expected`.
      expected: names of columns by which a header line is recognised. skips_broken: whether rows
        with more or fewer cells than there are columns are left out instead of refused. kind: LINES
        for a plain text; None = as the path says.

    Attributes:
      header: names of the columns. notes: remarks for the user: (QUOTES,) for a .tsv whose quotes
        enclose cells, else ().
      allowed: {index of a column: types that may stand in it beside texts, as for cells.text_of};
        an unnamed column may hold anything. absent: names of columns that a JSON object may only
        have if the first one has them. Both are set before `rows` is called.
      digest: SHA-256 of the file, and num_skipped: broken rows, both known when `rows` has been
        read to its end; "" and 0 before.

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
        self.path = path
        self.names = names or ()
        self.skips_broken = skips_broken
        self.kind = kind or kind_of(path)
        self.expected = set(expected)
        self.header: list[str] = []
        self.digest = ""
        self.num_skipped = 0
        self.is_headed = True
        self.allowed: dict[int | None, type | tuple[type, ...]] = {}
        self.absent: set[str] = set()
        self.notes = (QUOTES,) if self.kind == "tsv" and are_enclosing(self._lines()) else ()
        if next(self.rows(), None) is None:
            raise UserError(
                "has no examples", "a header line and at least one row are needed", where=path
            )

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Return an iterator of (line, cells) of each row: the line on which it begins (in a
        parquet file the row's number), from 1, and its cells, one for each name of `header`.
        """
        self.num_skipped = 0
        if self.kind in DIALECTS:
            return self._separated_rows()
        return self._parquet_rows() if self.kind == "parquet" else self._json_rows()

    @property
    def unit(self) -> str:
        """The name of a row in messages."""
        return UNITS.get(self.kind, "line")

    def _separated_rows(self) -> Iterator[tuple[int, list[str]]]:
        digest = hashlib.sha256()
        header: list[str] | None = None
        for line, cells in separated_rows(
            self._lines(digest), "quoted" if self.notes else self.kind, self.path
        ):
            if header is None:
                header = self._header_of(cells)
                self.header = header
                if self.is_headed:
                    continue
            if len(cells) == len(header):
                yield line, cells
            else:
                yield from self._broken(line, len(cells))
        self.digest = settled_digest(self.path, digest, self.digest)

    def _lines(self, digest: hashlib._Hash | None = None) -> Iterator[str]:
        return decoded_lines(read_pieces(self.path, digest or hashlib.sha256()), self.path)

    def _header_of(self, cells: Sequence[str]) -> list[str]:
        titles = [title.strip() for title in cells]
        if len(titles) == 1 and len(self.names) != 1 and not self.expected <= set(titles):
            check_delimiter(titles[0], self.kind, self.path, OTHER_DELIMITERS)
        self.is_headed = not self.names or self.expected <= set(titles)
        if not self.is_headed and len(cells) != len(self.names):
            raise UserError(
                f"line 1 has {len(cells)} columns and is no header (it lacks "
                f"{shortened(min(self.expected - set(titles)))!r})",
                f"--columns must name each column, and {len(self.names)} are named: "
                f"{shortened(', '.join(self.names))}",
                where=self.path,
            )
        return titles if self.is_headed else list(self.names)

    def _broken(self, line: int, num_cells: int) -> tuple[()]:
        """Count a row with a wrong number of cells as skipped, or raise UserError where rows may
        not be skipped. num_cells: number of cells of the row.
        """
        if not self.skips_broken:
            where = "the header" if self.is_headed else "its first line"
            raise UserError(
                f"line {line} has {num_cells} columns, {where} {len(self.header)}",
                REMEDIES[self.kind],
                where=self.path,
            )
        self.num_skipped += 1
        return ()

    def _json_rows(self) -> Iterator[tuple[int, list[str]]]:
        digest = hashlib.sha256()
        lines = self._lines(digest)
        for first, text in enumerate(["".join(lines)] if self.kind == "json" else lines, 1):
            if not text.strip():
                continue
            try:
                value = files.parse_json(text)
            except (ValueError, RecursionError) as error:
                raise self._refused(first, f"is not valid JSON ({str(error)[:60]})") from None
            for line, record in enumerate(value if self.kind == "json" else [value], first):
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
                yield line, self.texts(line, [record[name] for name in self.header])
        self.digest = settled_digest(self.path, digest, self.digest)

    def texts(self, line: int, values: Sequence[Any], list_in: int | None = None) -> list[str]:
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

    def _refused(self, line: int, problem: str) -> UserError:
        return UserError(
            f"{self.unit} {line} {problem}",
            'each is an object such as {"text_a": "...", "label": "1"}, with the keys of the first',
            where=self.path,
        )

    def _parquet_rows(self) -> Iterator[tuple[int, list[str]]]:
        import pyarrow
        from pyarrow import parquet

        row = 0
        try:
            with parquet.ParquetFile(self.path, memory_map=True) as file:
                self.header = list(file.schema_arrow.names)
                for batch in file.iter_batches(ROWS_PER_BATCH):
                    for values in zip(*map(values_of, batch.columns), strict=True):
                        row += 1
                        yield row, self.texts(row, values)
        except (pyarrow.ArrowException, OSError) as error:
            problem = " ".join(str(error).split())[:100]
            raise UserError(
                f"cannot be read ({problem})", "copy it again", where=self.path
            ) from None
        digest = hashlib.sha256()
        for _ in read_pieces(self.path, digest):
            pass
        self.digest = settled_digest(self.path, digest, self.digest)


def settled_digest(path: str, digest: hashlib._Hash, before: str) -> str:
    """Return the hexadecimal digest of a whole file that has been read. before: the digest from the
    last reading, or "". Raises UserError when the two digests differ.
    """
    current = digest.hexdigest()
    if before not in ("", current):
        raise UserError("has changed while it was read", "repeat the command", where=path)
    return current


def kind_of(path: str) -> str:
    """Return the format of a table, one of ENDINGS or "json" (an array): by the ending of its path
    or, where that does not tell, by the beginning of the file.
    """
    ending = str(path).rpartition(".")[2].lower()
    if ending in ENDINGS:
        return ending
    begin = next(read_pieces(path, hashlib.sha256()), b"")
    if begin.startswith(b"PAR1"):
        return "parquet"
    line = begin.partition(b"\n")[0]
    if ending == "json" and begin.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return "json"
    return "jsonl" if line.lstrip().startswith(b"{") else "tsv" if b"\t" in line else "csv"


def class_names(path: str, column: str) -> tuple[str, ...]:
    """Return the class names that stand for the numbers in a column of a .parquet, or in the
    column's lists, as Hugging Face's `datasets` notes them in the file's schema; () where the
    schema has none.
    """
    from pyarrow import parquet

    noted = (parquet.read_schema(path).metadata or {}).get(b"huggingface", b"{}")
    try:
        feature = json.loads(noted)["info"]["features"][column]
        while isinstance(feature, list) or "feature" in feature:  # a list: look at its entries
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        return tuple(map(str, feature["names"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return ()


def read_pieces(path: str, digest: hashlib._Hash) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces, and add them to a hash. Raises UserError when the file
    cannot be read, or is an archive.
    """
    files.check_regular(path)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            for number, piece in enumerate(iter(lambda: file.read(READ_BYTES), b"")):
                if not number:
                    check_plain(path, piece)
                digest.update(piece)
                yield piece
    except (tf.errors.OpError, OSError) as error:
        reason = "it is a folder" if tf.io.gfile.isdir(path) else getattr(error, "message", error)
        raise UserError(
            f"cannot be read ({shortened(reason)})", "a table is needed", where=path
        ) from None


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows of a table that belong to a split, by the number that `share_of` makes of a row:
    "train" has the numbers in train_only and those from train_from on, "test" of the others those
    below test_to, and "dev" the rest. split: name of the split, None for all rows.
    """

    split: str | None = None
    test_to: float = 0.0
    train_from: float = 0.0
    train_only: frozenset[float] = frozenset()

    def takes(self, texts: Iterable[str | None]) -> bool:
        return self.split is None or self.split == self._split_of(share_of(texts))

    def _split_of(self, share: float) -> str:
        if share >= self.train_from or share in self.train_only:
            return "train"
        return "test" if share < self.test_to else "dev"

    def fitted(self, shares: Iterable[float]) -> Part:
        """Return the Part with its bounds moved up so that neither "test" nor "dev" is empty: a
        split without texts gets the text with the next higher share, unless that would leave
        nothing to train on. shares: the `share_of` of all rows.
        """
        texts = sorted(set(shares))
        begin = 0
        bounds: list[float] = []
        for low, high in ((0.0, self.test_to), (self.test_to, self.train_from)):
            is_empty = low < high and bisect.bisect_left(texts, high) <= begin < len(texts) - 1
            bounds.append(math.nextafter(texts[begin], 1) if is_empty else max([high, *bounds]))
            begin = bisect.bisect_left(texts, bounds[-1])
        return dataclasses.replace(self, test_to=bounds[0], train_from=bounds[1])

    def describe(self) -> str:
        """Return, as text, the range of `share_of` that the Part's rows have, such as ", share 0 to
        0.1"; "" for all rows.
        """
        if self.split is None:
            return ""
        bounds = (0.0, self.test_to, self.train_from, 1.0)
        place = ("test", "dev", "train").index(self.split)
        low, high = bounds[place : place + 2]
        only = f", {len(self.train_only)} texts only to train" if self.train_only else ""
        return f", share {low:g} to {high:g}{only}"


def share_of(texts: Iterable[str | None]) -> float:
    """Return a number in [0, 1) that depends only on the texts of an example, not on their order,
    so that equal examples stay in one split whenever and wherever a table is split.
    """
    return hash_of(*texts) / 2**64


def hash_of(*texts: str | None) -> int:
    """Return a number in [0, 2**64) that depends on some texts and not on their order."""
    joined = "\0".join(sorted(text or "" for text in texts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(joined).digest()[:8], "big")
