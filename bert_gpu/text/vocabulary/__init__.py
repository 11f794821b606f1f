"""Vocabularies: learned from text, read from files."""
