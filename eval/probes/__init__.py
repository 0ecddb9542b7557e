"""Listening probes: the same pairs with something taken away, exchanged or put another way.

A probe returns changed pairs with the same ids, to be scored and compared with the unchanged human ratings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ...data_modules.errors import DataError, shown
from .exchange import EXCHANGES, context_swapped, group_of, response_swapped
from .probe import Probe
from .recording_probes import RECORDING_PROBES
from .removal import REMOVALS, context_only, response_only, silent
from .voice_probes import VOICE_PROBES

__all__ = [
    "DEFAULT_PROBES",
    "PROBES",
    "Probe",
    "choose",
    "context_only",
    "context_swapped",
    "group_of",
    "response_only",
    "response_swapped",
    "silent",
]

PROBES: Mapping[str, Probe] = {probe.name: probe for probe in (*REMOVALS, *EXCHANGES, *VOICE_PROBES, *RECORDING_PROBES)}
"""Every probe by its name, in the order in which reports show them."""

DEFAULT_PROBES = ("response_only", "context_swapped", "silent", "flat_prosody", "low_pass")
"""Those of `evaluate` unless others are asked for: shortcuts past the context, and words against voice."""


def choose(names: Sequence[str] | Literal["all"]) -> tuple[Probe, ...]:
    """The probes of these names in the order of `PROBES`, each once; ``all`` = every one.

    Raises:
        DataError: If there is no probe of a name; the message lists those that exist.
    """
    if isinstance(names, str) and names != "all":
        names = (names,)
    unknown = [] if names == "all" else [name for name in names if name not in PROBES]
    if unknown:
        raise DataError(f"probe {shown(unknown[0])}; accepted: {', '.join(PROBES)}")
    return tuple(probe for probe in PROBES.values() if names == "all" or probe.name in names)
