"""The command that looks at this machine. Heavy imports stand inside it, so that help is instant."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import itertools
import math
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from ..core.errors import counted
from ..core.processes import available_cores
from . import DONE, FAILED_CHECKS
from .shared import Printing

_PACKAGES = ("torch", "torchaudio", "transformers", "peft", "lightning", "datasets", "numpy", "scipy", "pandas")
_SECRETS = (
    "HF_TOKEN", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "EMPATHY_JUDGE_API_KEY", "WANDB_API_KEY",
    "EMPATHY_JUDGE_TOKEN",
)  # fmt: skip
_PLACES = ("HF_HOME", "HF_HUB_OFFLINE", "TMPDIR", "CUDA_VISIBLE_DEVICES", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL")
_NOT_FOR_USERS = ("dev", "docs")  # extras for developers of the package
BENCH_SECONDS = 10.0
_SCORED_PAIR, _TRAINED_PAIR = 2.2e12, 6.1e12
"""Operations for a pair with clips of 5 s, with the shapes of Qwen2-Audio 7B (`benchmarks/results/gpu.md`)."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    part: str  # what it belongs to
    name: str  # what was looked at
    # `missing`: optional and not there; `broken`: there, and does not work; `note`: neither good nor bad
    state: Literal["ok", "missing", "broken", "note"]
    detail: str  # what was found, and what to do


@dataclass(frozen=True)
class Doctor(Printing):
    """Look at this machine: GPUs, versions, optional parts, room for models, settings of the environment.

    Nothing is sent anywhere; of keys and tokens only is said whether they are set. Exits with 1 if something that is
    installed does not work.

    Attributes:
        bench: measure for some ten seconds how fast the processor and each GPU compute
    """

    EXAMPLE: ClassVar[str] = ""

    _: KW_ONLY
    bench: bool = False

    def run(self) -> int:
        findings = [*_machine(), *_gpus(), *_packages(), *_extras(), *_environment()]
        if self.bench:
            findings += _rates(BENCH_SECONDS)
        lines = [f"{one.state:8}{one.part}: {one.name}: {one.detail}" for one in findings]
        self.tell([asdict(finding) for finding in findings], lambda _: lines)
        return FAILED_CHECKS if any(finding.state == "broken" for finding in findings) else DONE


def _machine() -> Iterator[Finding]:
    yield Finding("machine", "system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield Finding("machine", "Python", "ok", platform.python_version())
    yield Finding("machine", "processor", "ok", f"{counted(available_cores(), 'core')} for this process")
    with contextlib.suppress(ValueError, OSError, AttributeError):  # not every system knows these names
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield Finding("machine", "memory", "ok", f"{memory / 2**30:.0f} GiB")
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    # The first download makes the cache: until then it will lie on the disk of a folder above
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(existing).free / 1e9
    yield Finding("machine", "models of the hub", "note", f"{free:.0f} GB free at {cache}; a backbone of 7B takes 17")


def _gpus() -> Iterator[Finding]:
    import torch

    if torch.backends.mps.is_available():
        yield Finding("GPUs", "mps", "ok", "the GPU of this Mac")
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = "none, or no driver that works" if built else "none that this PyTorch was built for"
        yield Finding("GPUs", "cuda", "missing", f"{why}; the nano backbone needs none, backbones of 7B do")
        return
    for number in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(number)
        free, _ = torch.cuda.mem_get_info(number)
        bf16 = torch.version.hip or card.major >= 8  # as `torch.cuda.is_bf16_supported` asks of the first card alone
        kinds = "bf16" if bf16 else "no bf16: trainer.precision 16-mixed, judge.dtype float16"
        memory = f"{free / 2**30:.0f} of {card.total_memory / 2**30:.0f} GiB free"
        yield Finding("GPUs", f"cuda:{number}", "ok", f"{card.name}, {memory}, {kinds}")
    # A wheel without kernels for the card, or a driver that is too old, shows at the first product
    try:
        torch.ones(8, 8, device="cuda").matmul(torch.ones(8, 8, device="cuda")).sum().item()
    except RuntimeError as error:
        yield Finding("GPUs", "a product of matrices", "broken", str(error).splitlines()[0])


def _rates(seconds: float) -> Iterator[Finding]:
    """What the processor and each GPU reach within so many seconds together, and what a judge of 7B makes of it."""
    import torch

    from ..models.work import SCORING, TRAINING

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.device("cpu"), *(torch.device("cuda", number) for number in range(count))]
    for device in devices:
        on_gpu = device.type == "cuda"
        half = torch.bfloat16 if torch.version.hip or torch.cuda.is_bf16_supported() else torch.float16
        dtype = half if on_gpu else torch.float32
        one = torch.randn(8192 if on_gpu else 1024, 8192 if on_gpu else 1024, device=device).to(dtype)
        each = seconds / len(devices) / 2
        product = 2 * len(one) ** 3 / _best_seconds(lambda own=one: own @ own, device, each)
        # A copy reads and writes every byte
        copied = 2 * one.nbytes / _best_seconds(one.clone, device, each)
        kind = str(dtype).removeprefix("torch.")
        detail = f"products of matrices {product / 1e12:.3g} TFLOP/s ({kind}), copies {copied / 1e9:.3g} GB/s"
        yield Finding("speed", "processor" if device.type == "cpu" else str(device), "ok", detail)
        if on_gpu:
            scored, trained = SCORING * product / _SCORED_PAIR, TRAINING * product / _TRAINED_PAIR
            told = f"scores {scored:.2g} and trains on {trained:.2g} pairs/s, predicted"
            origin = "from the shares of this rate that an H200 reached, with clips of 5 s"
            yield Finding("speed", f"{device}, a judge of 7B", "note", f"{told} {origin}")


