"""A judge of vocal empathy that listens: trained on human ratings, measured against them, exported as a scorer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .scorer import Scorer

__all__ = ["Scorer", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Lazy (PEP 562): `empathy-judge --help` must not load torch
    if name == "Scorer":
        from .scorer import Scorer

        return Scorer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
