"""Where two runs of training ended, compared bit for bit."""

from __future__ import annotations

from pathlib import Path

import torch
from empathy_judge.models import CHECKPOINTS, LAST
from empathy_judge.models.weight_files import read_checkpoint

_ALIKE = ("epoch", "global_step", "agreement", "lr_schedulers", "provenance")


def differing(one: Path, other: Path, *files: str) -> list[str]:
    """What two runs ended with that is not the same in these checkpoints (the last one): weights, moments of the
    optimizer, learning rates, and how they are described."""
    names = []
    for file in files or (f"{CHECKPOINTS}/{LAST}",):
        first, second = read_checkpoint(one / file), read_checkpoint(other / file)
        assert first["state_dict"].keys() == second["state_dict"].keys()
        weights = second["state_dict"]
        names += [key for key, value in first["state_dict"].items() if not torch.equal(value, weights[key])]
        moments, expected = (checkpoint["optimizer_states"][0]["state"] for checkpoint in (first, second))
        for number, state in expected.items():
            names += [f"{key} of {number}" for key in state if not torch.equal(moments[number][key], state[key])]
        for checkpoint in (first, second):
            checkpoint["provenance"] = checkpoint["description"]["provenance"]
        names += [key for key in _ALIKE if first[key] != second[key]]
    return names
