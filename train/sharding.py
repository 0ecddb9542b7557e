"""FSDP2: every process keeps a shard of all weights and gathers them layer by layer. For `trainer.strategy`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.export import register_dataclass

from ..models.backbones.deferred import finish
from ..models.heads import Prediction
from ..models.judge import EmpathyJudge

# FSDP2 finds the tensors of an output, whose gradients it waits for, only in what torch can take apart
register_dataclass(Prediction)


def shard(judge: EmpathyJudge, beside: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Leave each process of the mesh its shard of every weight, in place.

    A group of weights for each layer of each part, one for pooling and one for head (float32, whatever the backbone
    is), and one for what is left: embeddings, projector, joiner. The weights of a group may differ in dtype (frozen
    bfloat16 beside float32 adapters: torch 2.11 gathers both), as long as those that are trained have one.

    Args:
        judge: On the CPU or its device; where it was loaded deferred, each group of weights is finished in its turn.
        beside: Other trained modules, called after the judge.
        mesh: One axis = shard over all; two = shard along the second, repeat along the first.
    """
    for part in judge.backbone.parts.values():
        for layer in _layers(judge.network, part.layers):
            finish(layer)
            fully_shard(layer, mesh=mesh)
    for module in (judge.pooling, judge.head, *beside):
        if any(True for _ in module.parameters()):
            fully_shard(module, mesh=mesh)
    finish(judge)
    fully_shard(judge, mesh=mesh)
    # what training calls: the head follows on its own, after raters were added to what is pooled
    register_fsdp_forward_method(judge, "pooled")


def whole(weight: Tensor) -> Tensor:
    """All of a weight, on the CPU; a collective of all processes where it is sharded."""
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().cpu()


class ShardedStrategy(ModelParallelStrategy):
    """FSDP2 over the devices of each machine, repeated on every machine (HSDP): the frozen weights, which are nearly
    all, never travel between machines.

    Its checkpoints are those of one process: whole trained weights and optimizer states in one file, which any
    strategy and number of devices continues.

    Attributes:
        shards_weights: No process has all weights, so that every forward pass is a collective.
        shards: Mesh that weights are sharded over, once processes are set up.
    """

    shards_weights = True
    shards: DeviceMesh

    def __init__(self) -> None:
        super().__init__(save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        """Processes and the mesh that `JudgeModule.configure_model` shards over."""
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()
        kind = self.root_device.type
        if self.num_nodes > 1:
            self.shards = init_device_mesh(
                kind, (self.num_nodes, self.num_processes), mesh_dim_names=("machine", "device")
            )
        else:
            self.shards = init_device_mesh(kind, (self.num_processes,), mesh_dim_names=("device",))

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Trained weights, whole; Lightning would gather the frozen ones too. A collective of all processes."""
        assert self.lightning_module is not None
        for module in self.lightning_module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # after validation some are whole, and not those that the optimizer knows
        weights = self.lightning_module.named_parameters()
        return {name: whole(weight) for name, weight in weights if weight.requires_grad}

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """State of the optimizer as one process would have it. A collective of all processes."""
        return _mapped(optimizer.state_dict(), lambda _, value: whole(value))

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """One file, written by the first process."""
        Strategy.save_checkpoint(self, checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Read the file, in every process."""
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Keep the shard of each whole weight; `JudgeModule.on_load_checkpoint` has compared names and shapes."""
        assert self.lightning_module is not None
        weights = dict(self.lightning_module.named_parameters())
        with torch.no_grad():
            for name, value in checkpoint["state_dict"].items():
                weights[name].copy_(like(value, weights[name]))

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Lightning shall call `load_optimizer_state_dict`."""
        return True

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Keep the shard of each whole state."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            optimizer.load_state_dict(
                _mapped(state, lambda number, value, weights=weights: like(value, weights[number]))
            )


def like(value: Tensor, weight: Tensor) -> Tensor:
    """A whole tensor sharded as `weight` is; what has another shape (a count of steps) stays as it is."""
    if not isinstance(weight, DTensor) or value.shape != weight.shape:
        return value
    # every process has the whole value, so that nothing need be sent
    return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None)


def _mapped(state: dict[str, Any], change: Callable[[int, Tensor], Tensor]) -> dict[str, Any]:
    """The state of an optimizer with other tensors."""
    each = {
        number: {key: change(number, value) if isinstance(value, Tensor) else value for key, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": each}


def _layers(network: nn.Module, path: str | None) -> Iterable[nn.Module]:
    return network.get_submodule(path).children() if path else ()
