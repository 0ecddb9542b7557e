"""What a model card says of agreement with people, of listening and of intervals: all out of an agreement report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TAKEN_AWAY = {
    "response_only": "without its context",
    "context_only": "without the response",
    "context_swapped": "with the context of another pair",
    "response_swapped": "with the response of another pair",
    "silent": "silence in place of every clip",
    "flat_prosody": "the melody of the voice made flat",
    "low_pass": "the words made unintelligible",
}


def agreement_lines(report: Mapping[str, Any] | None) -> list[str]:
    """Agreement beside one rater, and what intervals are worth."""
    if report is None:
        return ["Not measured yet: run `empathy-judge evaluate` and export again with `--report`."]
    lines = [
        f"Held-out split `{report['split']}` of {report['dataset']['name']}, {report.get('command') or 'empathy-judge evaluate'}:",
        "",
        "| dimension | items | Spearman (95 %) | one rater | difference (95 %) | response only | context swapped |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in report["dimensions"].items():
        checks = [report["checks"].get(check, {}).get(name, {}) for check in ("response_only", "context_swapped")]
        beside = found["like_for_like"]
        cells = [
            name,
            str(found["n_items"]),
            interval(found["spearman"]),
            number(beside["rater"]),
            interval(beside["difference"]),
            *(number(check.get("spearman")) for check in checks),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, *_coverage(report)]


def _coverage(report: Mapping[str, Any]) -> list[str]:
    """What its intervals are worth; nothing where it gives none, or the report is of a time before there were any."""
    lines = []
    for name, found in report["dimensions"].items():
        own = (found.get("uncertainty") or {}).get("intervals", {}).get("90")
        if own is not None and own["covered"]["value"] is not None:
            share, ends = own["covered"], ""
            if share["low"] is not None:
                ends = f" ({100 * share['low']:.0f} to {100 * share['high']:.0f})"
            lines.append(
                f"- {name}: 90 % intervals cover {100 * share['value']:.0f} %{ends} of the mean ratings there; they are "
                f"{number(own['width'])} rating points wide on average."
            )
    return ["", *lines] if lines else []


def interval(statistic: Mapping[str, Any]) -> str:
    if statistic.get("low") is None:
        return number(statistic)
    return f"{number(statistic)} ({statistic['low']:.2f} to {statistic['high']:.2f})"


def number(statistic: Any) -> str:
    value = statistic.get("value") if isinstance(statistic, Mapping) else statistic
    return "-" if value is None else f"{value:.2f}"


def listening_lines(report: Mapping[str, Any] | None) -> list[str]:
    """What became of the agreement when something was taken away; nothing where that was not measured."""
    if report is None or not report.get("checks"):
        return []
    lines = [
        "",
        "## Does it listen?",
        "",
        "Spearman with the same ratings when something is taken away from the pairs. It should fall where the dimension is",
        "about what was taken away.",
        "",
        "| dimension | pairs | Spearman (95 %) |",
        "|---|---|---|",
    ]
    for name, found in report["dimensions"].items():
        lines.append(f"| {name} | as they are | {interval(found['spearman'])} |")
        for check, of_check in report["checks"].items():
            if (own := of_check.get(name, {}).get("spearman")) is not None:
                changed = _TAKEN_AWAY.get(check)
                what = f"`{check}`" if changed is None else f"{changed} (`{check}`)"
                lines.append(f"| {name} | {what} | {interval(own)} |")
    return lines
