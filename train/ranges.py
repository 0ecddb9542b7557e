"""Ranges of the settings of a recipe. Imports nothing heavy: ranges are checked before torch is imported."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from jsonargparse import Namespace

from ..core.errors import UserError, shown
from ..core.numerals import is_plain
from ..core.processes import available_cores
from ..core.yaml_files import ODD_NUMBER
from ..models import NANO
from ..models.settings import LoraSettings
from .settings import LossWeights

_CORES = available_cores()


class _Range(NamedTuple):
    least: float
    most: float
    above: bool = False  # the least value itself is none

    def holds(self, value: float) -> bool:
        """Whether a value is in the range; NaN is not."""
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def in_words(self, value: float) -> str:
        """What is expected in place of a value."""
        finite = math.isfinite(value)
        if self.above:
            return f"a {'' if finite else 'finite '}number above {self.least:g}, at most {self.most:.10g}"
        return f"{'' if finite else 'a finite number, '}{self.least:g} to {self.most:.10g}"


_SHARE, _LOSS = _Range(0, 1), _Range(0, 10**6)
RANGES: Mapping[str, _Range] = {
    "seed": _Range(0, 2**32 - 1),  # of NumPy
    "patience": _Range(1, 10**9),
    "checkpoint_steps": _Range(0, 10**9),
    "folds": _Range(0, 10**6),
    "clip_seconds": _Range(0.1, 3_600),
    "gpu_gib": _Range(0.1, 10**6),
    **{f"objective.losses.{name}": _LOSS for name in LossWeights.__dataclass_fields__},
    "objective.settings.temperature": _Range(0, 10**3, above=True),
    "objective.settings.preference_temperature": _Range(0, 10**3, above=True),
    "objective.rater_embedding": _Range(0, 4_096),
    "optimizer.learning_rate": _Range(0, 10**3),
    "optimizer.head_learning_rate": _Range(0, 10**3),
    "optimizer.weight_decay": _Range(0, 10**3),
    "optimizer.warmup": _SHARE,
    "cache.gigabytes": _Range(0, 10**9, above=True),
    "data.batch_size": _Range(1, 10**6),
    "data.eval_batch_size": _Range(1, 10**6),
    "data.batch_tokens": _Range(1, 10**9),
    "data.num_workers": _Range(0, max(64, 4 * _CORES)),
    "data.preference_share": _SHARE,
    "data.counterfactual_share": _SHARE,
    "data.counterfactual_min_score": _SHARE,
    "trainer.num_nodes": _Range(1, 10**4),
    "trainer.devices": _Range(-1, 1_024),
    "trainer.max_epochs": _Range(-1, 10**9),
    "trainer.min_epochs": _Range(0, 10**9),
    "trainer.max_steps": _Range(-1, 10**12),
    "trainer.min_steps": _Range(0, 10**12),
    **{f"trainer.limit_{name}_batches": _Range(0, 10**9) for name in ("train", "val", "test", "predict")},
    "trainer.overfit_batches": _Range(0, 10**9),
    "trainer.val_check_interval": _Range(0, 10**9, above=True),
    "trainer.check_val_every_n_epoch": _Range(1, 10**9),
    "trainer.reload_dataloaders_every_n_epochs": _Range(0, 10**9),
    "trainer.accumulate_grad_batches": _Range(1, 10**6),
    "trainer.gradient_clip_val": _Range(0, 10**9),
    "trainer.log_every_n_steps": _Range(0, 10**9),
}
"""Beyond, torch or Lightning would fail later, exhaust the machine, or hang."""
_MIXED = {16: "float16", "16": "float16", "16-mixed": "float16", "bf16": "bfloat16", "bf16-mixed": "bfloat16"}
"""Values of `trainer.precision`, and the dtype of autocast."""
_PRECISIONS = (None, 32, "32", "32-true", *_MIXED)
"""Others change the dtype of all weights and inputs, which Lightning cannot do to ours."""


def out_of_range(name: str, value: object) -> str | None:
    """Why a value cannot be that of a setting: it is beyond its range, or NaN or infinite, as a number or as a text
    such as ``nan``; None = it may be, as far as ranges say."""
    if isinstance(value, str) and is_not_finite(value):
        value = float(value)
    # `isinstance(True, int)` holds in Python; that a flag stands where a number should is for the types to say
    span = RANGES.get(name)
    if span is None or isinstance(value, bool) or not isinstance(value, int | float) or span.holds(value):
        return None
    return f"{name} {value}; expected {span.in_words(value)}"


def is_not_finite(text: str) -> bool:
    """Whether a text is NaN or infinity, as Python and C write them."""
    try:
        return not math.isfinite(float(text))
    except ValueError:
        return False


def check_ranges(found: Namespace, where: str) -> None:
    """Check all numbers of a recipe, and a revision, which only a model on the hub has; `where` heads a message.

    Raises:
        UserError: If a number is out of its range, or the backbone with a revision is a folder.
    """
    backbone, revision = found.get("judge.backbone"), found.get("judge.revision")
    # A folder has one state: a revision beside it would be ignored, and recorded as if it had counted
    if revision is not None and (backbone == NANO or os.path.exists(str(backbone))):
        raise UserError(f"{where}judge.revision {shown(revision)}: backbone {backbone} is a folder; expected null")
    trainer = found.get("trainer")  # a plain tree where Lightning is not loaded, or the name of a file
    for name in RANGES:
        group, _, key = name.partition(".")
        value = trainer.get(key) if group == "trainer" and isinstance(trainer, dict) else found.get(name)
        if (problem := out_of_range(name, value)) is not None:
            raise UserError(f"{where}{problem}")
    if not isinstance(trainer, dict):
        _check_trainer(found, where)
    # The ranges of LoRA stand in its class, since `judge.json` has to keep them as well
    try:
        LoraSettings(**found["judge.lora"].clone(with_meta=False).as_dict())
    except UserError as error:
        raise UserError(f"{where}judge.{error}") from None


def _check_trainer(found: Namespace, where: str) -> None:
    """Check what takes torch, or the types of Lightning's arguments."""
    interval = found.get("trainer.val_check_interval")
    if not isinstance(interval, int | float | None):  # a time, with which Lightning's early stopping fails
        raise UserError(f"{where}trainer.val_check_interval {interval}; expected batches, or a share of an epoch")
    if (precision := found.get("trainer.precision")) not in _PRECISIONS:
        expected = "32-true, bf16-mixed or 16-mixed; the dtype of frozen weights is judge.dtype"
        raise UserError(f"{where}trainer.precision {precision}; expected {expected}")
    import torch

    accelerator = found.get("trainer.accelerator")
    # A dry run may be for another machine, and a GPU that is named and missing has a message of its own
    none_here = not torch.accelerator.is_available() and not found.get("dry_run")
    on_cpu = accelerator == "cpu" or (none_here and accelerator in (None, "auto"))
    _check_dtype(found["judge.dtype"], precision, on_cpu, where)
    devices: Any = found.get("trainer.devices")
    if devices is None or not str(devices).removeprefix("-").isdecimal():  # "auto", "0,1" and [0, 1]
        return
    if str(devices).isdecimal() and not is_plain(str(devices)):
        raise UserError(f"{where}trainer.devices {shown(devices)} {ODD_NUMBER}")
    # A process for each; Lightning knows how many GPUs there are
    here = none_here or (accelerator == "cpu" and not found.get("dry_run"))
    most = max(8, _CORES) if here else RANGES["trainer.devices"].most
    if not -1 <= int(devices) <= most:
        raise UserError(f"{where}trainer.devices {devices}; expected -1 to {most:.10g}")


def _check_dtype(dtype: str, precision: object, on_cpu: bool, where: str) -> None:
    """Refuse frozen weights in the other 16 bits than those of autocast, in which torch 2.11 concatenates no states of
    theirs (`findings/half_states_in_autocast.sh`); on a CPU Lightning 2.6 takes bf16-mixed for 16-mixed."""
    if precision not in _MIXED or dtype == "float32":
        return
    wanted = "bfloat16" if on_cpu else _MIXED[precision]
    if dtype != wanted:
        is_other = ", which is bf16-mixed on a CPU" if on_cpu and _MIXED[precision] == "float16" else ""
        expected = f"judge.dtype {wanted} or float32"
        raise UserError(f"{where}judge.dtype {dtype} with trainer.precision {precision}{is_other}; expected {expected}")
