"""Pair datasets: schema, audio, importers, splits, inspection, sampling."""
