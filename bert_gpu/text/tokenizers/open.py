"""Opens the tokenizer of a file: WordPiece from a vocabulary, SentencePiece from a model, and any
tokenizer of Hugging Face's from a tokenizer.json.
"""

import tensorflow as tf

from bert_gpu.base.files import parse_json
from bert_gpu.text.tokenizers.hugging_face import HuggingFaceTokenizer
from bert_gpu.text.tokenizers.rules import flat, letters_of, needs_library
from bert_gpu.text.tokenizers.sentence_piece import SentencePieceTokenizer
from bert_gpu.text.tokenizers.wordpiece import Tokenizer, WordPieceTokenizer
from bert_gpu.text.vocabulary.file import read_file


def open_tokenizer(
    path: str, do_lower_case: bool | None, strip_accents: bool | None = None
) -> Tokenizer:
    """Open the tokenizer of a file: SentencePiece when its name ends in .model; for a
    tokenizer.json the tokenizer that it describes, through Hugging Face's library only if our
    WordPiece gives other ids; for any other file WordPiece.

    strip_accents: None = as a tokenizer.json says; otherwise yes.
    """
    if str(path).endswith(".model"):
        return SentencePieceTokenizer(path, do_lower_case)
    stored = read_stored(path)
    if needs_library(stored):
        return HuggingFaceTokenizer(path, do_lower_case)
    if strip_accents is None:
        strip_accents = letters_of(flat(stored)).get("strip_accents", True)
    return WordPieceTokenizer(path, do_lower_case, strip_accents)


def read_stored(path: str | None) -> dict[str, object]:
    """Return the content of a tokenizer.json; {} for any other file or None, and for a broken
    tokenizer.json, whose error is raised when it is then read as a vocabulary.
    """
    if path is None or not str(path).endswith(".json") or tf.io.gfile.isdir(path):
        return {}
    content = read_file(path, "vocabulary file", "text file", "python -m bert_gpu vocab")
    try:
        stored = parse_json(content.decode())
    except (ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}
