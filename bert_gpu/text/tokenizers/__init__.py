"""Sentences in, token ids out: WordPiece and SentencePiece."""
