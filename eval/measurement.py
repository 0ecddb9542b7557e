"""How judges are loaded, asked and measured: the arguments of `evaluate` and `compare`, and the options of commands.

The attributes of a class are the help of its options (`commands.options`). This file loads nothing heavy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from ..core.option_values import NO_OPTION, Device, Dollars, Resamples, Seed, SplitName

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def takes(kind: type[Any]) -> Callable[[AnyFunction], AnyFunction]:
    """Shows the fields of a dataclass as the keyword arguments of a function: `help` and notebooks then name them."""

    def shown(function: AnyFunction) -> AnyFunction:
        written = inspect.signature(function)
        # `**how` itself goes: the fields that it stands for take its place
        own = [one for one in written.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        fields_of_kind = inspect.signature(kind).parameters.values()
        setattr(function, "__signature__", written.replace(parameters=[*own, *fields_of_kind]))  # noqa: B010
        return function

    return shown


def chosen(options: Any, kind: type[Any]) -> dict[str, Any]:
    """The fields that a dataclass has of another one, as arguments by name."""
    return {one.name: getattr(options, one.name) for one in fields(kind)}


@dataclass(frozen=True, kw_only=True)
class Split:
    """Which pairs of a dataset.

    Attributes:
        split: which pairs; all = every pair
    """

    split: SplitName = "test"  # None = every pair


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Random numbers.

    Attributes:
        resamples: bootstrap resamples
        seed: random seed
    """

    resamples: Resamples = 1000
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class Intervals(Draws):
    """Intervals of agreement.

    Attributes:
        interval: bootstrap intervals of statistics that are no correlations: percentile, or bca (bias-corrected and
            accelerated); correlations have t intervals; pairs, groups, systems and calibration always percentile ones
    """

    interval: Literal["percentile", "bca"] = "percentile"


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where and how a backbone is loaded.

    Attributes:
        device: cpu, cuda, ...; auto = all GPUs, then main memory (default: a GPU if there is one)
        backbone: where the backbone lies now, if not where the judge found it
        quantization: nf4 = language model in 4 bits, for small GPUs; scores change a little (default: as in training)
    """

    device: Device | None = None
    backbone: str | None = None
    quantization: Literal["none", "nf4"] | None = None


@dataclass(frozen=True, kw_only=True)
class Loading(Placed):
    """How a judge is loaded: the arguments of `Scorer.from_pretrained`.

    Attributes:
        windows: refuse clips that are longer than the judge hears at once (default: they are heard in windows)
        cache (FOLDER): keep what the audio tower makes of clips here, for other commands and for training with
            --cache.folder (at most 100 GB; default: not kept)
    """

    windows: bool = True
    # The second type is the one that the command line parses; callers in Python may give a path
    cache: Annotated[str | Path | None, str] = None


@dataclass(frozen=True, kw_only=True)
class Asking(Split, Draws, Loading):
    """How any judge is opened for the pairs of a split, prompted ones included.

    Attributes:
        budget (DOLLARS): spend at most this much on each of them
        answers (FILE): SQLite file in which answers are kept, so that nothing is asked twice (default: in the user's
            cache)
    """

    TITLE: ClassVar[str] = "prompted LLM judges (openai:..., gemini:...)"

    budget: Dollars | None = None
    answers: Annotated[str | Path | None, str] = None


@dataclass(frozen=True, kw_only=True)
class Measurement(Intervals, Asking):
    """How judges are measured: the arguments of `evaluate` and `compare`, and the options of their commands.

    Attributes:
        checks (NAME): listening checks, each one more pass of the judge: names, all, or none (default: response_only,
            context_swapped, silent, flat_prosody, low_pass; prompted judges do not take these unless they are named)
        slices (COLUMN): what to slice the report by, such as response_speaker or tag:cue (default: setting, system_id,
            language and all tags of at most 100 values)
        cluster: what the bootstrap and the tests keep whole; a pair that names none is a cluster of its own
        command: The command line, for the record.
    """

    checks: Sequence[str] | None = None
    slices: Sequence[str] | None = None
    cluster: Literal["group_id", "context_speaker", "response_speaker", "system_id"] = "group_id"
    command: str = field(default="", metadata=NO_OPTION)

    def named_checks(self) -> Sequence[str] | Literal["all"] | None:
        """The listening checks that were asked for by name; None = none were."""
        # A text comes from Python, a list of one from the command line
        if self.checks in ("all", ["all"]):
            return "all"
        return () if self.checks in ("none", ["none"]) else self.checks
