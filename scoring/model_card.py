"""The model card of a judge: `model_card.md.j2`, with a metadata header for programs and the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..core.errors import counted
from ..models.description import start_in_words
from ..models.hub import is_hub_name

_TEMPLATE = Path(__file__).with_name("model_card.md.j2")
_TASK = "audio-classification"
"""The closest task that the hub has: clips in, a number for each dimension out."""
_METRICS = {
    "spearman": ("spearmanr", "Spearman"),
    "pearson": ("pearsonr", "Pearson"),
    "mae": ("mae", "Mean absolute error"),
}
_PERTURBATIONS = {
    "response_only": "without its context",
    "context_only": "without the response",
    "context_swapped": "with the context of another pair",
    "response_swapped": "with the response of another pair",
    "silent": "silence in place of every clip",
    "flat_prosody": "the melody of the voice made flat",
    "low_pass": "the words made unintelligible",
}


def render_card(description: Mapping[str, Any], report: Mapping[str, Any] | None) -> str:
    """Text of `README.md` in a judge folder, from `judge.json` and, if there is one, an agreement report."""
    origin, export = description["provenance"], description.get("export")
    settings = origin_settings(description)
    in_full = (description if export is None else export["origin"])["trained_in_full"]
    # Other data have another licence, which says nothing of the ratings that the judge was made of
    measured = report is not None and report["dataset"]["name"] == origin["dataset"]
    card = ModelCard.from_template(
        _data(description, report),
        template_path=str(_TEMPLATE),
        judge=description,
        report=report,
        origin=origin,
        start=start_in_words(origin),
        export=export,
        settings=settings,
        backbone_on_hub=backbone_on_hub(description),
        trained=_trained(settings["lora"], in_full),
        coverage=[] if report is None else list(_coverage(report)),
        perturbations=_PERTURBATIONS,
        items=[f"{100 * share:.0f} % {kind}" for kind, share in origin["shares"].items() if share],
        licence=report["dataset"].get("licence") if report is not None and measured else None,
        check=partial(_check, report),
        counted=counted,
        interval=_interval,
        number=_number,
        percent=_percent,
    )
    return f"{card}\n"


def origin_settings(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings that the judge was trained with, also where its adapter was merged into its weights."""
    export = description.get("export")
    return description["settings"] if export is None else export["origin"]["settings"]


def backbone_on_hub(description: Mapping[str, Any]) -> str | None:
    """Name of the backbone on the hub; None where it came from a folder, or with this package."""
    name = origin_settings(description)["backbone"]
    # A folder of the user may be called like a name on the hub (`runs/judge`)
    return name if is_hub_name(name) and not Path(name).exists() else None


def _data(description: Mapping[str, Any], report: Mapping[str, Any] | None) -> ModelCardData:
    export, origin, base = description.get("export"), description["provenance"], backbone_on_hub(description)
    relation = "adapter"
    tags = ["empathy-judge", "audio", "speech", "vocal-empathy", "speech-evaluation", "reward-model"]
    tags.append("synthetic-ratings" if origin["synthetic"] else "human-ratings")
    if export is None:
        tags += ["lora"] if description["settings"]["lora"]["parts"] else []
    else:
        relation = "finetune" if export["quantization"] == "none" else "quantized"
        tags += {"none": (), "int8": ("8-bit",), "nf4": ("4-bit",)}[export["quantization"]]
    results = [] if report is None else list(_results(report))
    return ModelCardData(
        # The hub asks for one licence; here backbone and ratings each have their own
        license="other",
        license_name="that-of-backbone-and-data",
        library_name="empathy-judge",
        pipeline_tag=_TASK,
        tags=tags,
        base_model=base,
        base_model_relation=relation if base else None,
        datasets=[_dataset_type(origin["dataset"])],
        metrics=["spearmanr"],
        # huggingface_hub refuses results without the name of a model
        **({"eval_results": results, "model_name": "Judge of vocal delivery"} if results else {}),
    )


def _results(report: Mapping[str, Any]) -> Iterator[EvalResult]:
    """Agreement with people by dimension; what is undefined is left out."""
    dataset = report["dataset"]
    for name, results in report["dimensions"].items():
        for kind, (metric, title) in _METRICS.items():
            statistic = results.get(kind) or {}
            if statistic.get("value") is None:
                continue
            facts: dict[str, Any] = {"dimension": name, "level": "item"}
            facts |= {end: statistic[end] for end in ("low", "high") if statistic.get(end) is not None}
            facts |= {count: results[count] for count in ("n_items", "n_groups", "n_raters") if count in results}
            one_rater = results.get("ceiling", {}).get("spearman", {})
            if kind == "spearman" and one_rater.get("value") is not None:
                facts["one_rater"] = {
                    end: one_rater[end] for end in ("value", "low", "high") if one_rater.get(end) is not None
                }
            yield EvalResult(
                task_type=_TASK,
                task_name="Agreement with mean ratings",
                dataset_type=_dataset_type(dataset["name"]),
                dataset_name=dataset["name"],
                dataset_split=report["split"],
                metric_type=metric,
                metric_name=f"{title}, {name}",
                metric_value=statistic["value"],
                metric_args=facts,
            )


def _dataset_type(name: str) -> str:
    if is_hub_name(name):
        return name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "data"


def _coverage(report: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """Dimension, measured coverage and width of the 90 % intervals, where the report has them."""
    for name, results in report["dimensions"].items():
        intervals = (results.get("uncertainty") or {}).get("intervals", {}).get("90")
        if intervals is not None and intervals["covered"]["value"] is not None:
            yield name, intervals["covered"], intervals["width"]


def _trained(lora: Mapping[str, Any], in_full: Sequence[str]) -> str:
    trained = []
    if lora["parts"]:
        layers = lora.get("layers")
        where = f" (its layers {layers[0]} up to {layers[1]})" if layers else ""
        method = {"lora": "LoRA", "rslora": "rsLoRA", "dora": "DoRA"}[lora.get("method", "lora")]
        trained.append(f"{method} of rank {lora['rank']} on {', '.join(lora['parts'])}{where}")
    trained += [f"{part} in full" for part in in_full]
    return "; ".join(trained)


# Functions of the template; a statistic is a number, or an object with value, low and high


def _number(statistic: Any, digits: int = 2) -> str:
    value = statistic.get("value") if isinstance(statistic, Mapping) else statistic
    return "-" if value is None else f"{value:.{digits}f}"


def _interval(statistic: Mapping[str, Any]) -> str:
    if statistic.get("low") is None:
        return _number(statistic)
    return f"{_number(statistic)} ({statistic['low']:.2f} to {statistic['high']:.2f})"


def _percent(statistic: Mapping[str, Any]) -> str:
    text = f"{100 * statistic['value']:.0f} %"
    low, high = statistic["low"], statistic["high"]
    return text if low is None else f"{text} ({100 * low:.0f} to {100 * high:.0f})"


def _check(report: Mapping[str, Any] | None, kind: str, dimension: str) -> Any:
    """Spearman of a dimension under a perturbation; None = it was not measured."""
    assert report is not None
    return report["checks"].get(kind, {}).get(dimension, {}).get("spearman")
