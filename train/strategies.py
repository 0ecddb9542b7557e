"""Which of Lightning's strategies train a judge, and with what they go together."""

from __future__ import annotations

from lightning.pytorch.strategies import Strategy

from .sharding import ShardedStrategy
from .zero import ZeroStrategy


def shards_weights(strategy: Strategy) -> bool:
    """Whether no process has all weights, so that a forward pass is a collective."""
    return isinstance(strategy, ShardedStrategy) or (isinstance(strategy, ZeroStrategy) and strategy.stage == 3)
