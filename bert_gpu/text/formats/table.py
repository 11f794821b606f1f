"""The formats of text files: a row for each, from which come names, detection, --help, messages and
readers.

A new format is a module with its reader and a row of FORMATS. Readers are imported when they are
used, because the settings, which need the names, must be quick to import.
"""

import pkgutil
import typing
from collections.abc import Callable
from typing import Any


class Format(typing.NamedTuple):
    """A format of text files, a row of FORMATS.

    Attributes:
      name: a value of --input_format.
      help: name and content, for --help; empty if an earlier row's help has both.
      description: name, and which parts of a file are documents, for the log.
      endings: endings of names of files in it. The first line of a .json file decides its format.
      magic: first bytes, by which standard input is recognised.
      text_in: "field" or "column", which --text_field names; None where texts have no name.
      is_streamed: whether any worker can read any part of a file, because each text is on a line.
        The texts of other formats are first written to a file of this kind (archives.py).
      reads_path: whether the reader takes the path of a local file in place of its bytes. Such a
        file has its own compression.
      reader: dotted name of the function that reads it; empty where lines are the texts. The reader
        of a streamed format returns the text for a line, the field and the index of the line. Other
        readers take the bytes in pieces (or the path), the TextFormat and the name of the file for
        messages, and yield texts, empty where a row has none. They raise UserError for a file that
        is not in the format.
    """

    name: str
    help: str
    description: str
    endings: tuple[str, ...] = ()
    magic: tuple[bytes, ...] = ()
    text_in: str | None = None
    is_streamed: bool = True
    reads_path: bool = False
    reader: str = ""

    def load_reader(self) -> Callable[..., Any]:
        """Return the function that `reader` names."""
        return pkgutil.resolve_name(self.reader)


FORMATS = {
    row.name: row
    for row in (
        Format(
            name="lines",
            help="lines = one sentence per line, a blank line between documents",
            description="lines: one sentence a line, documents end at blank lines",
        ),
        Format(
            name="documents",
            help="documents = one document per line",
            description="documents: every line is one, split into sentences",
        ),
        Format(
            name="jsonl",
            help="jsonl = one JSON object per line",
            description="JSON Lines: every object is a document",
            endings=(".json", ".jsonl", ".ndjson"),
            text_in="field",
            reader="bert_gpu.text.formats.plain.text_of_json",
        ),
        Format(
            name="json",
            help="json = an array of objects",
            description="JSON: every object is a document",
            endings=(".json",),
            text_in="field",
            is_streamed=False,
            reader="bert_gpu.text.formats.containers.json_texts",
        ),
        Format(
            name="csv",
            help="csv and tsv = tables whose first line names the columns",
            description="CSV: every row is a document",
            endings=(".csv",),
            text_in="column",
            is_streamed=False,
            reader="bert_gpu.text.formats.containers.table_texts",
        ),
        Format(
            name="tsv",
            help="",
            description="TSV: every row is a document",
            endings=(".tsv",),
            text_in="column",
            is_streamed=False,
            reader="bert_gpu.text.formats.containers.table_texts",
        ),
        Format(
            name="parquet",
            help="parquet",
            description="parquet: every row is a document",
            endings=(".parquet",),
            magic=(b"PAR1",),
            text_in="column",
            is_streamed=False,
            reads_path=True,
            reader="bert_gpu.text.formats.containers.column_texts",
        ),
        Format(
            name="arrow",
            help="arrow = also data sets that Hugging Face's library saved on disk",
            description="Arrow: every row is a document",
            endings=(".arrow", ".feather"),
            # the beginnings of an Arrow file, and of a stream that `datasets` saved
            magic=(b"ARROW1", b"\xff\xff\xff\xff"),
            text_in="column",
            is_streamed=False,
            reads_path=True,
            reader="bert_gpu.text.formats.containers.column_texts",
        ),
    )
}
