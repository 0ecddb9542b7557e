"""The model card of an exported judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .card_agreement import agreement_lines, listening_lines
from .card_header import backbone_on_hub, header, origin_settings


def render_card(description: Mapping[str, Any], report: Mapping[str, Any] | None) -> str:
    """Text of `README.md` in a judge folder.

    Args:
        description: What `judge.json` says.
        report: An agreement report (`agreement.json`), if the judge was evaluated.
    """
    origin = description["provenance"]
    lines = [
        "# Judge of vocal delivery",
        "",
        *_whose_ratings(origin),
        "",
        "Scores how a spoken response sounds for its context (voice, not words), on the scale that its raters used.",
        *_use(),
        "",
        "## What it predicts",
        "",
        "| dimension | scale | better |",
        "|---|---|---|",
    ]
    for dimension in description["dimensions"]:
        better = "higher" if dimension["higher_is_better"] else "lower"
        lines.append(f"| {dimension['name']} | {dimension['minimum']:g} to {dimension['maximum']:g} | {better} |")
    lines += ["", "## Agreement with raters", "", *agreement_lines(report)]
    lines += [*listening_lines(report), *_calibration(description), *_form(description)]
    settings = origin_settings(description)
    lora = settings["lora"]
    in_full = description["export"]["origin"]["trained_in_full"] if "export" in description else None
    lines += [
        "",
        "## How it was made",
        "",
        f"- backbone: `{settings['backbone']}`, {_precision(settings)}, attention kernel {settings['attention']}",
        f"- trained of it: {_trained(lora, in_full or description.get('trained_in_full', []))}; the rest is frozen",
        *([] if description.get("reads_text", True) else ["- the text about a situation is not read"]),
        f"- pooling: {settings['pooling']}; head: {description['head']['type']}, float32",
        *_put_together(description),
        f"- training data: {origin['dataset']} ({'synthetic ratings' if origin['synthetic'] else 'human ratings'})",
        *_supervision(origin),
        f"- data hash `{origin['content_hash'][:16]}`, split hash `{origin['split_hash'][:16]}`",
        f"- clips up to {description['max_seconds']:g} s at {description['sampling_rate']} Hz; {_long(description)}",
        "",
        "## What it is for, and what not",
        "",
        "- For: comparing systems that answer in speech, watching one while it is developed, ranking several answers to",
        "  one context, a reward in training (together with a check of what the reward does to the voice).",
        "- Not for: judging people, say in a call centre, at work, in care or in exams; diagnosis; proof that a system is",
        "  safe or kind; a verdict on a single answer without its interval; comparing scores of dimensions or of judges",
        "  with each other.",
        "",
        "## Limits",
        "",
        "- Trust it only on data like that on which its agreement was measured, and read the agreement beside the ceiling.",
        "- Languages, voices, accents and recording conditions that its raters never heard may be scored wrongly, and not",
        "  at random: measure agreement on your own rated pairs before you compare groups.",
        "- A system that is trained against it will find what it overrates.",
        "",
        "## Licence",
        "",
        *_licences(description, report),
        "- The licence of the backbone and of the training data bind whoever uses this judge.",
        "",
    ]
    return header(description, report) + "\n" + "\n".join(lines)


def _whose_ratings(origin: Mapping[str, Any]) -> list[str]:
    if origin["synthetic"]:
        return [
            "> **Synthetic.** Trained on simulated ratings of synthesised speech. It shows that the pipeline works; its",
            "> scores say nothing about how people would hear a response.",
        ]
    return [f"> **Human ratings.** Trained on ratings that people gave ({origin['dataset']})."]


def _use() -> Iterator[str]:
    yield from (
        "",
        "```python",
        "from empathy_judge import Scorer",
        "",
        'scorer = Scorer.from_pretrained("this folder")  # or its name on the hub',
        'print(scorer.score("context.wav", "response.wav"))',
        "```",
    )


def _calibration(description: Mapping[str, Any]) -> Iterator[str]:
    """On what standard errors and intervals stand; nothing where there are none."""
    own = description.get("calibration")
    if own is None:
        return
    yield from ("", "## How sure it is", "")
    splits = "all pairs" if own["splits"] is None else f"split {', '.join(own['splits'])}"
    yield f"Standard errors and intervals were fitted to {splits} of {own['dataset']}:"
    yield ""
    for name, of_dimension in own["dimensions"].items():
        yield f"- {name}: {of_dimension['n']} pairs of {of_dimension['groups']} groups; mapping of scores: {own['method']}"
    if description.get("export", {}).get("quantization", "none") != "none":
        yield "- fitted before the weights were quantized; `empathy-judge calibrate` fits it anew"


def _form(description: Mapping[str, Any]) -> Iterator[str]:
    """What is in the folder, and what became of the scores on the way into it."""
    export = description.get("export")
    yield from ("", "## Form", "")
    if export is None:
        yield "- adapter and head: the backbone is loaded from where it was found in training, or from `backbone=`"
        return
    stored = {
        "none": f"in {description['settings']['dtype']}",
        "int8": "with the linear layers of its language model in 8-bit integers, one scale for each row (torchao)",
        "nf4": "with the linear layers of its language model in 4 bits (NF4, bitsandbytes)",
    }
    yield f"- the whole judge: backbone {stored[export['quantization']]}, with what was trained in its weights"
    check = export.get("check")
    if check is None:
        return
    yield f"- its scores beside those of the judge as it was trained, on {check['pairs']} pairs ({check['data']}):"
    yield ""
    yield "| dimension | largest difference | mean difference | Spearman between | with people before | after |"
    yield "|---|---|---|---|---|---|"
    for name, own in check["dimensions"].items():
        between, before, after = (
            "-" if own[key] is None else f"{own[key]:.4f}" for key in ("between", "before", "after")
        )
        yield f"| {name} | {own['largest']:.2g} | {own['mean']:.2g} | {between} | {before} | {after} |"
    if check["beyond"]:
        yield ""
        yield f"**Beyond the bounds, and accepted by who exported it:** {'; '.join(check['beyond'])}"


def _licences(description: Mapping[str, Any], report: Mapping[str, Any] | None) -> Iterator[str]:
    backbone = origin_settings(description)["backbone"]
    if backbone == "nano":
        yield "- backbone: `nano`, of the package empathy-judge (Apache-2.0)"
    elif (name := backbone_on_hub(description)) is not None:
        yield f"- backbone: as https://huggingface.co/{name} states it"
    else:
        yield f"- backbone: that of `{backbone}`"
    data = description["provenance"]["dataset"]
    licence = None if report is None or report["dataset"]["name"] != data else report["dataset"].get("licence")
    yield f"- training data: {data}, {licence or 'see where it comes from'}"


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
