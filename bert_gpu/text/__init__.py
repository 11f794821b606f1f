"""Text in, token ids out: corpora, vocabularies, tokenizers."""
