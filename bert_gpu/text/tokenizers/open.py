"""Opens the tokenizer of a file: WordPiece from a vocabulary, SentencePiece from a model."""

from bert_gpu.text.tokenizers.sentence_piece import SentencePieceTokenizer
from bert_gpu.text.tokenizers.wordpiece import Tokenizer, WordPieceTokenizer


def open_tokenizer(path: str, do_lower_case: bool | None) -> Tokenizer:
    """Open the tokenizer of a file: SentencePiece when its name ends in .model, else WordPiece."""
    if str(path).endswith(".model"):
        return SentencePieceTokenizer(path, do_lower_case)
    return WordPieceTokenizer(path, do_lower_case)
