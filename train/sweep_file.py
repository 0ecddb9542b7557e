"""The file that describes a sweep: which recipes, what is searched, how often."""

from __future__ import annotations

import hashlib
import math
from argparse import ArgumentError
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace, get_loader

from ..data_modules.errors import UserError, shown
from .fit import build_parser

_KEYS = ("train", "overrides", "search", "trials", "seeds", "sampler_seed")
_REQUIRED = ("train", "search", "trials")
_RANGE_KEYS = ("low", "high", "log", "step")
_GROUPS = ("model", "data", "trainer")
_PATIENCE = "patience"


@dataclass(frozen=True)
class Choices:
    """A parameter that takes one of several values."""

    values: tuple[Any, ...]

    def examples(self) -> tuple[Any, ...]:
        """Values that the recipe must accept: all."""
        return self.values


@dataclass(frozen=True)
class Range:
    """A parameter between two numbers, both included. Two integers make a range of integers.

    Attributes:
        low: Smallest value.
        high: Largest value.
        log: Draw evenly on a logarithmic scale.
        step: Draw only low, low + step, ...; None = any value, of integers every one.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def examples(self) -> tuple[Any, ...]:
        """Values that the recipe must accept: both ends."""
        return self.low, self.high


@dataclass(frozen=True)
class Sweep:
    """A sweep.

    Attributes:
        recipes: Files for ``train --config``, a later one overrides an earlier one. Relative to the working folder.
        overrides: Dotted name -> value that holds in every trial.
        search: Dotted name -> where its values come from.
        trials: How many settings are tried, those that fail included.
        seeds: Each setting is trained once with each of them.
        sampler_seed: Of the choice of settings.
    """

    recipes: tuple[str, ...]
    overrides: Mapping[str, Any]
    search: Mapping[str, Choices | Range]
    trials: int
    seeds: tuple[int, ...] = (0,)
    sampler_seed: int = 0

    def identity(self) -> dict[str, Any]:
        """All that must stay the same when a sweep goes on: everything but the number of trials.

        Raises:
            UserError: If a recipe cannot be read.
        """
        search = {
            name: {"choices": list(space.values)} if isinstance(space, Choices) else vars(space)
            for name, space in self.search.items()
        }
        return {
            "train": {path: hashlib.sha256(_bytes(Path(path))).hexdigest() for path in self.recipes},
            "overrides": dict(self.overrides),
            "search": search,
            "seeds": list(self.seeds),
            "sampler_seed": self.sampler_seed,
        }

    def recipe(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The recipe that makes a trial of these parameters, overrides included: nested, as in YAML."""
        return _nested({**self.overrides, **parameters})


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file, in the YAML of recipes (1e-4 is a number).

    Raises:
        UserError: If the file is missing or broken, or a key or value is not what a sweep has.
    """
    try:
        content = get_loader("yaml")(_bytes(path).decode("utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not YAML: {error}") from None
    given = _mapping(content, f"{path}", _KEYS, _REQUIRED)
    overrides = _names(given.get("overrides", {}), f"{path}: overrides")
    search = {
        name: _space(space, f"{path}: search: {name}")
        for name, space in _names(given["search"], f"{path}: search").items()
    }
    if not search:
        raise UserError(f"{path}: search: nothing; accepted: at least one name with choices or low and high")
    if both := sorted(overrides.keys() & search.keys()):
        raise UserError(f"{path}: {both[0]} stands under overrides and search; accepted: one of them")
    recipes = _list(given["train"], f"{path}: train")
    if not all(isinstance(recipe, str) for recipe in recipes):
        raise UserError(f"{path}: train: {shown(recipes)}; accepted: a list of recipe files")
    seeds = _list(given.get("seeds", [0]), f"{path}: seeds")
    for seed in seeds:
        _integer(seed, f"{path}: seeds", at_least=0)
    return Sweep(
        recipes=tuple(recipes),
        overrides=overrides,
        search=search,
        trials=_integer(given["trials"], f"{path}: trials", at_least=1),
        seeds=tuple(seeds),
        sampler_seed=_integer(given.get("sampler_seed", 0), f"{path}: sampler_seed", at_least=0),
    )


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
    words = [word for recipe in sweep.recipes for word in ("--config", recipe)]
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
    one = devices in (1, "1") or (isinstance(devices, list) and len(devices) == 1)
    if not one or nodes != 1:
        raise UserError(
            f"{path}: trainer.devices {shown(devices)} on {nodes} node(s); accepted: 1 (`trainer.devices: 1` under "
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


def _space(given: Any, where: str) -> Choices | Range:
    if isinstance(given, dict) and "choices" in given:
        values = _list(_mapping(given, where, ("choices",), ())["choices"], f"{where}: choices")
        return Choices(tuple(values))
    found = _mapping(given, where, _RANGE_KEYS, ("low", "high"))
    low, high = (_number(found[key], f"{where}: {key}") for key in ("low", "high"))
    log, step = found.get("log", False), found.get("step")
    if low >= high:
        raise UserError(f"{where}: low {low:g}, high {high:g}; accepted: low below high")
    if not isinstance(log, bool):
        raise UserError(f"{where}: log {shown(log)}; accepted: true or false")
    if log and low <= 0:
        raise UserError(f"{where}: low {low:g} on a logarithmic scale; accepted: above 0")
    if step is not None:
        if log:
            raise UserError(f"{where}: step on a logarithmic scale; accepted: one of them")
        step = _number(step, f"{where}: step")
        if not 0 < step <= high - low:
            raise UserError(f"{where}: step {step:g}; accepted: above 0, at most {high - low:g}")
        if isinstance(low, int) and isinstance(high, int) and not isinstance(step, int):
            raise UserError(f"{where}: step {step:g} between integers; accepted: an integer, or {low}.0 as low")
    if isinstance(low, int) != isinstance(high, int):
        low, high = float(low), float(high)
    return Range(low, high, log, step)


def _names(given: Any, where: str) -> dict[str, Any]:
    """A mapping of dotted names of values that `train` takes and a sweep does not set itself.

    No name may lie inside another, such as data.augmentation.noise inside data.augmentation.
    """
    if not isinstance(given, dict):
        raise UserError(f"{where}: {shown(given)}; accepted: a mapping of dotted names, such as model.learning_rate")
    for name in given:
        group, _, key = str(name).partition(".")
        if name != _PATIENCE and not (group in _GROUPS and all(key.split("."))):
            accepted = ", ".join(f"{group}.NAME" for group in _GROUPS)
            raise UserError(f"{where}: {shown(name)}; accepted: {accepted}, {_PATIENCE}")
        for other in given:
            if str(other).startswith(f"{name}."):
                raise UserError(f"{where}: {other} lies inside {name}; accepted: one of them")
    return given


def _mapping(given: Any, where: str, accepted: Sequence[str], required: Collection[str]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise UserError(f"{where}: {shown(given)}; accepted: a mapping with {', '.join(accepted)}")
    for key in given:
        if key not in accepted:
            raise UserError(f"{where}: unknown key {shown(key)}; accepted: {', '.join(accepted)}")
    for key in required:
        if key not in given:
            raise UserError(f"{where}: no {key}; accepted: {', '.join(accepted)}")
    return given


def _list(given: Any, where: str) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise UserError(f"{where}: {shown(given)}; accepted: a list of at least one value")
    if twice := next(_repeated(given), None):
        raise UserError(f"{where}: {twice} stands there twice; accepted: distinct values")
    return given


def _repeated(values: Sequence[Any]) -> Iterator[str]:
    seen: set[str] = set()
    for value in values:
        if (text := repr(value)) in seen:
            yield shown(value)
        seen.add(text)


def _integer(given: Any, where: str, at_least: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < at_least:
        raise UserError(f"{where}: {shown(given)}; accepted: an integer, at least {at_least}")
    return given


def _number(given: Any, where: str) -> int | float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise UserError(f"{where}: {shown(given)}; accepted: a number")
    return given


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
