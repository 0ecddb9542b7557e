"""Lightning strategies for training a judge: DDP, FSDP2 and ZeRO."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import DeepSpeedPrecision
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.export import register_dataclass
from torch.optim import Optimizer

from ..core.errors import UserError, raised_in
from ..core.processes import say
from ..models import NANO
from ..models.backbones.deferred import finish
from ..models.heads import Prediction
from ..models.judge import EmpathyJudge
from .features import all_gather_object
from .recipe import Recipe

# FSDP2 waits for the gradients of an output's tensors, which it finds only in types that torch can flatten
register_dataclass(Prediction)


def shard(judge: EmpathyJudge, others: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Leave each process of the mesh its shard of every weight, in place. A mesh of one axis shards over all; of two,
    shards along the second and repeats along the first.

    A group of weights for each layer of each part, one for pooling and one for head (float32, whatever the backbone
    is), each for `others` (of raters), and one for what is left: embeddings, projector, fusion. The weights of a
    group may differ in dtype (frozen bfloat16 and float32 adapters: torch 2.11 gathers both), as long as those that
    are trained have one. Where a judge was loaded deferred, each group is finished in its turn.
    """
    for layer in judge.backbone.layers_of_parts:
        finish(layer)
        fully_shard(layer, mesh=mesh)
    for module in (judge.pooling, judge.head, *others):
        if any(True for _ in module.parameters()):
            fully_shard(module, mesh=mesh)
    finish(judge)
    fully_shard(judge, mesh=mesh)
    # training calls this method; the head is called on its own, after raters were added to the pooled states
    register_fsdp_forward_method(judge, "pooled")
    register_fsdp_forward_method(judge, "clip_features")  # called at the start of training


def checkpointed(module: nn.Module) -> dict[str, Tensor]:
    """Names and values of the tensors in a checkpoint: trained weights, and what was fitted to the training split."""
    trained = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    return trained | {name: value for name, value in module.named_buffers() if name.startswith("judge.head_input.")}


def whole(weight: Tensor) -> Tensor:
    """All of a weight, on the CPU; a collective of all processes where it is sharded."""
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().cpu()


