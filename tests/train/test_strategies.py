"""Sharded weights give the gradients of whole ones; every strategy ends where DDP does, and each goes on from the
checkpoints of another. On the CPU; ZeRO where DeepSpeed is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.settings import DataSettings
from empathy_judge.models.settings import JudgeSettings
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.recipe import Recipe, RecipeParser
from empathy_judge.train.run import train
from empathy_judge.train.strategies import ShardedStrategy, ZeroStrategy, check_accelerator, check_strategy, started_by
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_only
from torch._subclasses.fake_tensor import FakeTensorMode

from ..conftest import failed
from .conftest import BEST_FILE, LAST_FILE, Killed, under_torchrun

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, torch, torch.distributed as dist
from empathy_judge.data_modules.schema import Dimension, PairDataset
from empathy_judge.models.judge import EmpathyJudge, JudgeSettings
from empathy_judge.models.lora import LoraSettings
from empathy_judge.models.backbones.layers import recompute_activations
from empathy_judge.train.strategies import shard, whole

backbone, data, out = sys.argv[1:]
dist.init_process_group("gloo")
mesh, rank = dist.init_device_mesh("cpu", (2,)), dist.get_rank()
pairs = PairDataset.load(data).pairs[:4]


def gradients(dtype, trained_dtype, sharded):
    torch.manual_seed(0)
    parts = ["language_model", "audio_tower"]
    lora = LoraSettings(parts, rank=4, full_parts=["projector"], trained_dtype=trained_dtype)
    judge = EmpathyJudge(JudgeSettings(backbone=backbone, dtype=dtype, lora=lora), [Dimension("any", 1, 5, 1)])
    with torch.no_grad():
        for name, weight in judge.trainable().items():
            weight.add_(0.02 * torch.randn(weight.shape).to(weight.dtype))
    recompute_activations(judge.network)
    if sharded:
        shard(judge, (), mesh)
    mine = pairs[2 * rank : 2 * rank + 2] if sharded else pairs
    judge.head(judge.pooled(judge.build_inputs(mine))).score.mean().backward()
    return {name: whole(weight.grad).float() for name, weight in judge.trainable().items()}


results = {"plain": gradients("float32", "float32", False), "sharded": gradients("float32", "float32", True)}
results["half"] = gradients("bfloat16", "backbone", True)
results["mixed"] = gradients("bfloat16", "float32", True)
if rank == 0:
    torch.save(results, out)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_shards_give_the_gradients_of_one_process(backbone_folder, dataset_folder, tmp_path):
    done = under_torchrun(tmp_path, PROGRAM, backbone_folder, dataset_folder, tmp_path / "results.pt")
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(tmp_path / "results.pt", weights_only=True)
    assert found["plain"].keys() == found["sharded"].keys() == found["half"].keys()
    for name, expected in found["plain"].items():
        assert expected.any(), name
        assert (found["sharded"][name] - expected).abs().max() <= 1e-4 * expected.abs().max(), name
        for kind in ("half", "mixed"):  # adapters in the dtype of the frozen weights, and in float32 beside them
            likeness = torch.cosine_similarity(found[kind][name].flatten(), expected.flatten(), dim=0)
            assert likeness > 0.95, (kind, name)


# ---------------------------------------------------------------- whole runs

# Trains several times over in the same processes, which take longer to start than to train
RUNS = """
import json, shutil, sys
from pathlib import Path
import lightning.pytorch.strategies.deepspeed as lightning_deepspeed
from lightning.pytorch.accelerators import CPUAccelerator
from torch.distributed.tensor import DTensor
from empathy_judge.train.run import train
from empathy_judge.train.module import JudgeModule

# Lightning keeps DeepSpeed to GPUs; what follows is all that stands in the way
lightning_deepspeed.CUDAAccelerator = CPUAccelerator
lightning_deepspeed._validate_device_index_selection = lambda devices: None
lightning_deepspeed.argparse = type("Arguments", (), {"Namespace": lambda device_rank: None})

