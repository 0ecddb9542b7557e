"""Corpora that somebody else published: one file each, and where a table holds a corpus, its mapping beside it."""
