"""A judge that is spread over GPUs, and the GPU of a Mac, without one: on tensors that claim to be there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import send_to_device
from empathy_judge.models import judge as judge_module
from empathy_judge.models.backbones import inputs as backbone_inputs
from empathy_judge.models.backbones.base import Backbone, Checkpoint
from empathy_judge.models.backbones.inputs import Clips
from empathy_judge.models.backbones.layers import on_device
from empathy_judge.models.head_input import HeadInput
from empathy_judge.models.heads import Prediction
from empathy_judge.models.probe import standardise
from empathy_judge.models.settings import BuiltHeadInput
from empathy_judge.train import validation as validation_module
from empathy_judge.train.validation import Validation
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from .conftest import FAMILIES
from .test_fake_cuda import CUDA, PAIRS, SCALES, judge_of, on_gpu

aten = torch.ops.aten


class OneDevice(TorchDispatchMode):
    """Refuses an index on another GPU, as CUDA does and `FakeTensorMode` does not."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.index.Tensor:
            assert {index.device for index in args[1] if index is not None} <= {args[0].device, torch.device("cpu")}
        return func(*args, **(kwargs or {}))


def spread_over(gpus: list[torch.device], network: torch.nn.Module, layers: str) -> None:
    """Put layers and what follows them on the last GPU, from the second layer on, and all before on the first, as
    accelerate fills GPUs; each module moves what it is given."""

    def leaves(module: torch.nn.Module, path: str) -> Iterator[str]:
        for name, _ in module.named_children():
            inner = f"{path}{name}"
            yield from (
                leaves(module.get_submodule(name), f"{inner}.") if f"{layers}.".startswith(f"{inner}.") else [inner]
            )

    def receives(module: torch.nn.Module, device: torch.device) -> None:
        module.register_forward_pre_hook(lambda _, *given: send_to_device(given, device), with_kwargs=True)

    names = list(leaves(network, ""))
    for name in names:
        later = names.index(name) >= names.index(f"{layers}.1") and name != "fusion"  # which no checkpoint has
        device = gpus[-1] if later else gpus[0]
        part = network.get_submodule(name).to(device)
        for inner in part.modules():
            if inner is part or inner.state_dict():
                receives(inner, device)
    for module in network.modules():
        module._buffers |= {name: own.to(gpus[0]) for name, own in module._buffers.items() if own.device.type == "cpu"}


TWO = [CUDA, torch.device("cuda:1")]


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("qwen2_audio", [CUDA]),
        *((name, TWO) for name in ("qwen2_audio", "whisper")),
        *(
            pytest.param(name, TWO, marks=pytest.mark.long)
            for name in FAMILIES
            if name not in ("qwen2_audio", "whisper")
        ),
    ],
)
def test_a_judge_that_is_spread_hears_and_reads_where_its_backbone_begins(name, gpus, make_family, monkeypatch):
    """Nothing but the judge itself and its modules moves what it is given."""
    monkeypatch.setattr(fake_tensor, "CONSTANT_NUMEL_LIMIT", -1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    mode, move = FakeTensorMode(allow_non_fake_inputs=True), torch.nn.Module.to
    load, adapt = judge_module.load_backbone, judge_module.adapt

    def on_no_gpu(checkpoint: Checkpoint) -> Backbone:
        assert checkpoint.device_map == "auto"
        return load(replace(checkpoint, device_map=None))

    def adapted(backbone: Backbone, *settings: Any) -> Any:
        made = adapt(backbone, *settings)
        with mode:
            spread_over(gpus, backbone.network, backbone.layers_path)
        return made

    def to(module: torch.nn.Module, *place: Any, **options: Any) -> torch.nn.Module:
        with mode if place and place[0] in gpus else nullcontext():
            return move(module, *place, **options)

    monkeypatch.setattr(judge_module, "load_backbone", on_no_gpu)
    monkeypatch.setattr(judge_module, "adapt", adapted)
    monkeypatch.setattr(torch.nn.Module, "to", to)
    judge = judge_of(make_family(name), device_map="auto", dtype="bfloat16")
    inputs = judge.build_inputs(PAIRS)
    with mode, OneDevice():
        assert on_gpu(judge(inputs._each(mode.from_tensor).to(judge.device)))


MAC = torch.device("mps:0")


class OnMac(TorchDispatchMode):
    """Refuses, on the GPU of a Mac, float64, which it does not have, and a copy for which the host does not wait: it
    may read memory that has been given to another tensor meanwhile (pytorch#189690)."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        for tensor in tree_iter(found):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == MAC.type:
                assert tensor.dtype != torch.float64, func
                assert not kwargs.get("non_blocking"), func
        return found


def test_a_gpu_without_float64_is_not_asked_for_it(monkeypatch):
    gathered = []
    monkeypatch.setattr(validation_module, "all_gather_object", lambda own: gathered.append(own) or [])
    rated = SimpleNamespace(pairs=PAIRS[:2], scores=torch.ones(2, 2))
    with FakeTensorMode(allow_non_fake_inputs=True):
        scores = torch.ones(2, 2, device=MAC)
    judge = SimpleNamespace(head_input=HeadInput(BuiltHeadInput("all_layers"), 4, (3, 5)), device=MAC)
    reader: Any = SimpleNamespace(judge=judge, clip_features=lambda _: [(torch.randn(2, 3, 3, 2, 5), None)])
    with OnMac():
        own = Validation(rated, [], SCALES)  # pyright: ignore[reportArgumentType]
        own.add(torch.arange(2), Prediction(scores))
        own._gathered()
        standardise(reader, PAIRS)
    assert gathered[0][1].dtype == torch.float64


def test_the_host_waits_until_the_gpu_of_a_mac_has_read():
    """And nothing else moves tensors without waiting."""
    with FakeTensorMode(), OnMac():
        (rows,) = (value for value in vars(Clips(torch.ones(2, 3), [3, 2]).to(MAC)).values() if torch.is_tensor(value))
        assert on_device([1, 2], MAC).device == rows.device == MAC
    root = Path(backbone_inputs.__file__).parents[2]
    files = (file for folder in ("data_modules", "eval", "models", "train") for file in (root / folder).rglob("*.py"))
    assert [file for file in files if "non_blocking" in file.read_text()] == [Path(backbone_inputs.__file__)]
