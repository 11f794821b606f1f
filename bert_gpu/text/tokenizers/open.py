"""Opens the tokenizer of a file: WordPiece from a vocabulary, SentencePiece from a model."""

from bert_gpu.text.tokenizers.sentence_piece import SentencePieceTokenizer
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer


def open_tokenizer(path, do_lower_case):
    """The tokenizer of a file: SentencePiece when its name ends in .model, WordPiece otherwise."""
    if str(path).endswith(".model"):
        return SentencePieceTokenizer(path, do_lower_case)
    return WordPieceTokenizer(path, do_lower_case)
