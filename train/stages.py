"""Time split between the stages of a training step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

from ..models.judge import EmpathyJudge
from .actions import FETCH
from .flops import synchronize

WAITING = "waiting for data"
COLLATE = "decoding and collate"
TOWER = "audio tower"
PROJECTOR = "projector"
READING = "language model forward"
"""Embeddings included; the joiner where there is no language model."""
LOSS = "pooling, head and loss"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
REST = "rest"
STAGES = (WAITING, COLLATE, TOWER, PROJECTOR, READING, LOSS, BACKWARD, OPTIMIZER, REST)

_OF_ACTION = {
    "training_step": LOSS,
    "backward": BACKWARD,
    "optimizer_step": OPTIMIZER,
    "optimizer_zero_grad": OPTIMIZER,
    "configure_gradient_clipping": OPTIMIZER,
}
"""Last words of Lightning's actions; `optimizer_step` encloses the first two."""


def stage_of(action: str) -> str | None:
    """The stage that an action of Lightning's loops begins, if any."""
    if action == FETCH:
        return WAITING
    return None if action.startswith("[Callback]") else _OF_ACTION.get(action.rpartition(".")[2])


class StageClock:
    """Every moment belongs to the innermost open stage, so that the stages add up to the whole; with none open to
    `REST`.

    A GPU is waited for wherever a stage begins or ends, so that its work is counted where it was asked for.

    Attributes:
        seconds: Of each stage so far.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._device = device
        self._open: list[tuple[str, AbstractContextManager[Any]]] = []
        self._since: float | None = None

    def resume(self) -> None:
        """Let the clock run; it stands still at first."""
        self._charge()
        self._since = time.perf_counter()

    def pause(self) -> None:
        """Stop it; stages may begin and end meanwhile."""
        self._charge()
        self._since = None

    def begin(self, stage: str) -> None:
        """From now on `stage` inside of what is open. In a profiler's trace it is a region of that name."""
        self._charge()
        region = record_function(stage)
        region.__enter__()
        self._open.append((stage, region))

    def end(self) -> None:
        """The innermost stage is over; nothing where it began before this clock did."""
        self._charge()
        if self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, all its time being of `stage`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.begin(stage)
            try:
                return function(*args, **kwargs)
            finally:
                self.end()

        return call

    def _charge(self) -> None:
        if self._since is None:
            return
        synchronize(self._device)
        now = time.perf_counter()
        self.seconds[self._open[-1][0] if self._open else REST] += now - self._since
        self._since = now


def watch(clock: StageClock, judge: EmpathyJudge) -> Callable[[], None]:
    """Time the parts of a judge's forward pass, whatever its family.

    Returns:
        Call it to leave the judge as it was.
    """
    backbone: Any = judge.backbone
    backbone.encode_audio = clock.timed(TOWER, backbone.encode_audio)
    backbone.hidden_states = clock.timed(READING, backbone.hidden_states)
    handles = []
    if "projector" in backbone.parts:
        handles = _watch_module(clock, PROJECTOR, backbone.network.get_submodule(backbone.parts["projector"].path))

    def leave() -> None:
        del backbone.encode_audio, backbone.hidden_states  # the instance's; the class has its own
        for handle in handles:
            handle.remove()

    return leave


def _watch_module(clock: StageClock, stage: str, module: nn.Module) -> list[Any]:
    return [
        module.register_forward_pre_hook(lambda *_: clock.begin(stage)),
        module.register_forward_hook(lambda *_: clock.end()),
    ]