def _best_seconds(function: Callable[[], object], device: Any, seconds: float) -> float:
    """The shortest time of a call among those within so many seconds, after one that is not counted."""
    import torch

    best, end = math.inf, time.perf_counter() + seconds
    for number in itertools.count():
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        if number:
            best = min(best, now - start)
            if now >= end:
                return best
    raise AssertionError  # pragma: no cover


def _packages() -> Iterator[Finding]:
    for name in ("empathy-judge", *_PACKAGES):
        version = _version(name)
        if version is None:
            yield Finding("packages", name, "broken", f"not installed; pip install {name}")
        elif name == "torchaudio" and (why := _import_error(name)):  # each goes with one version of torch
            yield Finding(
                "packages", name, "broken", f"{version} cannot be imported beside torch {_version('torch')}: {why}"
            )
        else:
            yield Finding("packages", name, "ok", version)
    why = _import_error("soundfile")  # an OSError where its library of the system is not there
    yield Finding("packages", "audio files", "broken" if why else "ok", why or "soundfile reads WAV, FLAC, OGG and MP3")


def _extras() -> Iterator[Finding]:
    """The optional parts as pyproject names them: what is missing of each, or not of a version that it can use."""
    from packaging.requirements import Requirement

    needs = [Requirement(line) for line in importlib.metadata.requires("empathy-judge") or ()]
    extras = importlib.metadata.metadata("empathy-judge").get_all("Provides-Extra") or ()
    for extra in [extra for extra in extras if extra not in _NOT_FOR_USERS]:
        of_extra = [need for need in needs if need.marker and need.marker.evaluate({"extra": extra})]
        versions = {need.name: _version(need.name) for need in of_extra}
        missing = [name for name, version in versions.items() if version is None]
        # Whoever installed a version before its release meant it
        wrong = [need for need in of_extra if not need.specifier.contains(versions[need.name] or "", prereleases=True)]
        if missing:  # also where another package is too new for it: what nobody installed is no fault
            install = f"pip install 'empathy-judge[{extra}]' ({', '.join(missing)} not installed)"
            yield Finding("optional parts", extra, "missing", install)
        elif wrong:
            texts = [f"{need.name} {versions[need.name]}; expected {need.specifier}" for need in wrong]
            yield Finding("optional parts", extra, "broken", ", ".join(texts))
        else:
            found = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Finding("optional parts", extra, "ok", found)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _import_error(module: str) -> str:
    """Why a module cannot be imported; empty = it can. What it prints meanwhile is not of interest here."""
    output = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        warnings.simplefilter("ignore")
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever a broken installation raises
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def _environment() -> Iterator[Finding]:
    for name in _PLACES:
        if value := os.environ.get(name):
            address = urlsplit(value)  # it may hold a user and a password; nothing of them is shown
            shown = address._replace(netloc=address.netloc.rpartition("@")[2], query="", fragment="").geturl()
            yield Finding("environment", name, "note", shown)
    for name in _SECRETS:
        yield Finding("environment", name, "note", "set" if os.environ.get(name) else "not set")
