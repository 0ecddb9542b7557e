"""The model card of an exported judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def render_card(description: Mapping[str, Any], report: Mapping[str, Any] | None) -> str:
    """Text of `README.md` in a judge folder.

    Args:
        description: What `judge.json` says.
        report: An agreement report (`agreement.json`), if the judge was evaluated.
    """
    origin = description["provenance"]
    lines = ["# Judge of vocal delivery", ""]
    if origin["synthetic"]:
        lines += [
            "> **Synthetic.** Trained on simulated ratings of synthesised speech. It shows that the pipeline works; its",
            "> scores say nothing about how people would hear a response.",
            "",
        ]
    lines += [
        "Scores how a spoken response sounds for its context (voice, not words), on the scale that its raters used.",
        "",
        "```python",
        "from empathy_judge import Scorer",
        "",
        'scorer = Scorer.from_pretrained("this folder")',
        'print(scorer.score("context.wav", "response.wav"))',
        "```",
        "",
        "## What it predicts",
        "",
        "| dimension | scale | better |",
        "|---|---|---|",
    ]
    for dimension in description["dimensions"]:
        better = "higher" if dimension["higher_is_better"] else "lower"
        lines.append(f"| {dimension['name']} | {dimension['minimum']:g} to {dimension['maximum']:g} | {better} |")
    lines += ["", "## Agreement with raters", "", *_agreement(report)]
    settings = description["settings"]
    lora = settings["lora"]
    lines += [
        "",
        "## How it was made",
        "",
        f"- backbone: `{settings['backbone']}`, {_precision(settings)}, attention kernel {settings['attention']}",
        f"- trained of it: {_trained(lora, description.get('trained_in_full', []))}; the rest is frozen",
        *([] if description.get("reads_text", True) else ["- the text about a situation is not read"]),
        f"- pooling: {settings['pooling']}; head: {description['head']['type']}, float32",
        *_put_together(description),
        f"- training data: {origin['dataset']} ({'synthetic ratings' if origin['synthetic'] else 'human ratings'})",
        *_supervision(origin),
        f"- data hash `{origin['content_hash'][:16]}`, split hash `{origin['split_hash'][:16]}`",
        f"- clips up to {description['max_seconds']:g} s at {description['sampling_rate']} Hz; {_long(description)}",
        "",
        "## Limits",
        "",
        "- Trust it only on data like that on which its agreement was measured, and read the agreement beside the ceiling.",
        "- The licence of the backbone and of the training data bind whoever uses this judge.",
        "",
    ]
    return "\n".join(lines)


def _put_together(description: Mapping[str, Any]) -> list[str]:
    if members := description.get("members"):
        return [f"- ensemble of {len(members)} judges on one backbone: its score is the mean of theirs"]
    if count := description.get("averaged"):
        return [
            f"- weights: the mean of those of {count} judges (model soup, Wortsman et al., 2022), which means something only",
            "  where all were trained from the same initial adapters",
        ]
    return []


def _supervision(origin: Mapping[str, Any]) -> list[str]:
    """What it learned from; cards of older judges say less."""
    shares = origin.get("shares", {})
    lines = []
    if shares.get("ratings", 1) > 0:
        lines.append(f"- target: {origin['target']} of the ratings of a pair")
    else:
        lines.append("- trained on comparisons alone: its scores rank responses and are not rating points")
    parts = [f"{100 * share:.0f} % {kind}" for kind, share in shares.items() if share]
    if len(parts) > 1:
        lines.append(f"- training items: {', '.join(parts)}")
    if origin.get("losses"):
        lines.append(f"- losses: {', '.join(f'{name} {weight:g}' for name, weight in origin['losses'].items())}")
    return lines


def _precision(settings: Mapping[str, Any]) -> str:
    four_bits = settings.get("quantization") == "nf4"
    return f"language model in 4 bits (NF4), the rest in {settings['dtype']}" if four_bits else settings["dtype"]


def _trained(lora: Mapping[str, Any], in_full: Sequence[str]) -> str:
    trained = []
    if lora["parts"]:
        layers = lora.get("layers")
        where = f" (its layers {layers[0]} up to {layers[1]})" if layers else ""
        method = {"lora": "LoRA", "rslora": "rsLoRA", "dora": "DoRA"}[lora.get("method", "lora")]
        trained.append(f"{method} of rank {lora['rank']} on {', '.join(lora['parts'])}{where}")
    trained += [f"{part} in full" for part in in_full]
    return "; ".join(trained) or "nothing"


def _long(description: Mapping[str, Any]) -> str:
    if description["settings"].get("long_clips") != "window":
        return "longer ones are refused"
    return (
        f"longer clips are cut into windows of equal length, at most {description['max_seconds']:g} s, and averaged by "
        "duration"
    )


def _agreement(report: Mapping[str, Any] | None) -> list[str]:
    if report is None:
        return ["Not measured yet: run `empathy-judge evaluate` and export again with `--report`."]
    lines = [
        f"Held-out split `{report['split']}` of {report['dataset']['name']}, {report.get('command') or 'empathy-judge evaluate'}:",
        "",
        "| dimension | items | Spearman (95 %) | one rater against the others | share | response only | context swapped |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in report["dimensions"].items():
        checks = [report["checks"].get(check, {}).get(name, {}) for check in ("response_only", "context_swapped")]
        cells = [
            name,
            str(found["n_items"]),
            _interval(found["spearman"]),
            _interval(found["ceiling"]["spearman"]),
            _number(found["share_of_ceiling"]),
            *(_number(check.get("spearman")) for check in checks),
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
                f"{_number(own['width'])} rating points wide on average."
            )
    return ["", *lines] if lines else []


def _interval(statistic: Mapping[str, Any]) -> str:
    if statistic.get("low") is None:
        return _number(statistic)
    return f"{_number(statistic)} ({statistic['low']:.2f} to {statistic['high']:.2f})"


def _number(statistic: Any) -> str:
    value = statistic.get("value") if isinstance(statistic, Mapping) else statistic
    return "-" if value is None else f"{value:.2f}"
