"""ZeRO: DeepSpeed shards optimizer states and gradients (2) or all weights too (3). For `trainer.strategy`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.plugins.precision import DeepSpeedPrecision
from lightning.pytorch.strategies import DeepSpeedStrategy, Strategy
from torch import Tensor
from torch.optim import Optimizer

_BUCKET = 50_000_000
"""Values that are sent at once: adapters have fewer than DeepSpeed's buffers would have room for."""
_MOMENTS = ("exp_avg", "exp_avg_sq")


class ZeroStrategy(DeepSpeedStrategy):
    """ZeRO with the precision and the checkpoints of all other strategies.

    Weights keep their dtype and `bf16-mixed` is autocast, as under DDP: left to itself, DeepSpeed casts the head to
    bfloat16. A checkpoint is one file of whole trained weights and AdamW states, where DeepSpeed writes a folder of
    shards for one number of devices; any strategy and number of devices continues it.
    """

    def __init__(self, stage: Literal[2, 3] = 2) -> None:
        """Set DeepSpeed up.

        Args:
            stage: 2 = shard optimizer states and gradients; 3 = shard all weights too.

        Raises:
            ImportError: If DeepSpeed is not installed.
        """
        super().__init__(
            stage=stage,
            allgather_bucket_size=_BUCKET,
            reduce_bucket_size=_BUCKET,
            logging_batch_size_per_gpu=1,  # for its log alone; our batches differ in size
            logging_level=logging.ERROR,  # it warns of every dataclass that a module takes or returns
        )
        self.stage = stage
        self._groups: list[list[Tensor]] = []

    @property
    def shards_weights(self) -> bool:
        """Whether no process has all weights, so that every forward pass is a collective."""
        return self.stage == 3

    @property
    def handles_gradient_accumulation(self) -> bool:
        """Lightning counts."""
        return False

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Nothing to hold back while batches are accumulated: DeepSpeed is told which is the last."""
        yield

    def setup_environment(self) -> None:
        """Processes; and DeepSpeed's own ways with dtypes put out of work."""
        precision = self.precision_plugin.precision
        self._precision_plugin = _WeightsAsTheyAre(precision)  # pyright: ignore[reportArgumentType]
        assert isinstance(self.config, dict)
        self.config["bf16"] = {"enabled": False}
        if precision == "bf16-mixed":
            # no module sends its weights or gradients in bfloat16
            self.config["torch_autocast"] = {
                "enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": [],
            }  # fmt: skip
        super().setup_environment()

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """Trained weights are read while they are whole."""
        return False

    def _init_optimizers(self) -> Any:
        optimizer, schedule = super()._init_optimizers()
        self._groups = [list(group["params"]) for group in optimizer.param_groups]  # DeepSpeed puts flat ones there
        return optimizer, schedule

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Trained weights, whole, on the CPU. A collective of all processes."""
        assert self.lightning_module is not None
        weights = self.lightning_module.named_parameters()
        return {name: self._whole(weight).cpu() for name, weight in weights if weight.requires_grad}

    def _whole(self, weight: Tensor) -> Tensor:
        from deepspeed.utils import safe_get_full_fp32_param  # pyright: ignore[reportMissingImports]

        if self.stage == 2:
            return weight.detach()
        found = safe_get_full_fp32_param(weight)
        assert found is not None
        return found.to(weight.dtype)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """State of AdamW as one process would have it. A collective of all processes."""
        from deepspeed.utils import safe_get_full_optimizer_state  # pyright: ignore[reportMissingImports]

        inner: Any = self._adamw
        self._link_states()
        steps = [own["step"] for own in inner.state.values()]
        numbers, groups, state = iter(range(sum(map(len, self._groups)))), [], {}
        for group, options in zip(self._groups, inner.param_groups, strict=True):
            groups.append({**options, "params": [next(numbers) for _ in group]})
            for number, weight in zip(groups[-1]["params"], group, strict=True):
                if steps:
                    moments = {key: safe_get_full_optimizer_state(weight, key) for key in _MOMENTS}
                    whole = {key: value.cpu() for key, value in moments.items() if value is not None}
                    state[number] = {"step": steps[0].clone().cpu(), **whole}
        return {"state": state, "param_groups": groups}

    @property
    def _adamw(self) -> Optimizer:
        """The optimizer inside DeepSpeed's."""
        sharded: Any = self.optimizers[0]
        return sharded.optimizer

    @property
    def _flat(self) -> list[Tensor]:
        """What it optimizes: this process's share of each group, in one row."""
        sharded: Any = self.optimizers[0]
        return sharded.single_partition_of_fp32_groups if self.stage == 2 else sharded.fp32_partitioned_groups_flat

    def _link_states(self) -> None:
        """Let each weight know its states; DeepSpeed does that after the first group's first step, too early for the
        other groups (seen in 0.19.8)."""
        if self.stage == 2:
            sharded: Any = self.optimizers[0]
            sharded._hp_optimizer_states_linked = False
            sharded._lazy_init_hp_params_optimizer_state()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """One file, written by the first process."""
        Strategy.save_checkpoint(self, checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Read the file, in every process."""
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Put the trained weights in their places."""
        Strategy.load_model_state_dict(self, checkpoint, strict)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Lightning shall call `load_optimizer_state_dict`."""
        return True

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Keep this process's share of the states of AdamW."""
        (stored,) = checkpoint["optimizer_states"]
        inner, states = self._adamw, list(stored["state"].values())
        for group, options in zip(inner.param_groups, stored["param_groups"], strict=True):
            group.update({key: value for key, value in options.items() if key != "params"})
        if not states:
            return
        for flat in self._flat:
            inner.state[flat] = {
                "step": states[0]["step"].clone(), **{key: torch.zeros_like(flat) for key in _MOMENTS},
            }  # fmt: skip
        self._link_states()
        weights = [weight for group in self._groups for weight in group]
        for number, weight in enumerate(weights):
            for key in _MOMENTS:
                self._put(weight, key, stored["state"][number][key])

    def _put(self, weight: Tensor, key: str, value: Tensor) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state  # pyright: ignore[reportMissingImports]

        value = value.to(self.root_device, torch.float32)
        if self.stage == 2:
            safe_set_full_optimizer_state(weight, value, key)
            return
        # the shares of a weight that cannot be divided are filled up, which DeepSpeed forgets when it sets it whole
        share = weight.ds_tensor.numel()  # pyright: ignore[reportAttributeAccessIssue]
        padded = torch.zeros(share * self.world_size, device=value.device)
        padded[: value.numel()] = value.flatten()
        safe_set_local_optimizer_state(weight, padded[share * self.global_rank :][:share], key)


class _WeightsAsTheyAre(DeepSpeedPrecision):
    """Casts nothing: dtypes are those of the judge."""

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module itself."""
        return module

    def convert_input(self, data: Any) -> Any:
        """The batch itself."""
        return data

    def backward(self, tensor: Tensor, model: L.LightningModule, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Gradients of a loss that Lightning has divided by the batches that are accumulated; DeepSpeed would do so
        again, and leave the last batches of an epoch, where they are fewer, to the next epoch."""
        engine: Any = model.trainer.model
        engine.set_gradient_accumulation_boundary(not model.trainer.fit_loop._should_accumulate())
        engine.backward(tensor, scale_wrt_gas=False)
