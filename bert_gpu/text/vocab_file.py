"""Reads the file of a WordPiece vocabulary: pieces in order of ids, one a line, or Hugging Face's
tokenizer.json. Refuses what BERT cannot use.
"""

import os

import tensorflow as tf

from bert_gpu.files import check_regular, parse_json
from bert_gpu.settings import UserError, shortened, shortened_path

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def read_vocab(vocab_file):
    """The pieces of a vocabulary file, in order of ids: one a line (LF and CRLF line ends are the
    same), or in a tokenizer.json of Hugging Face's. Raises UserError.
    """

    def refuse(problem):
        raise UserError(f"{shortened_path(vocab_file)}: {problem}")

    if tf.io.gfile.isdir(vocab_file):
        name = os.path.basename(vocab_in(vocab_file))
        refuse(f"is a folder; name the vocabulary file in it, such as {shortened(name)}")
    check_regular(vocab_file)
    try:
        with tf.io.gfile.GFile(vocab_file, "rb") as file:
            content = file.read()
    except tf.errors.NotFoundError:
        refuse(
            "no such vocabulary file; check the path, or make one with `python -m bert_gpu vocab`"
        )
    except (tf.errors.OpError, OSError) as error:
        refuse(
            "cannot be read as a vocabulary file "
            f"({type(error).__name__}); name a readable text file"
        )
    if str(vocab_file).endswith(".json"):
        vocab = pieces_of_json(content, refuse)
        first_line = {piece: number for number, piece in enumerate(vocab, 1)}
    else:
        vocab, first_line = pieces_of_lines(content, refuse)
    missing = [piece for piece in SPECIAL_PIECES if piece not in first_line]
    if missing:
        refuse(
            f"{', '.join(missing)} missing; a BERT vocabulary has "
            f"all of {' '.join(SPECIAL_PIECES)}, each on its own line"
        )
    if vocab[0] != "[PAD]":
        refuse(
            f"[PAD] is on line {first_line['[PAD]']}; "
            "it must be on line 1, because BERT pads with id 0"
        )
    return vocab


def pieces_of_lines(content, refuse):
    """(pieces, {piece: its line}) of the bytes of a vocabulary with one piece a line. refuse:
    raises the error for a problem.
    """
    try:
        lines = content.decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line_number = content.count(b"\n", 0, error.start) + 1
        refuse(f"line {line_number} is not UTF-8; save the vocabulary as UTF-8")
    # Google strips lines; a piece of spaces alone (some public vocabularies have one) keeps its id
    # and matches nothing.
    vocab = [line.strip() or line.removesuffix("\r") for line in lines]
    if vocab == [""]:
        refuse("the vocabulary is empty; one piece a line is needed")
    first_line = {}
    for line_number, piece in enumerate(vocab, 1):
        if not piece:
            refuse(
                f"line {line_number} is blank; every line of a vocabulary is a piece, so remove it"
            )
        if first_line.setdefault(piece, line_number) != line_number:
            refuse(
                f"lines {first_line[piece]} and {line_number} are both "
                f"{piece[:80]!r}; remove one of them"
            )
    return vocab, first_line


def pieces_of_json(content, refuse):
    """The pieces of the bytes of a tokenizer.json, in order of ids. refuse: raises the error for a
    problem.
    """
    try:
        stored = parse_json(content.decode())
        model = stored["model"]
        ids = dict(model["vocab"]) | {
            token["content"]: token["id"] for token in stored.get("added_tokens") or []
        }
        vocab = sorted(ids, key=ids.get)
        kind = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
        is_numbered = [ids[piece] for piece in vocab] == list(range(len(vocab)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        refuse("is not a tokenizer.json with a vocabulary; name a vocab.txt instead")
    if kind != "WordPiece" or model.get("continuing_subword_prefix", "##") != "##":
        refuse(f"has a {str(kind)[:40]} tokenizer, not BERT's WordPiece; name a vocab.txt instead")
    if not is_numbered or not vocab:
        refuse("its ids are not 0, 1, 2 and so on; get the file again, or name a vocab.txt")
    odd = next((piece for piece in vocab if not is_a_line(piece)), None)
    if odd is not None:
        refuse(
            f"piece {ids[odd]} is {shortened(odd)!r}, which no line of a vocab.txt can be; remove "
            "it"
        )
    return vocab


def is_a_line(piece):
    """Whether a piece reads back the same from a line of a vocabulary file."""
    try:
        return piece != "" and piece.strip() == piece and piece.encode().count(b"\n") == 0
    except UnicodeEncodeError:  # a lone surrogate
        return False


def vocab_in(folder):
    """The file in a folder that is probably meant: vocab.txt, or the only .txt."""
    names = [name for name in tf.io.gfile.listdir(folder) if name.endswith(".txt")]
    return os.path.join(folder, names[0] if len(names) == 1 else "vocab.txt")
