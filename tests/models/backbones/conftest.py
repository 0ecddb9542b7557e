"""Every family in miniature: its true classes with random weights, saved in the layout of the hub; judges on them."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Dimension, Pair, Turn
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import HeadInputSettings, JudgeSettings, LoraSettings
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import core_model_loading

RATE = 16_000
SCALES = (Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10))


@dataclass(frozen=True)
class Family:
    """A family as the tests of all families see it; each file in `families/` describes one."""

    name: str  # of the file in `models/backbones/`
    folder: Path  # a small random checkpoint of it
    lora_layers: Mapping[str, int]  # linear layers that LoRA finds in each part
    max_seconds: float  # what the miniature hears
    model: nn.Module  # of the official class, with the weights of the folder
    # for a language model: from a pair (clips in memory) to token ids `(1, tokens)` and last hidden states `(1, tokens,
    # hidden)` of the model, with the official processor. For an encoder: from samples to its states `(states, audio
    # size)`.
    official: Callable[..., Any]
    # from the keys of the saved file to those of the other major version of transformers (what 5 saves are often the
    # module paths of 4); None if there never were others
    other_layout: Callable[[str], str] | None
    is_encoder: bool  # True for an audio encoder without language model


def _older_layout(prefix: str) -> Callable[[str], str]:
    """The hub's older files: weight norm by its former names, and the prefix of a model with a head."""

    def rename(key: str) -> str:
        key = key.replace("parametrizations.weight.original0", "weight_g")
        return prefix + key.replace("parametrizations.weight.original1", "weight_v")

    return rename


def _of_version_5(key: str) -> str:
    """The module paths of transformers 5; what it saves (and the hub has) are still those of 4."""
    if key.startswith("language_model.lm_head"):
        return key.removeprefix("language_model.")
    return "model." + key.replace("language_model.model.", "language_model.")


def _omni_of_version_5(key: str) -> str:
    """As `_of_version_5`, but for the experts, which it stacks."""
    if key.startswith(("thinker.audio_tower.", "thinker.visual.")):
        return key.replace("thinker.", "thinker.model.", 1)
    return key.replace("thinker.model.", "thinker.model.language_model.", 1)


OTHER_LAYOUTS = {
    **dict.fromkeys(("qwen2_audio", "audioflamingo3", "musicflamingo", "qwen3_asr", "voxtral"), _of_version_5),
    **dict.fromkeys(("qwen2_5_omni", "qwen3_omni_moe"), _omni_of_version_5),
    **{name: _older_layout(f"{name}.") for name in ("hubert", "wav2vec2", "wavlm")},
    "wav2vec2_bert": lambda key: "wav2vec2_bert." + key,  # of a model with a head
    "whisper": lambda key: key.removeprefix("model."),  # what `WhisperModel` saves
}


FAMILIES = sorted(path.stem for path in (Path(__file__).parent / "families").glob("*.py"))
WITHOUT_TOWER = ["gemma4_unified"]
WITHOUT_PACKING = ["nemotron_h_omni"]  # Mamba carries a state from one pair of a row to the next
ENCODERS = ["hubert", "wav2vec2", "wav2vec2_bert", "wavlm", "whisper"]
OF_EACH_KIND = ["gemma3n", "hubert", "nemotron_h_omni", "qwen2_audio", "voxtral", "whisper"]
"""For what no family does by itself: attention within a window, an encoder of samples, Mamba, clips in one row, whole
windows, an encoder of spectrograms."""


def described(name: str) -> Any:
    """The file in `families/` of this name."""
    return importlib.import_module(f".families.{name}", __package__)


@pytest.fixture(scope="session")
def make_family(tmp_path_factory) -> Callable[[str], Family]:
    """A family by name; its checkpoint is written once."""
    made: dict[str, Family] = {}

    def make(name: str) -> Family:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            module = described(name)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                module.build(folder)
            model, run = module.official(folder)
            of_model = module.LORA_LAYERS, module.MAX_SECONDS, model, torch.no_grad()(run)
            made[name] = Family(name, folder, *of_model, OTHER_LAYOUTS.get(name), name in ENCODERS)
        return made[name]

    return make


@pytest.fixture(scope="module")
def on_the_hub(make_family) -> Iterator[Callable[[str, str, str | None], None]]:
    """Puts a family's miniature where the hub's cache has a repository, as if it had been downloaded."""
    made: list[Path] = []

    def publish(family: str, name: str, revision: str | None) -> None:
        repository = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
        commit = hashlib.sha1(name.encode()).hexdigest()
        if not repository.exists():
            made.append(repository)
            shutil.copytree(make_family(family).folder, repository / "snapshots" / commit)
        reference = repository / "refs" / (revision or "main")
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit)

    yield publish
    for repository in made:
        shutil.rmtree(repository)


@pytest.fixture(params=FAMILIES)
def family(request, make_family) -> Family:
    """Each family in turn."""
    return make_family(request.param)


@pytest.fixture(params=[name for name in FAMILIES if name not in ENCODERS])
def language_model(request, make_family) -> Family:
    """Each family with a language model in turn."""
    return make_family(request.param)


