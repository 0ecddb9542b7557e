"""The file that describes a sweep: which recipes, what is searched, how often."""

from __future__ import annotations

import hashlib
import json
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from jsonargparse import ArgumentParser, Namespace, get_loader
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveInt,
    Tag,
    ValidationError,
    model_validator,
)

from ..data_modules.errors import UserError, shown
from .run import build_parser

_GROUPS, _PATIENCE = ("model", "data", "trainer"), "patience"


def _distinct(values: list[Any]) -> list[Any]:
    texts = [repr(value) for value in values]
    if twice := next((text for number, text in enumerate(texts) if text in texts[:number]), None):
        raise ValueError(f"{twice} stands there twice; expected distinct values")
    return values


def _names(given: dict[str, Any]) -> dict[str, Any]:
    """Names of values that `train` takes and a sweep does not set itself, none of which lies inside another."""
    for name in given:
        group, _, key = name.partition(".")
        if name != _PATIENCE and not (group in _GROUPS and all(key.split("."))):
            expected = ", ".join(f"{group}.NAME" for group in _GROUPS)
            raise ValueError(f"{shown(name)}; expected {expected}, {_PATIENCE}")
        if inside := next((other for other in given if other.startswith(f"{name}.")), None):
            raise ValueError(f"{inside} lies inside {name}; expected one of them")
    return given


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Choices(_Strict):
    """A parameter that takes one of several values."""

    choices: Annotated[list[Any], Field(min_length=1), AfterValidator(_distinct)]

    def distribution(self) -> BaseDistribution:
        """As Optuna says it; as JSON, for its journal does not keep lists and mappings."""
        return CategoricalDistribution([json.dumps(value) for value in self.choices])

    def examples(self) -> Sequence[Any]:
        """Values that the recipe must accept: all."""
        return self.choices


class Range(_Strict):
    """A parameter between two numbers, both included. Two integers make a range of integers.

    Attributes:
        low: Smallest value.
        high: Largest value.
        log: Draw evenly on a logarithmic scale.
        step: Draw only low, low + step, ...; None = any value, of integers every one.
    """

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    @model_validator(mode="after")
    def _check(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g}, high {self.high:g}; expected low below high")
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise ValueError(f"step {self.step:g}; expected above 0, at most {self.high - self.low:g}")
        self.distribution()  # which refuses the rest
        return self

    @model_validator(mode="before")
    @classmethod
    def _alike(cls, given: Any) -> Any:
        ends = [given[key] for key in ("low", "high") if key in given] if isinstance(given, dict) else []
        if {float, int} == {type(end) for end in ends}:
            return {**given, "low": float(ends[0]), "high": float(ends[1])}
        return given

    def distribution(self) -> BaseDistribution:
        """As Optuna says it."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            if isinstance(self.step, float):
                raise ValueError(f"step {self.step:g} between integers; expected an integer, or {self.low}.0 as low")
            return IntDistribution(self.low, self.high, self.log, self.step or 1)
        return FloatDistribution(self.low, self.high, self.log, self.step)

    def examples(self) -> Sequence[Any]:
        """Values that the recipe must accept: both ends."""
        return self.low, self.high


def _kind(space: Any) -> str:
    return "choices" if isinstance(space, dict) and "choices" in space else "range"


Space = Annotated[Annotated[Choices, Tag("choices")] | Annotated[Range, Tag("range")], Discriminator(_kind)]


class Sweep(_Strict):
    """A sweep file.

    Attributes:
        train: Files for ``train --config``, a later one overrides an earlier one. Relative to the working folder.
        overrides: Dotted name -> value that holds in every trial.
        search: Dotted name -> where its values come from.
        trials: How many settings are tried, those that fail included.
        seeds: Each setting is trained once with each of them.
        sampler_seed: Of the choice of settings.
    """

    train: Annotated[list[str], Field(min_length=1)]
    overrides: Annotated[dict[str, Any], AfterValidator(_names)] = {}
    search: Annotated[dict[str, Space], Field(min_length=1), AfterValidator(_names)]
    trials: PositiveInt
    seeds: Annotated[list[NonNegativeInt], Field(min_length=1), AfterValidator(_distinct)] = [0]
    sampler_seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _check(self) -> Sweep:
        if both := sorted(self.overrides.keys() & self.search.keys()):
            raise ValueError(f"{both[0]} stands under overrides and search; expected one of them")
        return self

    def identity(self) -> dict[str, Any]:
        """All that must stay the same when a sweep goes on: everything but the number of trials."""
        hashes = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in self.train}
        return {**self.model_dump(mode="json", exclude={"trials"}, exclude_defaults=False), "train": hashes}

    def recipe(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The recipe that makes a trial of these parameters, overrides included: nested, as in YAML."""
        return _nested({**self.overrides, **parameters})


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file, in the YAML of recipes (1e-4 is a number).

    Raises:
        UserError: If the file is missing or broken, or a key or value is not what a sweep has.
    """
    try:
        return Sweep.model_validate(get_loader("yaml")(path.read_bytes().decode("utf-8")))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = [str(key) for key in first["loc"] if key not in ("choices", "range")]
        said = first["msg"].removeprefix("Value error, ")
        found = "" if "expected" in said or first["type"] == "missing" else f" (found {shown(first['input'])})"
        raise UserError(": ".join([str(path), *where, said]) + found) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not YAML: {error}") from None


def check_recipe(sweep: Sweep, path: Path) -> Namespace:
    """Put overrides and every value of the search on the recipes, one at a time, as `train` would read them.

    Args:
        sweep: From `read_sweep`.
        path: Its file, for messages.

    Returns:
        The resolved recipe, without what is searched.

    Raises:
        UserError: If a recipe is missing, `train` has no such parameter or does not accept a value, or a run would be
            spread over several devices.
    """
    parser = build_parser()
    parser.exit_on_error = False
    words = [word for recipe in sweep.train for word in ("--config", recipe)]
    # the only value that a recipe may lack and `train` does not do without
    data = [f"--data.path={sweep.overrides['data.path']}"] if "data.path" in sweep.overrides else []
    try:
        base = parser.parse_args([*words, *data, "--run", "trial"])
    except ArgumentError as error:
        raise UserError(f"{path}: train: {error.message}") from None
    base = _with(parser, sweep.overrides, base, f"{path}: overrides")
    for name, space in sweep.search.items():
        for value in space.examples():
            _with(parser, {name: value}, base, f"{path}: search: {name}: {shown(value)}")
    devices, nodes = base.trainer.devices, base.trainer.num_nodes
    if not (devices in (1, "1") or (isinstance(devices, list) and len(devices) == 1)) or nodes != 1:
        raise UserError(
            f"{path}: trainer.devices {shown(devices)} on {nodes} node(s); expected 1 (`trainer.devices: 1` under "
            "overrides). For several GPUs start the sweep once on each, with the same --out"
        )
    return base


def _with(parser: ArgumentParser, values: Mapping[str, Any], base: Namespace, where: str) -> Namespace:
    try:
        return parser.parse_object(_nested(values), base.clone(), None, False)
    except ArgumentError as error:
        raise UserError(f"{where}: {error.message}") from None


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as mappings in mappings."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *groups, key = name.split(".")
        inner = nested
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[key] = value
    return nested
