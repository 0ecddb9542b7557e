"""A judge with its backbone in one folder, checked by its scores before it is handed out."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...data_modules.errors import UserError
from ..artifact import CARD_FILE, LoadedJudge, load_judge, staged, write_description
from ..backbones import load_backbone, read_config
from ..backbones.common.base import Checkpoint, WeightForm
from ..calibration_files import weights_hash
from ..card import render_card
from ..description import EXPORT, MEMBERS
from ..judge import DTYPES
from ..lora import trained_in_full
from ..weight_files import fingerprints, write_weights
from .backbone_folder import BACKBONE, hashes, write_backbone
from .check import Check, CheckSet, bounds_of, compare, score_all
from .merge import merge_adapter
from .own_backbone import OwnForm

WEIGHT_FORMS: Mapping[str, WeightForm] = {"none": "none", "int8": "int8", "int4": "nf4"}
"""By what a user calls them."""
_LIBRARIES: Mapping[WeightForm, tuple[str, ...]] = {"none": (), "int8": ("torchao",), "nf4": ("bitsandbytes",)}
_WHOLE = "unquantized"


class LossTooLarge(Exception):
    """The scores of an export are too far from those of its judge."""

    def __init__(self, check: Check) -> None:
        super().__init__("; ".join(check.beyond))
        self.check = check


def write_whole(
    loaded: LoadedJudge,
    out: Path,
    form: OwnForm,
    quantization: WeightForm,
    chosen: CheckSet,
    *,
    report: Mapping[str, Any] | None = None,
    device: str | None = None,
    accept_loss: bool = False,
) -> Check:
    """Write a judge that needs no other folder, and read it again to see what became of its scores.

    There are never two copies of the backbone in memory: the judge that is given is used up.

    Args:
        loaded: A single judge of adapter and head; its weights are gone afterwards.
        out: Appears complete and checked, or not at all.
        form: Its name in `judge.json`; both are the same.
        quantization: Of the language model's linear layers as they are stored.
        chosen: What scores are compared on.
        report: An agreement report, for the model card.
        device: Where it is scored; None = a GPU if there is one.
        accept_loss: Keep what is beyond the bounds.

    Raises:
        UserError: If the folder exists, the judge is an ensemble or whole already, or it has no language model to
            quantize.
        LossTooLarge: If scores changed more than is allowed; the folder is not there.
    """
    _check_single(loaded, out, quantization)
    judge = loaded.judge
    dimensions, bounds = judge.dimensions, bounds_of(judge.settings.dtype, quantization)
    with staged(out) as stage:
        before = score_all(loaded, chosen, device)
        description = _write(loaded, stage, form, quantization)
        write_description(description, stage)
        after = score_all(load_judge(stage), chosen, device)
        check = compare(before, after, chosen, dimensions, bounds)
        if check.beyond and not accept_loss:
            raise LossTooLarge(check)
        description[EXPORT]["check"] = check.to_json()
        write_description(description, stage)
        (stage / CARD_FILE).write_text(render_card(description, report), encoding="utf-8")
    return check


def _check_single(loaded: LoadedJudge, out: Path, quantization: WeightForm) -> None:
    if MEMBERS in loaded.description:
        raise UserError(f"{out}: an ensemble has several adapters for one backbone; accepted: a single judge")
    if EXPORT in loaded.description:
        raise UserError(f"{out}: the judge has its backbone in its folder already; accepted: what it was made of")
    judge = loaded.judge
    if "quantization_config" in read_config(judge.settings.backbone, judge.settings.revision):
        raise UserError(f"{out}: backbone {judge.settings.backbone!r} was quantized before; accepted: one that was not")
    if quantization != "none" and "language_model" not in judge.backbone.parts:
        name = loaded.description["settings"]["backbone"]
        raise UserError(f"{out}: backbone {name!r} has no language model to quantize; accepted: no quantization")
    for library in _LIBRARIES[quantization]:
        if importlib.util.find_spec(library) is None:
            raise UserError(f"{quantization} needs {library}; accepted: pip install 'empathy-judge[quantization]'")


def _write(loaded: LoadedJudge, folder: Path, form: OwnForm, quantization: WeightForm) -> dict[str, Any]:
    """All but the card. The weights of the judge are gone afterwards.

    Returns:
        What `judge.json` says.
    """
    judge, revision = loaded.judge.cpu(), loaded.judge.settings.revision
    merge_adapter(judge)
    settings = judge.settings
    frozen, written = fingerprints(judge), write_weights(judge, folder)
    description = {
        **loaded.description,
        "settings": {**asdict(settings), "backbone": BACKBONE, "revision": None},
        "backbone_fingerprint": frozen.whole,
        "unquantized_fingerprint": frozen.unquantized,
        "trained_in_full": trained_in_full(judge.backbone, settings.lora),
        EXPORT: {
            "form": form,
            "quantization": quantization,
            "origin": {
                "settings": loaded.description["settings"],
                "backbone_fingerprint": loaded.description["backbone_fingerprint"],
                "trained_in_full": loaded.description.get("trained_in_full", []),
            },
            "versions": _versions(quantization),
        },
    }
    if loaded.calibration is not None:  # of the same scores, which now come of fewer trained weights
        description["calibration"] = {**loaded.description["calibration"], "weights": weights_hash(judge)}
    if quantization == "none":
        write_backbone(judge.backbone, revision, settings.dtype, folder / BACKBONE)
        judge.to("meta")
    else:
        write_backbone(judge.backbone, revision, settings.dtype, folder / _WHOLE)
        judge.to("meta")
        whole = Checkpoint(str(folder / _WHOLE), None, DTYPES[settings.dtype], settings.attention, quantization)
        write_backbone(load_backbone(whole), None, settings.dtype, folder / BACKBONE, quantized=True)
        shutil.rmtree(folder / _WHOLE)
    description["sha256"] = {**written, **hashes(folder)}
    return description


def _versions(quantization: WeightForm) -> dict[str, str]:
    """Of the libraries that wrote the weights."""
    return {
        name: importlib.metadata.version(name) for name in ("transformers", "safetensors", *_LIBRARIES[quantization])
    }
