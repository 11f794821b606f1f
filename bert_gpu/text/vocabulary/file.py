"""Reads the file of a WordPiece vocabulary: pieces in order of ids, one a line, or Hugging Face's
tokenizer.json. Refuses files that BERT cannot use.

An id without a piece has "" in the list of pieces: the id of a blank line, or of a line that a
later line repeats. Of equal lines the last counts, as in the `load_vocab` of Google and of
transformers.
"""

from collections.abc import Collection

import numpy as np
import tensorflow as tf

from bert_gpu.base import console
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.files import check_regular, parse_json
from bert_gpu.text.tokenizers.rules import SPECIAL_PIECES


def read_vocab(path: str) -> list[str]:
    """Return the pieces of a vocabulary file in order of ids, "" for an id without a piece. The
    file is a text of one piece a line (LF and CRLF line ends are the same) or a tokenizer.json of
    Hugging Face's. Raises UserError.
    """
    if tf.io.gfile.isdir(path):
        names = [name for name in tf.io.gfile.listdir(path) if name.endswith(".txt")]
        name = names[0] if len(names) == 1 else "vocab.txt"
        raise UserError(
            "is a folder", f"name the vocabulary file in it, such as {shortened(name)}", where=path
        )
    content = read_file(path, "vocabulary file", "text file", command="python -m bert_gpu vocab")
    vocab = (pieces_of_json if str(path).endswith(".json") else pieces_of_lines)(content, path)
    missing = [piece for piece in SPECIAL_PIECES if piece not in vocab]
    if missing:
        raise UserError(
            f"{', '.join(missing)} missing",
            f"a BERT vocabulary has all of {' '.join(SPECIAL_PIECES)}, each on its own line",
            where=path,
        )
    if vocab[0] != "[PAD]":
        raise UserError(
            f"[PAD] is on line {vocab.index('[PAD]') + 1}",
            "it must be on line 1 alone, because BERT pads with id 0",
            where=path,
        )
    return vocab


def read_file(path: str, what: str, kind: str, command: str) -> bytes:
    """Return the content of a vocabulary or model.

    Args:
      what: name of the expected content. kind: kind of file that the user should name. command:
        command that makes such a file. All three are for messages.

    Raises UserError.
    """
    check_regular(path)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read()
    except tf.errors.NotFoundError:
        raise UserError(
            f"no such {what}", f"check the path, or make one with `{command}`", where=path
        ) from None
    except (tf.errors.OpError, OSError) as error:
        raise UserError(
            f"cannot be read as a {what} ({type(error).__name__})",
            f"name a readable {kind}",
            where=path,
        ) from None


def pieces_of_lines(content: bytes, path: str) -> list[str]:
    """Return the pieces of a vocabulary with one piece a line; blank lines at its end are left out.
    path: path of the file, for messages. Raises UserError.
    """
    try:
        lines = content.decode("utf-8-sig").rstrip("\r\n").split("\n")
    except UnicodeDecodeError as error:
        line_number = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"line {line_number} is not UTF-8", "save the file as UTF-8", where=path
        ) from None
    # Google strips lines; a piece of spaces alone (some public vocabularies have one) keeps its id
    # and matches nothing.
    pieces = [line.strip() or line.removesuffix("\r") for line in lines]
    if pieces == [""]:
        raise UserError("is empty", "one piece or word a line is needed", where=path)
    last = {piece: index for index, piece in enumerate(pieces)}
    return [piece if last[piece] == index else "" for index, piece in enumerate(pieces)]


def pieces_of_json(content: bytes, path: str) -> list[str]:
    """Return the pieces of a tokenizer.json, in order of ids. path: path of the file, for messages.
    Raises UserError.
    """
    try:
        tokenizer = parse_json(content.decode())
        model = tokenizer["model"]
        ids = dict(model["vocab"]) | {
            token["content"]: token["id"] for token in tokenizer.get("added_tokens") or []
        }
        kind = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
        pieces = {index: piece for piece, index in ids.items() if piece}
        num_rows = min(int(max(pieces, default=-1)) + 1, 2 * len(pieces))
        vocab = [pieces.get(index, "") for index in range(num_rows)]
        is_numbered = num_pieces(vocab) == num_pieces(ids)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(
            "is not a tokenizer.json with a vocabulary", "name a vocab.txt instead", where=path
        ) from None
    if kind != "WordPiece" or model.get("continuing_subword_prefix", "##") != "##":
        raise UserError(
            f"has a {str(kind)[:40]} tokenizer, not BERT's WordPiece",
            "name a vocab.txt instead",
            where=path,
        )
    if not is_numbered or not vocab:
        raise UserError(
            "its ids are not 0, 1, 2 and so on",
            "get the file again, or name a vocab.txt",
            where=path,
        )
    odd = next((piece for piece in vocab if not is_a_line(piece)), None)
    if odd is not None:
        raise UserError(
            f"piece {ids[odd]} is {shortened(odd)!r}, which no line of a vocab.txt can be",
            "remove it",
            where=path,
        )
    return vocab


def is_a_line(piece: str) -> bool:
    """Return whether a piece can be written as a line of a vocabulary file and read back
    unchanged.
    """
    try:
        return piece.strip() == piece and piece.encode().count(b"\n") == 0
    except UnicodeEncodeError:  # a lone surrogate
        return False


def num_pieces(vocab: Collection[str]) -> int:
    """Return the number of pieces in a vocabulary, without the "" of ids that have none."""
    return sum(map(bool, vocab))


def has_piece(vocab: list[str], num_rows: int) -> np.ndarray:
    """Return, for each of num_rows ids, whether the vocabulary has a piece for it: bool
    (num_rows,). num_rows: at least len(vocab), such as the rows of an embedding table.
    """
    return np.pad(np.array([*map(bool, vocab)]), (0, num_rows - len(vocab)))


def warn_of_blanks(vocab_file: str, vocab: list[str]) -> None:
    """Warn, once, if lines of a vocabulary file are blank or repeated, so that their ids have no
    piece.
    """
    if blank := len(vocab) - num_pieces(vocab):
        console.warn_once(
            f"{vocab_file}: {blank:,} of {len(vocab):,} lines are blank or are repeated further "
            "down; they keep their ids, which no text gets; remove them before training a new model"
        )
