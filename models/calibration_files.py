"""Calibrations as plain values: in `judge.json` of a judge folder, in `calibration.json` of a run. Read strictly."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..data_modules.errors import UserError, shown
from ..data_modules.folders import replace_file
from ..data_modules.schema import Dimension
from .calibration import LEVELS, Calibration, DimensionCalibration, Quantile
from .domain import Domain
from .judge import EmpathyJudge
from .score_mapping import MAPPING_NAMES, Isotonic, Temperature, Unmapped
from .score_mapping import Mapping as ScoreMapping

_SCHEMA_VERSION = 1
_Text = TypeVar("_Text", bound=str)


def weights_hash(judge: EmpathyJudge) -> str:
    """SHA-256 over name, shape and values of all that was trained, of every member of an ensemble: the same in a
    checkpoint and in a judge folder."""
    members = [judge.members.weights(number) for number in range(len(judge.members))]
    return hash_of(members or [judge.trained()])


def hash_of(members: Sequence[Mapping[str, torch.Tensor]]) -> str:
    """As `weights_hash`, of the trained weights of each member; a judge that is no ensemble is its only one."""
    digest = hashlib.sha256()
    for weights in members:
        for name, weight in sorted(weights.items()):
            digest.update(f"{name} {tuple(weight.shape)}\n".encode())
            digest.update(weight.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def to_json(calibration: Calibration) -> dict[str, Any]:
    """Plain values that `from_json` reads back."""
    values = {name: value for name, value in vars(calibration).items() if name not in ("dimensions", "domain")}
    domain = calibration.domain
    splits = calibration.splits
    return {
        "schema_version": _SCHEMA_VERSION,
        **values,
        "splits": None if splits is None else list(splits),
        "dimensions": {name: _dimension_to_json(own) for name, own in calibration.dimensions.items()},
        "domain": None if domain is None else {"n": domain.n, "ranges": {k: list(v) for k, v in domain.ranges.items()}},
    }


def _dimension_to_json(own: DimensionCalibration) -> dict[str, Any]:
    values = {name: value for name, value in vars(own).items() if name not in ("mapping", "quantiles")}
    mapping: dict[str, Any] = {"method": "none"}
    if isinstance(own.mapping, Isotonic):
        mapping = {"method": "isotonic", "scores": list(own.mapping.scores), "ratings": list(own.mapping.ratings)}
    elif isinstance(own.mapping, Temperature):
        mapping = {"method": "temperature", **asdict(own.mapping)}
    return {**values, "mapping": mapping, "quantiles": [asdict(quantile) for quantile in own.quantiles]}


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a file of its own; readers see the old one or the new one."""
    text = json.dumps(to_json(calibration), indent=2, allow_nan=False) + "\n"
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_calibration(path: Path, dimensions: Sequence[Dimension]) -> Calibration:
    """Read what `write_calibration` wrote.

    Raises:
        UserError: If the file is not readable, or as `from_json`.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a readable calibration: {error}") from None
    return from_json(values, str(path), dimensions)


def from_json(values: Any, where: str, dimensions: Sequence[Dimension]) -> Calibration:
    """A calibration from plain values that nobody vouches for.

    Args:
        values: Of `to_json`.
        where: Where they stand, for messages.
        dimensions: Of the judge: the calibration must have these.

    Raises:
        UserError: If a value is missing, unexpected, of another kind, or makes no sense; the text names it.
    """
    whole = _Fields(values, where)
    if whole.take("schema_version") != _SCHEMA_VERSION:
        raise UserError(f"{where}: schema_version must be {_SCHEMA_VERSION}")
    parts = _Fields(whole.take("dimensions"), f"{where}: dimensions")
    found = {dimension.name: _dimension(parts, dimension) for dimension in dimensions}
    parts.finish()
    splits = whole.take("splits")
    if splits is not None and not (isinstance(splits, list) and all(isinstance(name, str) for name in splits)):
        raise UserError(f"{where}: splits {shown(splits)}; accepted: a list of names, or null")
    share = whole.number("abstain_share", low=0, high=1, optional=True)
    method = whole.choice("method", MAPPING_NAMES)
    calibration = Calibration(
        weights=whole.text("weights"),
        dataset=whole.text("dataset"),
        synthetic=whole.flag("synthetic"),
        content_hash=whole.text("content_hash"),
        split_hash=whole.text("split_hash"),
        splits=None if splits is None else tuple(splits),
        failed=whole.count("failed"),
        method=method,
        abstain_share=share,
        dimensions=found,
        domain=_domain(whole.take("domain") if "domain" in whole else None, f"{where}: domain"),
    )
    whole.finish()
    return calibration


def _dimension(parts: _Fields, dimension: Dimension) -> DimensionCalibration:
    own = _Fields(parts.take(dimension.name), f"{parts.where}.{dimension.name}")
    found = DimensionCalibration(
        n=own.count("n"),
        groups=own.count("groups"),
        mapping=_mapping(_Fields(own.take("mapping"), f"{own.where}.mapping"), dimension),
        uses_deviation=own.flag("uses_deviation"),
        factor=own.number("factor", low=0, optional=True),
        quantiles=_quantiles(own.take("quantiles"), f"{own.where}.quantiles"),
        abstain_above=own.number("abstain_above", low=0, optional=True),
    )
    own.finish()
    return found


def _domain(values: Any, where: str) -> Domain | None:
    if values is None:
        return None
    own = _Fields(values, where)
    number, ranges = own.count("n"), _Fields(own.take("ranges"), f"{where}.ranges")
    own.finish()
    ends = {name: ranges.rising(name, strictly=False) for name in list(ranges)}
    for name, found in ends.items():
        if len(found) != 2:
            raise UserError(f"{where}.ranges: {name} {shown(found)}; accepted: lowest and highest value")
    return Domain(number, {name: (low, high) for name, (low, high) in ends.items()})


def _mapping(own: _Fields, dimension: Dimension) -> ScoreMapping:
    method = own.choice("method", MAPPING_NAMES)
    mapping: ScoreMapping = Unmapped()
    if method == "isotonic":
        scores, ratings = own.rising("scores", strictly=True), own.rising("ratings", strictly=False)
        if len(scores) != len(ratings) or not scores:
            raise UserError(
                f"{own.where}: {len(scores)} scores and {len(ratings)} ratings; accepted: as many, at least 1"
            )
        if not dimension.minimum <= ratings[0] <= ratings[-1] <= dimension.maximum:
            raise UserError(f"{own.where}.ratings: outside the scale; accepted: {dimension.scale}")
        mapping = Isotonic(scores, ratings)
    elif method == "temperature":
        temperature, shift = own.number("temperature"), own.number("shift")
        if temperature is None or temperature <= 0 or shift is None:
            raise UserError(f"{own.where}.temperature: {shown(temperature)}; accepted: a number above 0")
        mapping = Temperature(temperature, shift)
    own.finish()
    return mapping


def _quantiles(values: Any, where: str) -> tuple[Quantile, ...]:
    if not isinstance(values, list) or len(values) != len(LEVELS):
        raise UserError(f"{where}: accepted: a list with one for each of the levels {', '.join(map(str, LEVELS))}")
    quantiles = []
    for level, one in zip(LEVELS, values, strict=True):
        own = _Fields(one, f"{where} of level {level}")
        if own.number("level") != level:
            raise UserError(f"{where}: accepted: the levels {', '.join(map(str, LEVELS))} in this order")
        value = own.number("value", low=0, optional=True)
        reason = own.text("reason") if value is None else own.take("reason")
        if value is not None and reason is not None:
            raise UserError(f"{own.where}: a value and a reason why there is none; accepted: one of them")
        own.finish()
        quantiles.append(Quantile(level, value, reason))
    known = [quantile.value for quantile in quantiles if quantile.value is not None]
    if sorted(known) != known:
        raise UserError(f"{where}: {shown(known)}; accepted: values that rise with the level")
    return tuple(quantiles)


class _Fields:
    """The fields of a JSON object, taken one by one; `finish` refuses what nobody took."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: {shown(values)}; accepted: an object")
        self.where = where
        self._left = dict(values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._left)

    def take(self, name: str) -> Any:
        if name not in self._left:
            raise UserError(f"{self.where}: {name!r} is missing")
        return self._left.pop(name)

    def finish(self) -> None:
        if self._left:
            raise UserError(f"{self.where}: unexpected {shown(next(iter(self._left)))}")

    def text(self, name: str) -> str:
        value = self.take(name)
        return value if isinstance(value, str) else self._refuse(name, value, "a text")

    def flag(self, name: str) -> bool:
        value = self.take(name)
        return value if isinstance(value, bool) else self._refuse(name, value, "true or false")

    def count(self, name: str) -> int:
        value = self.take(name)
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return value if fits else self._refuse(name, value, "a whole number from 0 on")

    def choice(self, name: str, accepted: Sequence[_Text]) -> _Text:
        value = self.take(name)
        for one in accepted:
            if value == one:
                return one
        return self._refuse(name, value, ", ".join(accepted))

    def number(
        self, name: str, low: float = -math.inf, high: float = math.inf, *, optional: bool = False
    ) -> float | None:
        value = self.take(name)
        if value is None and optional:
            return None
        if isinstance(value, int | float) and _is_finite(value) and low <= value <= high:
            return float(value)
        return self._refuse(name, value, "a finite number" + (f" from {low:g} on" if low == 0 else ""))

    def rising(self, name: str, *, strictly: bool) -> tuple[float, ...]:
        values = self.take(name)
        if not isinstance(values, list) or not all(map(_is_finite, values)):
            return self._refuse(name, values, "a list of finite numbers")
        if any(b < a or (strictly and a == b) for a, b in itertools.pairwise(values)):
            return self._refuse(name, values, "rising numbers")
        return tuple(map(float, values))

    def _refuse(self, name: str, value: object, accepted: str) -> Any:
        raise UserError(f"{self.where}: {name} {shown(value)}; accepted: {accepted}")


def _is_finite(value: object) -> bool:
    # a whole number of JSON may be too large for a float
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
