"""Sentences: readers of text, tokens and the corpus on disk."""