class ShardedStrategy(ModelParallelStrategy):
    """FSDP2 over the devices of each machine, repeated on every machine (HSDP): the frozen weights, which are nearly
    all, never travel between machines.

    Its checkpoints are those of one process: whole trained weights and optimizer states in one file, which any
    strategy and number of devices continues.

    Attributes:
        shards_weights: True: no process has all weights, so that every forward pass is a collective.
        shards: Mesh that weights are sharded over, once processes are set up.
    """

    # one file, written by the first process and read by all
    save_checkpoint, load_checkpoint = Strategy.save_checkpoint, Strategy.load_checkpoint
    lightning_restore_optimizer = Strategy.lightning_restore_optimizer  # pyright: ignore[reportIncompatibleMethodOverride]
    shards_weights = True
    shards: DeviceMesh

    def __init__(self) -> None:
        super().__init__(save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        """Set up processes, and the mesh that `JudgeModule.configure_model` shards over."""
        # Left to "auto", Lightning makes the devices of a machine one tensor-parallel group
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
                # After validation some weights are whole tensors that the optimizer does not know
                module.reshard()
        return {name: whole(weight) for name, weight in checkpointed(self.lightning_module).items()}

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """State of the optimizer as one process would have it. A collective of all processes."""
        return _mapped(optimizer.state_dict(), lambda _, value: whole(value))

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Keep the shard of each whole weight; `JudgeModule.on_load_checkpoint` has compared names and shapes."""
        assert self.lightning_module is not None
        weights = checkpointed(self.lightning_module)
        with torch.no_grad():
            for name, value in checkpoint["state_dict"].items():
                weights[name].copy_(like(value, weights[name]))

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
    """The state of an optimizer with each tensor replaced by what `change` makes of it."""
    each = {
        number: {key: change(number, value) if isinstance(value, Tensor) else value for key, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": each}


_BUCKET = 50_000_000
"""Values that are sent at once: adapters have fewer than DeepSpeed's buffers would have room for."""
_MOMENTS = ("exp_avg", "exp_avg_sq")


class ZeroStrategy(DeepSpeedStrategy):
    """ZeRO-2, which shards gradients and optimizer states, with the precision and the checkpoints of all other
    strategies. (ZeRO-3 would shard the weights too, which `ShardedStrategy` does.)

    Weights keep their dtype and `bf16-mixed` is autocast, as under DDP: left to itself, DeepSpeed casts the head to
    bfloat16. A checkpoint is one file of whole trained weights and AdamW states, where DeepSpeed writes a folder of
    shards for one number of devices; any strategy and number of devices continues it.
    """

    # one file, written by the first process and read by all
    save_checkpoint, load_checkpoint = Strategy.save_checkpoint, Strategy.load_checkpoint
    load_model_state_dict = Strategy.load_model_state_dict
    lightning_restore_optimizer = Strategy.lightning_restore_optimizer  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self) -> None:
        """Set DeepSpeed up.

        Raises:
            ImportError: If DeepSpeed is not installed.
        """
        super().__init__(
            stage=2,
            allgather_bucket_size=_BUCKET,
            reduce_bucket_size=_BUCKET,
            logging_batch_size_per_gpu=1,  # for its log alone; our batches differ in size
            logging_level=logging.ERROR,  # it warns of every dataclass that a module takes or returns
        )
        self._groups: list[list[Tensor]] = []

    @property
    def handles_gradient_accumulation(self) -> bool:
        """False: Lightning counts the batches."""
        return False

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Nothing to hold back while batches are accumulated: `_WeightsAsTheyAre.backward` says which is the last."""
        yield

    def setup_environment(self) -> None:
        """Set up processes, and disable DeepSpeed's own handling of dtypes."""
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
        # DeepSpeed puts flat weights there, one for each group
        self._groups = [list(group["params"]) for group in optimizer.param_groups]
        return optimizer, schedule

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Trained weights, on the CPU. They are whole in every process."""
        assert self.lightning_module is not None
        return {name: weight.detach().cpu() for name, weight in checkpointed(self.lightning_module).items()}

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """State of AdamW as one process would have it. A collective of all processes."""
        from deepspeed.utils import safe_get_full_optimizer_state  # pyright: ignore[reportMissingImports]

        inner: Any = self._adamw
        self._link_states()
        # AdamW has no states before its first step. All weights have taken the same number of steps
        steps = [values["step"] for values in inner.state.values()]
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
        """The AdamW inside DeepSpeed's optimizer."""
        sharded: Any = self.optimizers[0]
        return sharded.optimizer

    def _link_states(self) -> None:
        """Let each weight know its states; DeepSpeed does that after the first group's first step, too early for the
        other groups (seen in 0.19.8)."""
        sharded: Any = self.optimizers[0]
        sharded._hp_optimizer_states_linked = False
        sharded._lazy_init_hp_params_optimizer_state()

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Keep this process's share of the states of AdamW."""
        from deepspeed.utils import safe_set_full_optimizer_state  # pyright: ignore[reportMissingImports]

        (stored,) = checkpoint["optimizer_states"]
        inner, states = self._adamw, list(stored["state"].values())
        for group, options in zip(inner.param_groups, stored["param_groups"], strict=True):
            group.update({key: value for key, value in options.items() if key != "params"})
        if not states:
            return
        # The weights that DeepSpeed optimizes: this process's share of each group, as flat tensors
        for flat in (weight for group in inner.param_groups for weight in group["params"]):
            # a fused kernel reads the count where the weights are
            count = states[0]["step"].to(flat.device, torch.float32, copy=True)
            inner.state[flat] = {"step": count, **{key: torch.zeros_like(flat) for key in _MOMENTS}}
        self._link_states()
        weights = [weight for group in self._groups for weight in group]
        for number, weight in enumerate(weights):
            for key in _MOMENTS:
                value = stored["state"][number][key].to(self.root_device, torch.float32)
                safe_set_full_optimizer_state(weight, value, key)


class _WeightsAsTheyAre(DeepSpeedPrecision):
    """A precision plugin that casts nothing: dtypes are those of the judge."""

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


_EXPECTED = "auto, ddp, or --config strategy_NAME with ddp, fsdp2 or zero2"
PRECISIONS = (None, 32, "32", "32-true", "bf16-mixed")
"""Values of `trainer.precision` that FSDP2 and ZeRO take."""


@contextmanager
def refused_by_lightning(*more: type[Exception]) -> Iterator[None]:
    """Tell in one line what Lightning refuses in a recipe: some of it only when it knows the data, such as a share of
    the batches that is less than one.

    Args:
        *more: Other errors by which its own code refuses something.

    Raises:
        UserError: If it does.
    """
    try:
        yield
    except (MisconfigurationException, *more) as error:
        if not raised_in(error, "lightning"):
            raise
        raise UserError(f"trainer: {str(error).strip().splitlines()[0]}") from None