start = JudgeModule.on_train_start
held = {}

def on_train_start(module):
    weights = list(module.parameters())
    here = [weight.to_local() if isinstance(weight, DTensor) else vars(weight).get("ds_tensor", weight)
            for weight in weights]
    every = sum(vars(weight).get("ds_numel", weight.numel()) for weight in weights)
    share = sum(weight.numel() for weight in here) / every
    held[Path(module.trainer.default_root_dir).name] = share
    start(module)

def on_train_epoch_start(module):
    checkpoints = Path(module.trainer.default_root_dir) / "checkpoints"
    if module.current_epoch == 1 and module.global_rank == 0:
        shutil.copy(checkpoints / "last.ckpt", checkpoints.with_name("first.ckpt"))

JudgeModule.on_train_start = on_train_start
JudgeModule.on_train_epoch_start = on_train_epoch_start
for words in json.loads(Path(sys.argv[1]).read_text()):
    train(words)
Path(sys.argv[2]).write_text(json.dumps(held))
"""

# 12 pairs are three batches on each of two ranks, the last accumulated alone; of 9 validation pairs, one rank has three
# batches and the other two. The uppermost of four layers is in no process and in no checkpoint
SETTINGS = {
    "trainer__max_epochs": 2,
    "trainer__devices": 2,
    "trainer__accumulate_grad_batches": 2,
    "trainer__gradient_clip_val": 0.05,
    "trainer__logger": "false",
    "data__batch_size": 2,
    "data__eval_batch_size": 2,
    "judge__lora__full_parts": "[projector]",
    "judge__depth": 3,
    "judge__pooling": "attention",
    "cache__what": "none",
}
ALONE = {"trainer__devices": 1, "data__batch_size": 4}


def overlay(name: str) -> list[str]:
    return ["--config", str(ROOT / "configs" / f"strategy_{name}.yaml")]


@pytest.fixture(scope="module")
def ddp_run(train_arguments: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs with DDP, started by `launch/torchrun.sh`."""
    run = tmp_path_factory.mktemp("launched") / "ddp"
    words = [str(ROOT / "launch" / "torchrun.sh"), *train_arguments(run, **SETTINGS), *overlay("ddp")]
    variables = {"PYTHON": sys.executable, "GPUS": "2", "RESTARTS": "0"}
    done = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return run


def train_all(folder: Path, runs: list[list[str]]) -> dict[str, float]:
    """Train in two processes.

    Returns:
        Share of all weights that a process held, by run.
    """
    (folder / "runs.json").write_text(json.dumps(runs))
    done = under_torchrun(folder, RUNS, folder / "runs.json", folder / "held.json", DS_ACCELERATOR="cpu")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "held.json").read_text())


def assert_like(first: Path, second: Path, files: Sequence[str] = (BEST_FILE, LAST_FILE)) -> None:
    """Both runs have the same checkpoints, up to rounding: weights, moments, steps and rates."""
    for file in files:
        one, other = (read_checkpoint(run / file) for run in (first, second))
        assert (one["epoch"], one["global_step"]) == (other["epoch"], other["global_step"])
        assert one["agreement"] == pytest.approx(other["agreement"], abs=1e-9)
        assert one["description"]["backbone_fingerprint"] == other["description"]["backbone_fingerprint"]
        assert one["description"]["settings"]["depth"] == other["description"]["settings"]["depth"] == 3
        assert one["state_dict"].keys() == other["state_dict"].keys()
        for key, value in one["state_dict"].items():
            assert (value - other["state_dict"][key]).abs().max() < 1e-5, key
        (ours,), (theirs,) = one["optimizer_states"], other["optimizer_states"]
        assert [group["params"] for group in ours["param_groups"]] == [g["params"] for g in theirs["param_groups"]]
        assert [group["lr"] for group in ours["param_groups"]] == [group["lr"] for group in theirs["param_groups"]]
        for number, state in ours["state"].items():
            assert state["step"] == theirs["state"][number]["step"]
            for key in ("exp_avg", "exp_avg_sq"):
                apart = (state[key] - theirs["state"][number][key]).abs().max()
                assert apart <= 2e-3 * state[key].abs().max(), (number, key)


