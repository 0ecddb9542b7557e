"""The head of a model card, which programs and the hub read: where it belongs, and what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TASK = "audio-classification"
"""The nearest that the hub knows: clips in, a number for each dimension out."""
_PARTS_OF_AGREEMENT = ("spearman", "pearson", "mae")
_NAMES = {"spearman": "Spearman", "pearson": "Pearson", "mae": "Mean absolute error"}


def header(description: Mapping[str, Any], report: Mapping[str, Any] | None) -> str:
    """YAML between two lines of dashes.

    Args:
        description: What `judge.json` says.
        report: An agreement report, if the judge was evaluated.
    """
    export = description.get("export")
    dataset = description["provenance"]["dataset"]
    results = [] if report is None else list(_results(report))
    data = ModelCardData(
        license="other",
        license_name="that-of-backbone-and-data",
        library_name="empathy-judge",
        pipeline_tag=_TASK,
        tags=list(_tags(description)),
        base_model=backbone_on_hub(description),
        base_model_relation=_relation(export) if backbone_on_hub(description) else None,
        datasets=[dataset] if _HUB_NAME.fullmatch(dataset) else [_slug(dataset)],
        metrics=["spearmanr"],
        **({"eval_results": results, "model_name": "Judge of vocal delivery"} if results else {}),
    )
    return f"---\n{data.to_yaml()}\n---\n"


def origin_settings(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings that the judge was trained with, also where its adapter is part of its weights by now."""
    export = description.get("export")
    return description["settings"] if export is None else export["origin"]["settings"]


def backbone_on_hub(description: Mapping[str, Any]) -> str | None:
    """Name of the backbone on the hub; None where it came out of a folder, or with this package."""
    name = origin_settings(description)["backbone"]
    return name if _HUB_NAME.fullmatch(name) and not Path(name).exists() else None


def _relation(export: Mapping[str, Any] | None) -> str:
    if export is None:
        return "adapter"
    return "finetune" if export["quantization"] == "none" else "quantized"


def _tags(description: Mapping[str, Any]) -> Iterator[str]:
    yield from ("empathy-judge", "audio", "speech", "vocal-empathy", "speech-evaluation", "reward-model")
    yield "synthetic-ratings" if description["provenance"]["synthetic"] else "human-ratings"
    export = description.get("export")
    if export is None:
        yield "lora"
    else:
        yield from {"none": (), "int8": ("8-bit",), "nf4": ("4-bit",)}[export["quantization"]]


def _results(report: Mapping[str, Any]) -> Iterator[EvalResult]:
    """Agreement with people by dimension; what is undefined is left out."""
    dataset = report["dataset"]
    for name, found in report["dimensions"].items():
        for kind in _PARTS_OF_AGREEMENT:
            own = found.get(kind) or {}
            if own.get("value") is None:
                continue
            facts: dict[str, Any] = {"dimension": name, "level": "item"}
            facts |= {end: own[end] for end in ("low", "high") if own.get(end) is not None}
            facts |= {count: found[count] for count in ("n_items", "n_groups", "n_raters") if count in found}
            ceiling = found.get("ceiling", {}).get("spearman", {})
            if kind == "spearman" and ceiling.get("value") is not None:
                facts["ceiling"] = {
                    end: ceiling[end] for end in ("value", "low", "high") if ceiling.get(end) is not None
                }
            yield EvalResult(
                task_type=_TASK,
                task_name="Agreement with mean ratings",
                dataset_type=dataset["name"] if _HUB_NAME.fullmatch(dataset["name"]) else _slug(dataset["name"]),
                dataset_name=dataset["name"],
                dataset_split=report["split"],
                metric_type={"spearman": "spearmanr", "pearson": "pearsonr", "mae": "mae"}[kind],
                metric_name=f"{_NAMES[kind]}, {name}",
                metric_value=own["value"],
                metric_args=facts,
            )


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "data"
