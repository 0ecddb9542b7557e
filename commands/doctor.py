"""The command that looks at this machine. Heavy imports stand inside it, so that help is instant."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from ..data_modules.errors import counted
from ..data_modules.parallel import available_cores
from . import DONE, FAILED_CHECKS
from .shared import Printing

_PACKAGES = ("torch", "torchaudio", "transformers", "peft", "lightning", "datasets", "numpy", "scipy", "pandas")
_SECRETS = (
    "HF_TOKEN", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "EMPATHY_JUDGE_API_KEY", "WANDB_API_KEY",
    "EMPATHY_JUDGE_TOKEN",
)  # fmt: skip
_PLACES = ("HF_HOME", "HF_HUB_OFFLINE", "TMPDIR", "CUDA_VISIBLE_DEVICES", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL")
_FEW_BYTES = 20e9  # one 7B checkpoint in bf16 takes 17 GB
_NOT_FOR_USERS = ("dev", "docs")  # extras for developers of the package

State = Literal["ok", "missing", "broken", "note"]


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    part: str  # what it belongs to
    name: str  # what was looked at
    state: State  # `ok`; `missing`: optional and not there; `broken`: there, and does not work; `note`
    detail: str  # what was found, and what to do


@dataclass(frozen=True)
class Doctor(Printing):
    """Look at this machine: GPUs, versions, optional parts, disks, cached models, settings of the environment.

    Nothing is sent anywhere; of keys and tokens only is said whether they are set. Exits with 1 if something that is
    installed does not work.
    """

    EXAMPLE: ClassVar[str] = ""

    def run(self) -> int:
        findings = [*_machine(), *_gpus(), *_packages(), *_extras(), *_disks(), *_models(), *_environment()]
        from rich.table import Table
        from rich.text import Text

        style = {"ok": "green", "missing": "dim", "broken": "bold red", "note": ""}
        table, part = Table(box=None, pad_edge=False, show_header=False), ""
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for finding in findings:
            heading = Text(finding.part if finding.part != part else "", style="bold")
            table.add_row(heading, Text(finding.name), Text(finding.detail, style=style[finding.state]))
            part = finding.part
        self.tell([asdict(finding) for finding in findings], lambda _: [table])
        return FAILED_CHECKS if any(finding.state == "broken" for finding in findings) else DONE


def _machine() -> Iterator[Finding]:
    yield Finding("machine", "system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield Finding("machine", "Python", "ok", platform.python_version())
    yield Finding("machine", "processor", "ok", f"{counted(available_cores(), 'core')} for this process")
    with contextlib.suppress(ValueError, OSError, AttributeError):  # not every system knows these names
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield Finding("machine", "memory", "ok", f"{memory / 2**30:.0f} GiB")


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
    try:
        torch.ones(8, 8, device="cuda").matmul(torch.ones(8, 8, device="cuda")).sum().item()
    except RuntimeError as error:
        yield Finding("GPUs", "a product of matrices", "broken", str(error).splitlines()[0])


def _packages() -> Iterator[Finding]:
    for name in ("empathy-judge", *_PACKAGES):
        version = _version(name)
        detail = version or f"not installed; pip install {name}"
        why = _import_error(name) if version and name == "torchaudio" else ""
        if why:
            detail = f"{version} cannot be imported beside torch {_version('torch')}: {why}"
        yield Finding("packages", name, "ok" if version and not why else "broken", detail)
    try:
        import soundfile

        formats = sorted({"WAV", "FLAC", "OGG", "MP3"} & soundfile.available_formats().keys())
        yield Finding("packages", "audio files", "ok", ", ".join(formats))
    except (ImportError, OSError) as error:  # OSError: its library of the system is not there
        yield Finding("packages", "audio files", "broken", f"soundfile: {error}")


def _extras() -> Iterator[Finding]:
    """The optional parts as pyproject names them, each with the first of its packages that is missing or broken."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    needs = [Requirement(line) for line in importlib.metadata.requires("empathy-judge") or ()]
    modules: dict[str, str] = {}
    for module, distributions in importlib.metadata.packages_distributions().items():
        for distribution in () if module.startswith("_") else distributions:
            modules.setdefault(canonicalize_name(distribution), module)
    for extra in importlib.metadata.metadata("empathy-judge").get_all("Provides-Extra") or ():
        if extra in _NOT_FOR_USERS:
            continue
        of_extra = [need for need in needs if need.marker and need.marker.evaluate({"extra": extra})]
        state, detail = "ok", ", ".join(f"{need.name} {_version(need.name)}" for need in of_extra)
        # What is not there comes first: a torch too new for an extra that nobody installed is no fault
        for need in sorted(of_extra, key=lambda need: _version(need.name) is not None):
            version = _version(need.name)
            if version is None:
                state, detail = "missing", f"pip install 'empathy-judge[{extra}]' ({need.name} is not installed)"
            elif not need.specifier.contains(version, prereleases=True):
                state, detail = "broken", f"{need.name} {version}; expected {need.specifier}"
            elif why := _import_error(modules.get(canonicalize_name(need.name), need.name)):
                state, detail = "broken", f"{need.name} {version} cannot be imported: {why}"
            if state != "ok":
                break
        yield Finding("optional parts", extra, state, detail)


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


def _disks() -> Iterator[Finding]:
    from huggingface_hub import constants
    from platformdirs import user_cache_path

    for name, folder in (
        ("working folder", Path.cwd()),
        ("models of the hub", Path(constants.HF_HUB_CACHE)),
        ("answers of prompted judges", user_cache_path("empathy-judge")),
        ("temporary folder", Path(tempfile.gettempdir())),
    ):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        if not os.access(existing, os.W_OK):
            yield Finding("disks", name, "note", f"{folder}: no right to write")
        else:
            note = "; a backbone of 7B takes 17 GB" if free < _FEW_BYTES else ""
            yield Finding("disks", name, "note" if note else "ok", f"{free / 1e9:.0f} GB free at {folder}{note}")


def _models() -> Iterator[Finding]:
    """Copies of models in the cache of the hub."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        models = [model for model in scan_cache_dir().repos if model.repo_type == "model"]
    except CacheNotFound:
        models = []
    if not models:
        yield Finding("cached models", "none", "missing", "hf download OWNER/NAME fetches one where there is a network")
    for model in sorted(models, key=lambda model: model.repo_id):
        yield Finding("cached models", model.repo_id, "ok", f"{model.size_on_disk / 1e9:.1f} GB")


def _environment() -> Iterator[Finding]:
    for name in _PLACES:
        if value := os.environ.get(name):
            yield Finding("environment", name, "note", _without_login(value))
    for name in _SECRETS:
        yield Finding("environment", name, "note", "set" if os.environ.get(name) else "not set")


def _without_login(value: str) -> str:
    """An address may hold a user and a password; nothing of them is shown."""
    address = urlsplit(value)
    return address._replace(netloc=address.netloc.rpartition("@")[2], query="", fragment="").geturl()
