"""Which of Lightning's strategies train a judge, with what they go together, and who starts the processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy

from ..data_modules.errors import UserError
from .module import JudgeModule
from .sharding import ShardedStrategy
from .zero import ZeroStrategy

_ACCEPTED = "auto, ddp, or --config configs/strategy_NAME.yaml with ddp, fsdp2, zero2 or zero3"
_PRECISIONS = (None, 32, "32", "32-true", "bf16-mixed")


def check_strategy(trainer: Mapping[str, Any], module: JudgeModule) -> None:
    """A strategy writes checkpoints that `train` can continue and `export` can read, and fits what is trained.

    Args:
        trainer: Arguments of `lightning.Trainer`.
        module: What is trained.

    Raises:
        UserError: If not.
    """
    strategy, precision = trainer.get("strategy", "auto"), trainer.get("precision")
    ours = isinstance(strategy, ShardedStrategy | ZeroStrategy)
    foreign = isinstance(strategy, DeepSpeedStrategy | FSDPStrategy | ModelParallelStrategy) and not ours
    if foreign or (isinstance(strategy, str) and strategy.startswith(("deepspeed", "fsdp"))):
        name = strategy if isinstance(strategy, str) else type(strategy).__name__
        raise UserError(
            f"trainer.strategy {name}: writes shards where a run has one file for a checkpoint; accepted: {_ACCEPTED}"
        )
    if not isinstance(strategy, Strategy) or not ours:
        return
    name = type(strategy).__name__
    if precision not in _PRECISIONS:
        raise UserError(f"trainer.precision {precision} with {name}; accepted: bf16-mixed or 32-true")
    if isinstance(strategy, ZeroStrategy) and module.judge_settings.lora.dtype == "backbone":
        raise UserError(
            f"model.trained_dtype backbone with {name}: the head is float32, and ZeRO wants one dtype of all that is "
            "trained; accepted: float32, also where frozen weights are bfloat16"
        )
    if not strategy.shards_weights:
        return
    if module.judge_settings.quantization != "none":
        raise UserError(
            f"model.quantization {module.judge_settings.quantization} with {name}, which cannot shard weights in 4 "
            "bits; accepted: no quantization, or --config configs/strategy_ddp.yaml"
        )
    if module.compile_layers:
        raise UserError(
            f"model.compile_layers with {name}, where layers are gathered while they are computed: not tried; "
            "accepted: compile_layers: false, or --config configs/strategy_ddp.yaml"
        )
    if module.cache != "none":
        raise UserError(
            f"model.cache {module.cache} with {name}: each process computes what is kept alone, for which it needs "
            "whole weights; accepted: cache: none, or --config configs/strategy_ddp.yaml"
        )


def started_by() -> list[ClusterEnvironment]:
    """For Lightning's `plugins`: under Slurm it shall not save and requeue in its own way beside that of `train`."""
    if SLURMEnvironment.detect() and not TorchElasticEnvironment.detect():
        return [SLURMEnvironment(auto_requeue=False)]
    return []