@pytest.fixture(params=ENCODERS)
def encoder(request, make_family) -> Family:
    """Each encoder in turn."""
    return make_family(request.param)


@pytest.fixture(scope="session")
def noise() -> Callable[..., np.ndarray]:
    """A clip that is loud up to its end, where cutting it differs most from padding it: samples, seed."""

    def make(samples: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).normal(scale=0.2, size=samples).astype(np.float32)

    return make


@pytest.fixture(scope="module")
def pairs(noise) -> list[Pair]:
    """One context, a situation, no context, three turns; 0.4 to 2 s."""
    roles = ("user", "assistant", "user")
    turns = tuple(Turn(role, Clip(noise(6_000 + 700 * n, n), RATE)) for n, role in enumerate(roles))
    return [
        Pair("context", Clip(noise(12_000), RATE), (Turn("user", Clip(noise(20_000, 1), RATE)),)),
        Pair("situation", Clip(noise(7_001, 2), RATE), (Turn("user", Clip(noise(9_999, 3), RATE)),), situation="Late."),
        Pair("alone", Clip(noise(31_000, 4), RATE)),
        Pair("turns", Clip(noise(8_000, 5), RATE), turns),
    ]


def judge_of(family: Family, parts: Sequence[Any] = (), adapters: float = 0.02, **settings: Any) -> EmpathyJudge:
    """A judge whose adapters, pooling and head are random, as after training; by default its head reads all there
    is."""
    read = HeadInputSettings("none" if family.name in WITHOUT_TOWER else "all_layers", family.name in WITHOUT_TOWER)
    settings = {"backbone": str(family.folder), "head_input": read, **settings}
    lora = LoraSettings(parts=list(parts), rank=2, alpha=4.0)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        judge = EmpathyJudge(JudgeSettings(lora=lora, **settings), SCALES)
        for name, weight in judge.trainable().items():
            weight.add_((adapters if "lora_" in name else 0.1) * torch.randn(weight.shape))
    return judge.eval()


def loaded(folder: Path, **options: Any) -> Any:
    """The backbone in a folder; `options` are those of `Checkpoint`."""
    return load_backbone(Checkpoint(str(folder), **options))


def refused(folder: Path, match: str, **options: Any) -> None:
    """As `loaded`, of which this is said."""
    with pytest.raises(UserError, match=match):
        loaded(folder, **options)


def weights_of(folder: Path) -> dict[str, Tensor]:
    """Of a backbone, as it is loaded, without those of the fusion, which no file holds."""
    weights = loaded(folder).network.state_dict()
    return {key: value for key, value in weights.items() if not key.startswith("fusion.")}


def equal(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """Whether weights have the same names and values."""
    return some.keys() == others.keys() and all(torch.equal(some[key], others[key]) for key in some)


@pytest.fixture
def with_config(tmp_path) -> Callable[..., Path]:
    """A copy of a checkpoint with another `config.json`: of a folder, and of what is laid over it, or changes it."""

    def make(folder: Path, change: Mapping[str, Any] | Callable[[dict[str, Any]], object]) -> Path:
        copy = Path(shutil.copytree(folder, tmp_path / "changed"))
        config = json.loads((copy / "config.json").read_text())
        change(config) if callable(change) else config.update(change)
        (copy / "config.json").write_text(json.dumps(config))
        return copy

    return make


@pytest.fixture(scope="session")
def same() -> Callable[..., bool]:
    """Equal to 1e-5 of the largest value (of 1 where that is smaller), or another share, and not for being constant."""

    def compare(found: Tensor, expected: Tensor, share: float = 1e-5) -> bool:
        assert found.shape == expected.shape
        assert expected.std() > 1e-2
        return bool((found.cpu() - expected).abs().max() <= share * max(1.0, float(expected.abs().max())))

    return compare


@pytest.fixture
def bytes_read(monkeypatch) -> list[int]:
    """Of each weight that `transformers` reads from a file, as float32."""
    read: list[int] = []
    own = core_model_loading.spawn_materialize

    def counted(pool: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, Tensor):  # as those of an adapter are
            read.append(math.prod(tensor.get_shape()) * 4)
        return own(pool, tensor, *args, **kwargs)

    monkeypatch.setattr(core_model_loading, "spawn_materialize", counted)
    return read


def in_shards(folder: Path, *parts: Mapping[str, Tensor]) -> None:
    """Weights in several files and an index, in place of the one file."""
    (folder / "model.safetensors").unlink()
    places: dict[str, str] = {}
    for number, part in enumerate(parts, start=1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        save_file(dict(part), folder / name, metadata={"format": "pt"})
        places |= dict.fromkeys(part, name)
    total = sum(tensor.nbytes for part in parts for tensor in part.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture
def with_weights(tmp_path) -> Callable[..., Path]:
    """A copy of a checkpoint with other tensors: of a folder, and of what makes others of those in its file."""

    def make(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
        copy = Path(shutil.copytree(folder, tmp_path / "with-weights"))
        save_file(change(load_file(copy / "model.safetensors")), copy / "model.safetensors", metadata={"format": "pt"})
        return copy

    return make
