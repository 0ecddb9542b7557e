"""What Lightning's loops are doing, for callbacks that measure."""

from __future__ import annotations

from typing import Any, Protocol

from lightning.pytorch.profilers import Profiler

FETCH = "[_TrainingEpochLoop].train_dataloader_next"
"""Lightning's name for asking the data loader for the next training batch; no hook stands before it."""

SAVE = "save_checkpoint"
"""Writing a checkpoint, also in the middle of an epoch."""


class Listener(Protocol):
    """Hears of every action of the loops; the names are those of Lightning's own profilers."""

    def action_starts(self, name: str) -> None:
        """Just before it."""
        ...

    def action_stops(self, name: str) -> None:
        """Just after it, also where it failed."""
        ...


class Actions(Profiler):
    """Stands before the profiler that the user chose (Lightning's default does nothing) and tells listeners."""

    def __init__(self, chosen: Profiler) -> None:
        super().__init__()
        self.chosen = chosen
        self.listeners: list[Listener] = []

    def start(self, action_name: str) -> None:
        """Tell all."""
        self.chosen.start(action_name)
        for listener in self.listeners:
            listener.action_starts(action_name)

    def stop(self, action_name: str) -> None:
        """Tell all."""
        for listener in self.listeners:
            listener.action_stops(action_name)
        self.chosen.stop(action_name)

    def summary(self) -> str:
        """Of the chosen profiler."""
        return self.chosen.summary()

    def describe(self) -> None:
        """Let the chosen profiler print its report."""
        self.chosen.describe()

    def teardown(self, stage: str | None) -> None:
        """Let the chosen profiler close its files; its `setup` was called before this one took its place."""
        self.chosen.teardown(stage)


def listen(trainer: Any, listener: Listener) -> None:
    """Tell `listener` of every action from now on; for a callback's `setup`; `trainer` is Lightning's."""
    if not isinstance(trainer.profiler, Actions):
        trainer.profiler = Actions(trainer.profiler)
    trainer.profiler.listeners.append(listener)