def check_accelerator(recipe: Recipe) -> None:
    """Check that there is a GPU where the recipe wants one, before anything is written; say where one is left idle.

    Raises:
        UserError: If there is none.
    """
    wanted, there = recipe.trainer.get("accelerator"), torch.cuda.is_available() or torch.backends.mps.is_available()
    if wanted in ("gpu", "cuda") and not there:
        raise UserError(
            f"trainer.accelerator {wanted}: torch finds no GPU on this machine (`empathy-judge doctor`); expected one, "
            "or --trainer.accelerator cpu"
        )
    first: bool = rank_zero_only.rank == 0  # pyright: ignore[reportFunctionMemberAccess]
    # Nano is made for CPUs: with it, an idle GPU is no mistake
    if first and wanted == "cpu" and there and recipe.judge.backbone != NANO:
        say("the GPU of this machine stays idle: the recipe has trainer.accelerator cpu")


def check_processes(count: int) -> None:
    """Check that there is one process, as several runs need it.

    Raises:
        UserError: If there are more.
    """
    if count > 1:
        raise UserError(
            f"{count} processes with several runs (folds, method auto, or refit with method lora); "
            "expected trainer.devices 1"
        )


def check_strategy(recipe: Recipe) -> None:
    """Check that a strategy fits, and that `train` can continue and `export` can read the checkpoints it writes.

    Raises:
        UserError: If not.
    """
    strategy, precision = recipe.trainer.get("strategy", "auto"), recipe.trainer.get("precision")
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    ours = isinstance(strategy, ShardedStrategy | ZeroStrategy)
    foreign = isinstance(strategy, DeepSpeedStrategy | FSDPStrategy | ModelParallelStrategy) and not ours
    if foreign or name.startswith(("deepspeed", "fsdp")):
        raise UserError(
            f"trainer.strategy {name}: writes shards where a run has one file for a checkpoint; expected {_EXPECTED}"
        )
    if ours and precision not in PRECISIONS:
        raise UserError(f"trainer.precision {precision} with {name}; expected bf16-mixed or 32-true")
    refused: dict[str, tuple[bool, str]] = {}
    if isinstance(strategy, ZeroStrategy):
        refused = {
            # DeepSpeed trains a copy of the head, which no regression reaches
            "method probe": (recipe.method == "probe", "no strategy"),
            # The head is float32, and ZeRO wants one dtype of all that is trained
            "judge.lora.trained_dtype backbone": (recipe.judge.lora.trained_dtype == "backbone", "float32"),
        }
    elif isinstance(strategy, ShardedStrategy):
        quantization, cached = recipe.judge.quantization, recipe.cache.what
        refused = {
            # bitsandbytes cannot shard weights in 4 bits
            f"judge.quantization {quantization}": (quantization != "none", "no quantization"),
            # No process can try a step alone
            "data.batch_tokens auto": (recipe.data.batch_tokens == "auto", "a number"),
            # Layers are gathered while they are computed: not tried
            "compile_layers": (recipe.compile_layers, "compile_layers false"),
            # Each process computes alone what is cached, for which it needs whole weights
            f"cache.what {cached}": (cached != "none", "cache.what none"),
        }
    for setting, (applies, instead) in refused.items():
        if applies:
            raise UserError(f"{setting} does not go with {name}; expected {instead}, or --trainer.strategy ddp")


class SameCheckpoint(Callback):
    """Checks that all processes of a run go on from the same checkpoint.

    Each has looked for it by itself, and a network file system may have shown an older state to some of them.
    """

    def __init__(self, loops: Mapping[str, Any] | None) -> None:
        """Compare this state of the loops, from the checkpoint that this process has found; None = a new run."""
        self._loops = loops

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Compare.

        Raises:
            SystemExit: In all of them, with 1 and not 2, so that a launcher that starts again on failure does so.
        """
        if any(found != self._loops for found in all_gather_object(self._loops)):
            if trainer.is_global_zero:
                say(
                    f"error: {trainer.default_root_dir}: the processes found different checkpoints to go on from; "
                    "expected a folder that all machines see alike, or a minute until they do, then --resume auto"
                )
            raise SystemExit(1)


def started_by() -> list[ClusterEnvironment]:
    """Plugins of Lightning: under SLURM it must not save and requeue by itself, since `train` does."""
    if SLURMEnvironment.detect() and not TorchElasticEnvironment.detect():
        return [SLURMEnvironment(auto_requeue=False)]
    return []
