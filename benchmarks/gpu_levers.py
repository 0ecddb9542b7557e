"""What each lever of speed gains on a GPU: `gpu.py --levers`, in the order of a plan for some ten minutes.

First what the card and its host can do, and the operations of one layer alone. If adapters in float32 cost under a
fifth of the product beside which they stand, the estimates behind this plan are wrong: then the profile of a pass,
which follows, is to be read before anything is changed. Then scoring, at first with all levers off and with one more in
each row, and training with levers off. Every row is written when it is measured, and has a deadline.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from empathy_judge.models.heads import Prediction
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.scoring.predictor import Predictor
from gpu_step import RECIPE, Bench, step, work_of
from naive import read_items
from timing import in_turns, matrix_rate, peak_memory, ratios, reset_peak, synchronize
from torch import Tensor
from torch.nn import functional as F

SCORED, TOGETHER = 256, 96
LEAST_SHARE = 0.2
"""Of the product beside which an adapter in float32 stands, which it must cost if the estimates are right."""
WIDE = {"7b": (4096, 11008, 1280, 5120, 16, (1024, 4096, 12_288, 16_384)), "tiny": (64, 172, 32, 128, 4, (16, 64))}
"""Hidden and inner size of the language model and of the tower, rank, and rows of products."""

Measure = Callable[[Any], dict[str, Any]]


class TooLate(Exception):
    """An item passed its deadline."""


class Absent(Exception):
    """This build does not have what is to be measured."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise `TooLate` in the main thread after so many seconds."""

    def late(*_: object) -> None:
        raise TooLate(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def plan(options: argparse.Namespace, load: Measure) -> Iterator[tuple[str, str, Measure, float]]:
    """Piece, way, what measures it, and its deadline in seconds. What needs no judge comes first."""
    yield "machine", "", lambda _: machine(options), 20
    yield "layer", "", lambda _: layer(options), 60
    yield "load", "", partial(with_adapters, load), 90
    yield "profile", "as it is", partial(profile, out=options.out), 60
    for count, (name, _) in enumerate([("all levers off", None), *LEVERS]):
        yield "levers", name if count == 0 else f"+ {name}", partial(scored, on=count), 30
    yield "batches", "", alone_and_together, 30
    for way, values, off in TRAINED:
        yield "step", way, partial(trained, way=way, values=values, off=off), 90


# ---------------------------------------------------------------- without a judge


def seconds_of(options: argparse.Namespace, function: Callable[[], object]) -> float:
    """Seconds of a call on the device, the median of rounds of ten."""
    device = torch.device(options.device)

    def ten() -> None:
        for _ in range(10):
            function()
        synchronize(device)

    wall, _ = in_turns({"": ten}, options.rounds)
    return sorted(wall[""])[len(wall[""]) // 2] / 10


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """Cost of a launch, rates of copies and of a large product."""
    device, size = torch.device(options.device), 2**27 if options.device == "cuda" else 2**20
    one, host = torch.zeros(1, device=device), torch.zeros(size, dtype=torch.uint8)
    on_device = host.to(device)
    copies = {"from pageable memory": host}
    if options.device == "cuda":
        copies["from pinned memory"] = host.pin_memory()
    timed = partial(seconds_of, options)
    return {
        "versions": {"torch": torch.__version__},
        "launch_seconds": timed(lambda: [one.add_(1) for _ in range(100)]) / 100,
        "bytes_per_second": {
            **{name: size / timed(lambda own=own: own.to(device)) for name, own in copies.items()},
            "on the device, read and written": 2 * size / timed(on_device.clone),
        },
        "matrix_rate": matrix_rate(device, torch.bfloat16, options.matrix),
    }


def layer(options: argparse.Namespace) -> dict[str, Any]:
    """The operations of one layer: products, adapters, norms and attention, in milliseconds."""
    hidden, inner, tower, tower_inner, rank, all_rows = WIDE[options.shapes]
    device, timed = torch.device(options.device), partial(seconds_of, options)

    def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, device=device).mul_(0.02).to(dtype)

    result: dict[str, Any] = {"milliseconds": {}}
    for rows in all_rows:
        for width, to in ((hidden, hidden), (hidden, inner), (inner, hidden), (tower, tower_inner)):
            states, weight = drawn(rows, width), drawn(to, width)
            result["milliseconds"][f"product {rows} x {width} x {to}"] = 1e3 * timed(
                lambda a=states, b=weight: F.linear(a, b)
            )
    rows = all_rows[len(all_rows) // 2]
    states, weight, down, up = drawn(rows, hidden), drawn(hidden, hidden), drawn(rank, hidden), drawn(hidden, rank)
    wide = down.float(), up.float()

    def beside(a: Tensor, b: Tensor) -> Tensor:
        made = F.linear(states, weight)
        return (made + F.linear(F.linear(states.to(a.dtype), a), b) * 0.5).to(made.dtype)

    norm, heads = drawn(hidden), max(1, hidden // 128)

    def official() -> Tensor:
        own = states.float()
        return norm * (own * torch.rsqrt(own.pow(2).mean(-1, keepdim=True) + 1e-6)).to(states.dtype)

    width = 4 * max(1, rows // 40)
    query = drawn(max(1, rows // width), heads, width, hidden // heads)
    mask = torch.ones(len(query), 1, width, width, dtype=torch.bool, device=device).tril()
    ways: dict[str, Callable[[], object]] = {
        "linear": lambda: F.linear(states, weight),
        "linear, adapter in float32": lambda: beside(*wide),
        "linear, adapter in bfloat16": lambda: beside(down, up),
        "linear, adapter in place": lambda: F.linear(states, weight).addmm_(F.linear(states, down), up.T, alpha=0.5),
        "norm, official": official,
        "norm, rms_norm": lambda: F.rms_norm(states, (hidden,), norm, 1e-6),
        "attention with a mask": lambda: F.scaled_dot_product_attention(query, query, query, mask),
        "attention, causal": lambda: F.scaled_dot_product_attention(query, query, query, is_causal=True),
    }
    with torch.inference_mode():
        result["milliseconds"] |= {name: 1e3 * timed(way) for name, way in ways.items()}
    found = result["milliseconds"]
    share = found["linear, adapter in float32"] / found["linear"] - 1
    result["float32_adapter_share"] = share
    if share < LEAST_SHARE:
        result["remark"] = f"an adapter in float32 costs {share:.0%} of its product: read the profile before all else"
    return result


# ---------------------------------------------------------------- scoring


def official_norm(norm: Any, states: Tensor) -> Tensor:
    """The formula of the official classes, in eight kernels."""
    own = states.float()
    made = (own * torch.rsqrt(own.pow(2).mean(-1, keepdim=True) + norm.eps)).to(states.dtype)
    return made if norm.weight is None else norm.weight * made


def official_rotation(x: Tensor, cos: Tensor, sin: Tensor, axis: int = 1) -> Tensor:
    """The formula of the official functions, in five kernels."""
    first, second = x.chunk(2, -1)
    return x * cos.unsqueeze(axis) + torch.cat((-second, first), -1) * sin.unsqueeze(axis)


def by_peft(linear: Any, *arguments: Any) -> Tensor:
    """As PEFT computes a linear layer with an adapter."""
    return linear._by_peft(*arguments)


PACKAGE = "empathy_judge.models"
NO_MASK = [f"{PACKAGE}.backbones.{file}.without_mask" for file in ("attention", "audio_language_model")]
LEVERS: list[tuple[str, dict[str, Any] | None]] = [
    ("adapters in bfloat16", None),
    ("LoRA as one function", {f"{PACKAGE}.lora.AdaptedLinear.forward": by_peft}),
    ("norms in one kernel", {f"{PACKAGE}.backbones.layers.FusedNorm.forward": official_norm}),
    ("rotary positions in place", {f"{PACKAGE}.backbones.layers.turned": official_rotation}),
    ("passes by tokens", None),
    ("the host ahead", None),
    ("spectrograms on the GPU", {f"{PACKAGE}.backbones.qwen2_audio.WhisperTowerModel.makes_spectrograms": False}),
    ("attention without a mask", dict.fromkeys(NO_MASK, lambda device: False)),
]
"""What each lever is called, and what stands in the place of what when it is off; None = an argument of `scored`."""
BFLOAT16, TOKENS, AHEAD = (
    [name for name, _ in LEVERS].index(name) for name in ("adapters in bfloat16", "passes by tokens", "the host ahead")
)


@contextmanager
def switched_off(levers: Sequence[tuple[str, dict[str, Any] | None]]) -> Iterator[None]:
    """Within this context these levers are off; raises `Absent` if this build does not have one."""
    with ExitStack() as stack:
        for lever, replaced in levers:
            for name, own in (replaced or {}).items():
                try:
                    stack.enter_context(mock.patch(name, own))
                except AttributeError as error:
                    raise Absent(f"{lever}: not in this build ({error})") from None
        yield


def with_adapters(load: Measure, bench: Any) -> dict[str, Any]:
    """Load a judge, whose adapters then change its states, as trained ones do: new ones add nothing, and scores would
    say nothing of how they are computed."""
    result = load(bench)
    torch.manual_seed(0)
    for name, weight in result["bench"].judge.network.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    return result


def adapters_in(judge: EmpathyJudge, dtype: torch.dtype) -> None:
    """Give the adapters this dtype."""
    for name, weight in judge.network.named_parameters():
        if "lora_" in name:
            weight.data = weight.data.to(dtype)


def predictor_of(judge: EmpathyJudge, on: int) -> Predictor:
    """With the first levers on."""
    predictor = Predictor(judge) if on > TOKENS else Predictor(judge, 32, tokens=float("inf"))
    predictor.ahead = predictor.ahead and on > AHEAD
    return predictor


def points(predictor: Predictor, pairs: Sequence[Any]) -> Tensor:
    """Scores of pairs `(pairs, dimensions)`, nothing known of them before."""
    made = [prediction for _, prediction in predictor.predict(pairs)]
    assert all(isinstance(one, Prediction) for one in made), made
    return torch.stack([one.score for one in made])  # pyright: ignore[reportAttributeAccessIssue] see above


def scored(bench: Bench, on: int) -> dict[str, Any]:
    """Pairs per second with the first levers on, and how far scores are from those with all levers off."""
    judge, pairs = bench.judge, [pair for pair, _ in read_items(bench.data, "train")[:SCORED]]
    half = next(judge.network.parameters()).dtype
    adapters_in(judge, half if on > BFLOAT16 else torch.float32)
    machine: list[float] = []
    reset_peak(bench.device)
    with switched_off(LEVERS[on:]):
        made = points(predictor_of(judge, on), pairs)
        ways = {
            "": lambda: points(predictor_of(judge, on), pairs),
            "machine": lambda: machine.append(bench.measure_machine()),
        }
        wall, _ = in_turns(ways, bench.options.rounds)
        # counted as pairs need it, however they are packed
        work = work_of(judge, judge.build_inputs(pairs))
    adapters_in(judge, torch.float32)
    bench.first = made if on == 0 or bench.first is None else bench.first
    rates = [len(pairs) / seconds for seconds in wall[""]]
    flops = (work.tower + work.forward) / len(pairs)
    return {
        "ways": {f"{len(pairs)} pairs": rates},
        "matrix_rate": machine[1:],
        "share": [share * flops for share in ratios(rates, machine[1:])],
        "largest_difference": float((made - bench.first).abs().max()),
        "peak_bytes": peak_memory(bench.device),
    }


def alone_and_together(bench: Bench) -> dict[str, Any]:
    """The largest difference in rating points between pairs one by one and together."""
    pairs = [pair for pair, _ in read_items(bench.data, "train")[:TOGETHER]]
    together = points(Predictor(bench.judge), pairs)
    alone = torch.cat([points(Predictor(bench.judge), [pair]) for pair in pairs])
    return {"largest_difference": float((together - alone).abs().max()), "pairs": len(pairs)}


def profile(bench: Bench, out: Path) -> dict[str, Any]:
    """Kernels of one pass of 32 pairs, and what each stage of 256 pairs takes when the device is waited for."""
    judge: Any = bench.judge
    device = bench.device
    pairs = [pair for pair, _ in read_items(bench.data, "train")[:SCORED]]
    sources = list(dict.fromkeys(source for pair in pairs for source in pair.clips))
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        synchronize(device)
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start

    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.inference_mode():
        with timed("decode"):
            decoded = [judge.decode(source) for source in sources]
        states: dict[Any, Any] = {}
        for start in range(0, len(sources), 32):
            rows = slice(start, start + 32)
            with timed("inputs of the tower"):
                facts, prepared = judge.clip_inputs(decoded[rows])
            with timed("tower"):
                made = judge.encode_prepared(facts, prepared)
            states |= dict(zip(sources[rows], made, strict=True))
        for start in range(0, len(pairs), 32):
            with timed("inputs of the language model"):
                inputs = judge.build_inputs(pairs[start : start + 32], states)
            with timed("language model"):
                judge.predict(judge.on_device(inputs))
        inputs = judge.build_inputs(pairs[:32], states)
        with torch.profiler.profile(activities=activities) as traced:
            judge.predict(judge.on_device(inputs))
            synchronize(device)
    trace = out.with_name(f"{out.name}_trace.json")
    traced.export_chrome_trace(str(trace))
    with trace.open("rb") as plain, gzip.open(f"{trace}.gz", "wb") as packed:
        shutil.copyfileobj(plain, packed)
    trace.unlink()
    by = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    table = traced.key_averages().table(sort_by=by, row_limit=40, max_name_column_width=80)
    out.with_name(f"{out.name}_kernels.txt").write_text(table)
    return {"stage_seconds": seconds, "clips": len(sources), "pairs": len(pairs)}


# ---------------------------------------------------------------- training

TRAINED: list[tuple[str, dict[str, str], int]] = [
    ("the recipe, levers off", {}, 3),
    ("+ LoRA as one function", {}, 2),
    (RECIPE, {}, 0),
    ("the recipe, no dropout", {"judge.lora.dropout": "0"}, 0),
    ("the recipe, no dropout, 9,216 tokens", {"judge.lora.dropout": "0", "data.batch_tokens": "9216"}, 0),
    ("the recipe, compiled", {"compile_layers": "true"}, 0),
]
"""Ways of training: name, values that differ from the recipe, and how many of LoRA, norms and positions are off."""


def trained(bench: Bench, way: str, values: dict[str, str], off: int) -> dict[str, Any]:
    """`gpu_step.step` with levers off. What the recipe says of the judge is changed in it, as it is in memory."""
    share = values.get("judge.lora.dropout")
    modules = bench.judge.network.named_modules()
    dropouts: list[Any] = [own for name, own in modules if "lora_dropout" in name and isinstance(own, torch.nn.Dropout)]
    before = [module.p for module in dropouts]
    values = {name: value for name, value in values.items() if not name.startswith("judge.")}
    try:
        for module in dropouts if share is not None else ():
            module.p = float(share or 0)
        with switched_off(LEVERS[4 - off : 4]):
            return step(bench, way, values, of_recipe=True)
    finally:
        for module, own in zip(dropouts, before, strict=True):
            module.p = own
