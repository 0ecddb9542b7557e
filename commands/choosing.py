"""The command that chooses among responses. Heavy imports stand inside it, so that help is instant."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..data_modules.errors import AudioError
from . import DONE, FAILED_CHECKS

if TYPE_CHECKING:
    from rich.table import Table

    from ..models.assessment import Ranked, Score


def rank(options: argparse.Namespace) -> int:
    """Put several responses to one context in order, the best first.

    The order follows the place of the score on its scale; of several dimensions all count equally, or those of --by.
    Intervals show how far the order can be trusted: responses whose intervals overlap may as well change places.
    """
    from rich.console import Console

    from ..scorer import Scorer

    scorer = Scorer.from_pretrained(
        options.judge, backbone=options.backbone, device=options.device, quantization=options.quantization
    )
    context = None if options.context in ("", "-") else options.context
    ranked = scorer.rank(context, options.responses, situation=options.situation, by=options.by)
    if options.json:
        print(json.dumps([_row(options.responses[own.index], place, own) for place, own in enumerate(ranked, 1)]))
    else:
        names = [dimension.name for dimension in scorer.dimensions]
        Console().print(_table(options.responses, ranked, names), markup=False)
    return DONE if all(own.merit is not None for own in ranked) else FAILED_CHECKS


def _row(response: str, place: int, own: Ranked) -> dict[str, Any]:
    """For machines."""
    if isinstance(own.found, AudioError):
        return {"place": None, "response": response, "merit": None, "status": str(own.found)}
    scores = {
        name: {"score": one.score, "low": one.low, "high": one.high, "label": one.label}
        for name, one in own.found.scores.items()
    }
    warnings = [{"code": caution.code, "text": caution.text} for caution in own.found.warnings]
    values = {"place": place, "response": response, "merit": own.merit, "scores": scores, "warnings": warnings}
    return {**values, "status": "ok"}


def _table(responses: Sequence[str], ranked: Sequence[Ranked], names: Sequence[str]) -> Table:
    """For people."""
    from ..eval.rendering import new_table

    table = new_table()
    table.add_column("place", justify="right")
    table.add_column("response", overflow="fold")
    for column in (*names, "remarks"):
        table.add_column(column)
    for place, own in enumerate(ranked, start=1):
        if isinstance(own.found, AudioError):
            table.add_row("—", responses[own.index], *("—" for _ in names), str(own.found))
        else:
            remarks = "; ".join(caution.text for caution in own.found.warnings)
            scores = [_in_words(own.found.scores[name]) for name in names]
            table.add_row(str(place), responses[own.index], *scores, remarks)
    return table


def _in_words(own: Score) -> str:
    text = f"{own.score:.2f}" + ("" if own.low is None or own.high is None else f" ({own.low:.2f} to {own.high:.2f})")
    return text if own.label is None else f"{text} {own.label}"
