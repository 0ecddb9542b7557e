"""ZeRO: DeepSpeed shards optimizer states and gradients (2) or all weights too (3). For `trainer.strategy`."""

from __future__ import annotations

from lightning.pytorch.strategies import DeepSpeedStrategy


class ZeroStrategy(DeepSpeedStrategy):
    stage = 2
