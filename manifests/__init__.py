"""Scores for manifests: tables with one pair in a row, from one row to ten million."""
