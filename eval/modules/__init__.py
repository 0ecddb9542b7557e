"""Modules for the ``evaluate`` library: ``evaluate.load(AGREEMENT)`` and ``evaluate.load(SCORE)``.

``evaluate`` copies a module to its cache and imports it there, so each is one file that imports this package by its
name.
"""

from pathlib import Path

AGREEMENT = str(Path(__file__).parent / "empathy_agreement")
"""A metric: agreement of scores with human ratings, with intervals and ceiling."""

SCORE = str(Path(__file__).parent / "empathy_score")
"""A measurement: scores of spoken responses by a trained judge."""