@pytest.fixture(scope="module")
def first_epoch(train_arguments: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint of one process that was killed after its first epoch; its batches are those of two processes."""

    def killed(module: JudgeModule) -> None:
        if module.current_epoch == 1:
            raise Killed

    run = tmp_path_factory.mktemp("alone") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JudgeModule, "on_train_epoch_start", killed)
        with pytest.raises(Killed):
            train(train_arguments(run, **{**SETTINGS, **ALONE}))
    return run / LAST_FILE


def started_from(checkpoint: Path, run: Path) -> Path:
    """A copy of the run of a checkpoint, which begins again from it."""
    origin = next(folder for folder in checkpoint.parents if (folder / "config.yaml").is_file())
    shutil.copytree(origin, run)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    shutil.copy(checkpoint, run / LAST_FILE)
    return run


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["fsdp2", "zero2"])
def test_all_end_like_ddp_and_each_goes_on_from_the_other(strategy, ddp_run, first_epoch, train_arguments, tmp_path):
    """A whole run ends like DDP; so do one that goes on from one process, and one process that goes on from it."""
    if strategy != "fsdp2":
        pytest.importorskip("deepspeed")
    whole, resumed = tmp_path / "whole", started_from(first_epoch, tmp_path / "resumed")
    runs = [
        [*train_arguments(whole, **SETTINGS), *overlay(strategy)],
        [*train_arguments(resumed, **SETTINGS), *overlay(strategy), "--resume", "true"],
    ]
    held = train_all(tmp_path, runs)
    assert held.keys() == {"whole", "resumed"}
    assert all((0.45 < share < 0.55) == (strategy != "zero2") for share in held.values())
    assert_like(ddp_run, whole)
    back = started_from(whole / "first.ckpt", tmp_path / "back")
    train([*train_arguments(back, **{**SETTINGS, **ALONE}), "--resume", "true"])
    for run in (resumed, back):
        assert_like(ddp_run, run, [LAST_FILE])


# ---------------------------------------------------------------- what goes together


def recipe(trainer: dict[str, Any], **values: str) -> Recipe:
    """The recipe nano with other values, and arguments of the trainer as objects."""
    words = [word for name, value in values.items() for word in (f"--{name.replace('__', '.')}", value)]
    parser = RecipeParser()
    return replace(parser.recipe(parser.parse(["--config", "nano", "--cache.what", "none", *words])), trainer=trainer)


@pytest.mark.parametrize(
    ("trainer", "values", "text"),
    [
        ({"strategy": "deepspeed_stage_2"}, {}, "deepspeed_stage_2: writes shards"),
        ({"strategy": "fsdp"}, {}, "fsdp: writes shards"),
        ({"strategy": ModelParallelStrategy()}, {}, "ModelParallelStrategy: writes shards"),
        ({"strategy": FSDPStrategy()}, {}, "FSDPStrategy: writes shards"),
        ({"strategy": ShardedStrategy(), "precision": "bf16-true"}, {}, "bf16-true with ShardedStrategy"),
        ({"strategy": ShardedStrategy()}, {"judge__quantization": "nf4"}, "quantization nf4 .* ShardedStrategy"),
        ({"strategy": ShardedStrategy()}, {"data__batch_tokens": "auto"}, "batch_tokens auto .* ShardedStrategy"),
        ({"strategy": ShardedStrategy()}, {"compile_layers": "true"}, "compile_layers .* ShardedStrategy"),
        ({"strategy": ShardedStrategy()}, {"cache__what": "audio"}, "cache.what audio .* ShardedStrategy"),
    ],
)
def test_what_does_not_go_together_is_refused(trainer, values, text):
    with pytest.raises(UserError, match=f"{text}.*expected "):
        check_strategy(recipe(trainer, **values))


def test_zero_wants_one_dtype():
    pytest.importorskip("deepspeed")
    with pytest.raises(UserError, match=r"trained_dtype backbone .* ZeroStrategy; expected float32"):
        check_strategy(recipe({"strategy": ZeroStrategy()}, judge__lora__trained_dtype="backbone"))
    with pytest.raises(UserError, match=r"method probe .* ZeroStrategy; expected no strategy"):
        check_strategy(recipe({"strategy": ZeroStrategy()}, method="probe"))


def test_zero_counts_steps_where_its_weights_are(monkeypatch):
    """A fused optimizer on a GPU reads the count there; a checkpoint is read on the CPU."""
    monkeypatch.setattr(ZeroStrategy, "_link_states", lambda self: None)
    monkeypatch.setitem(sys.modules, "deepspeed.utils", SimpleNamespace(safe_set_full_optimizer_state=None))
    with FakeTensorMode():
        flat = torch.nn.Parameter(torch.zeros(8, device="cuda"))
        inner, strategy = torch.optim.AdamW([flat], fused=True), ZeroStrategy.__new__(ZeroStrategy)
        monkeypatch.setattr(ZeroStrategy, "_adamw", inner)
        strategy._groups = []
        flat.grad = torch.zeros_like(flat)
        inner.step()
        fresh = {name: (value.device, value.dtype) for name, value in inner.state[flat].items()}
        state = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(8), "exp_avg_sq": torch.zeros(8)}
        stored = {"state": {0: state}, "param_groups": inner.state_dict()["param_groups"]}
        strategy.load_optimizer_state_dict({"optimizer_states": [stored]})
        resumed = {name: (value.device, value.dtype) for name, value in inner.state[flat].items()}
    assert resumed == fresh


def test_what_goes_together_is_accepted():
    small = {"judge__quantization": "nf4", "cache__what": "audio"}
    check_strategy(recipe({}, **small, judge__lora__trained_dtype="backbone"))
    check_strategy(recipe({"strategy": "ddp", "precision": "16-mixed"}, **small))
    sharded = {"strategy": ShardedStrategy(), "precision": "bf16-mixed"}
    check_strategy(recipe(sharded, judge__lora__trained_dtype="backbone"))


def test_under_slurm_lightning_does_not_requeue(monkeypatch):
    for name in ("SLURM_NTASKS", "SLURM_JOB_NAME", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert started_by() == []
    monkeypatch.setenv("SLURM_NTASKS", "1")
    (found,) = started_by()
    assert isinstance(found, SLURMEnvironment)
    assert not found.auto_requeue
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    assert started_by() == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_recipe_for_a_gpu_says_in_one_line_that_there_is_none(train_arguments, tmp_path, capsys):
    folder = tmp_path / "run"
    assert failed(capsys, "train", *train_arguments(folder, trainer__accelerator="gpu")) == (
        "error: trainer.accelerator gpu: torch finds no GPU on this machine (`empathy-judge doctor`); expected one, or "
        "--trainer.accelerator cpu"
    )
    assert not folder.exists()


@pytest.mark.parametrize(("there", "backbone", "said"), [(True, "7b", 1), (True, "nano", 0), (False, "7b", 0)])
def test_a_gpu_that_stays_idle_is_told_of_unless_the_backbone_is_nano(there, backbone, said, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    check_accelerator(Recipe(judge=JudgeSettings(backbone), data=DataSettings("data"), trainer={"accelerator": "cpu"}))
    expected = "the GPU of this machine stays idle: the recipe has trainer.accelerator cpu\n"
    assert capsys.readouterr().err == said * expected
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    check_accelerator(Recipe(judge=JudgeSettings(backbone), data=DataSettings("data"), trainer={"accelerator": "cpu"}))
    assert capsys.readouterr().err == "", "each process says it"
