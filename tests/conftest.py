"""A random backbone of the true architecture and a tiny rated dataset, made once; nothing is downloaded."""

from __future__ import annotations

import gc
import importlib
import io
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import soundfile

if TYPE_CHECKING:
    import torch
    from empathy_judge.models.judge import EmpathyJudge

    from .data_modules.builders import Source

# Before torch is imported, here and in the processes that tests start: sums in one fixed order, and no model hub
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS is not deterministic
# The evaluate library keeps a cache where the environment says when it is imported
_hugging_face = tempfile.TemporaryDirectory(prefix="empathy-judge-tests-")
os.environ["HF_HOME"] = _hugging_face.name
# Processes that synthesise speech begin with this loaded
multiprocessing.set_forkserver_preload(["empathy_judge.data_modules.sample"])

# Where tests with the marker `gpu` compute: `cpu` runs all that they do on a machine without a GPU
TEST_DEVICE = os.environ.get("EMPATHY_JUDGE_TEST_DEVICE", "cuda")


def pytest_collection_finish() -> None:
    """What was imported stays: collecting garbage need not look at it again, which took a second each time."""
    gc.collect()
    gc.freeze()


RATE = 16_000
CONFIGS = Path(__file__).parents[1] / "configs"
GROUPS, PER_GROUP, RATERS = 8, 3, 3


def buzz(hertz: np.ndarray | float, seconds: float = 0.4, level: float = 0.1) -> np.ndarray:
    """Eight harmonics of a pitch, which may move `(samples,)`, float32."""
    steps = np.broadcast_to(np.asarray(hertz, dtype=np.float64), round(seconds * RATE))
    phase = 2 * np.pi * np.cumsum(steps) / RATE
    return (level * sum(np.sin(k * phase) / k for k in range(1, 9))).astype(np.float32)


@pytest.fixture(scope="session")
def make_buzz() -> Callable[..., np.ndarray]:
    """`buzz`: pitch in Hz, seconds, level."""
    return buzz


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request) -> Iterator[torch.device]:
    """Where a test computes: on the CPU, and once more on a GPU (`pytest -m gpu`), there in float32 without TF32."""
    import torch

    device = torch.device("cpu" if request.param == "cpu" else TEST_DEVICE)
    if device.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU; EMPATHY_JUDGE_TEST_DEVICE=cpu runs the same on the CPU")
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield device
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(scope="module")
def rounding(device) -> float:
    """How far two float32 results of the same may lie apart, relative to 1: a GPU's kernels add up in another order
    for each size of a batch."""
    return 1e-5 if device.type == "cpu" else 1e-4


def tone(seconds: float, hertz: float, level: float, noise: float = 0.0, rate: int = RATE) -> np.ndarray:
    """A sine with noise on it `(samples,)`, float32."""
    count = round(seconds * rate)
    sine = np.sin(2 * np.pi * hertz * np.arange(count) / rate)
    rough = np.random.default_rng(round(hertz)).normal(size=count)
    return (level * ((1 - noise) * sine + noise * rough)).astype(np.float32)


@pytest.fixture(scope="session", autouse=True)
def users_cache(tmp_path_factory) -> Iterator[Path]:
    """What commands keep for the user, apart from the cache of whoever runs the tests; what killed processes leave."""
    folder = tmp_path_factory.mktemp("users_cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("TMPDIR", str(folder))
        yield folder


@pytest.fixture(scope="session")
def make_tone() -> Callable[..., np.ndarray]:
    """`tone`: seconds, Hz, level, share of noise."""
    return tone


@pytest.fixture
def clips(tmp_path) -> Path:
    """A folder with `c.wav`, a context, and `r0.wav` ... `r3.wav`."""
    folder = tmp_path / "clips"
    folder.mkdir()
    soundfile.write(folder / "c.wav", tone(0.8, 150, 0.3), RATE, subtype="FLOAT")
    for number in range(4):
        samples = tone(0.5 + 0.2 * number, 200 + 90 * number, 0.1 + 0.2 * number, 0.1)
        soundfile.write(folder / f"r{number}.wav", samples, RATE, subtype="FLOAT")
    return folder


@pytest.fixture(scope="session")
def make_backbone() -> Callable[[Path, int], Path]:
    """Saves Qwen2-Audio in miniature with random weights, and its processor, to a folder; the seed makes the weights.

    They are larger than those of an untrained model: the audio must matter.
    """
    import torch
    from empathy_judge.checkpoints.nano.make.architecture import build_model, build_processor
    from empathy_judge.models.backbones.audio_language_model import QUESTION

    from .models.backbones.tools import louder

    def make(folder: Path, seed: int) -> Path:
        processor = build_processor([QUESTION, "Situation: Context: Response: the user the assistant"], seconds=10)
        torch.manual_seed(seed)
        model = build_model(processor)
        louder(model)
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def backbone_folder(make_backbone, tmp_path_factory) -> Path:
    """The random backbone of seed 0."""
    return make_backbone(tmp_path_factory.mktemp("backbone"), 0)


@pytest.fixture(scope="session")
def dataset_folder(tmp_path_factory) -> Path:
    """24 pairs in 8 groups on two scales: 12 to train on, 9 (an odd number) for validation, 3 for the test.

    The louder and higher a response, the better its rating. Three raters with biases; one rates every other pair only.
    """
    from empathy_judge.data_modules.schema import DatasetCard, Dimension
    from empathy_judge.data_modules.splits import split_dataset
    from empathy_judge.data_modules.writing import write_dataset

    folder = tmp_path_factory.mktemp("dataset") / "tones"
    folder.mkdir()
    pairs, ratings = [], []
    for group in range(GROUPS):
        soundfile.write(folder / f"context{group}.wav", tone(0.5 + 0.1 * group, 92 + 30 * group, 0.3, 0.2), RATE)
        for member in range(PER_GROUP):
            number = group * PER_GROUP + member
            loudness, height = number % 5 / 4, number % 7 / 6
            name = f"p{number:02d}"
            samples = tone(0.4 + 0.067 * number, 120 + 300 * height + number, 0.05 + 0.5 * loudness, 0.1)
            soundfile.write(folder / f"{name}.wav", samples, RATE)
            pairs.append(
                {
                    "pair_id": name, "group_id": f"g{group}", "context_audio": f"context{group}.wav",
                    "response_audio": f"{name}.wav", "situation": "A parent is late." if group % 3 == 0 else None,
                    "system_id": f"s{member}",
                }
            )  # fmt: skip
            for rater in range(RATERS):
                if rater < RATERS - 1 or number % 2:
                    empathy = round(1.5 + 2 * loudness + height) + rater % 2
                    warmth = 1.0 + 4 * loudness + 3 * height + 0.5 * rater
                    ratings += [(name, f"r{rater}", "empathy", empathy), (name, f"r{rater}", "warmth", warmth)]
    card = DatasetCard(
        name="tones", dimensions=(Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10)),
        source="made for a test", licence="CC0-1.0", synthetic=True,
    )  # fmt: skip
    columns = ["pair_id", "rater_id", "dimension", "score"]
    write_dataset(folder, card, pd.DataFrame(pairs), pd.DataFrame(ratings, columns=columns))
    split_dataset(folder, fractions={"train": 0.5, "validation": 0.375, "test": 0.125}, seed=0)
    return folder


@pytest.fixture(scope="session")
def make_judge(backbone_folder) -> Callable[..., EmpathyJudge]:
    """Builds judges on the random backbone whose adapters, pooling and head are random too, as after training."""
    import torch
    from empathy_judge.data_modules.schema import Dimension
    from empathy_judge.models.judge import EmpathyJudge
    from empathy_judge.models.settings import JudgeSettings, LoraSettings

    own = (Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10))  # which differ in both ends

    def make(lora: LoraSettings | None = None, seed: int = 1, scales: Any = own, **settings: Any) -> EmpathyJudge:
        settings = {"backbone": str(backbone_folder), **settings}
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            lora_settings = lora or LoraSettings(rank=4, alpha=8.0)
            judge = EmpathyJudge(JudgeSettings(lora=lora_settings, **settings), scales)
            for name, weight in judge.trainable().items():
                weight.add_((0.02 if "lora_" in name else 0.1) * torch.randn(weight.shape))
        return judge.eval()

    return make


@pytest.fixture(scope="session")
def judge_folder(make_judge, tmp_path_factory) -> Path:
    """A judge on disk. Tests that change it copy it first."""
    from .models.conftest import saved

    return saved(make_judge(), tmp_path_factory.mktemp("artifact") / "judge")


@pytest.fixture(scope="session")
def scorer(judge_folder):
    """`judge_folder` as a call."""
    from empathy_judge.scoring.scorer import Scorer

    return Scorer.from_pretrained(judge_folder, device="cpu")


@pytest.fixture(scope="session")
def train_arguments(backbone_folder, dataset_folder) -> Callable[..., list[str]]:
    """Words after `empathy-judge train` for a small run; values given as `judge__lora__rank=4` override the rest."""

    def arguments(run: Path, **overrides: Any) -> list[str]:
        values = {
            "judge.backbone": str(backbone_folder), "judge.lora.rank": 4, "data.path": str(dataset_folder),
            "data.batch_size": 4, "data.eval_batch_size": 4, "trainer.max_epochs": 4, "trainer.log_every_n_steps": 1,
            "patience": 50, "run": str(run), **{name.replace("__", "."): value for name, value in overrides.items()},
        }  # fmt: skip
        words = ["--config", str(CONFIGS / "nano.yaml")]
        return words + [word for name, value in values.items() for word in (f"--{name}", str(value))]

    return arguments


@pytest.fixture(scope="session")
def trained_run(train_arguments, tmp_path_factory) -> Path:
    """A finished run of four epochs. Tests that change it copy it first."""
    from empathy_judge.train.run import train

    run = tmp_path_factory.mktemp("runs") / "run"
    train(train_arguments(run))
    return run


@pytest.fixture
def worker_in_process(monkeypatch) -> None:
    """`score --manifest FILE --out FILE` has its worker in this process: starting one takes eight seconds. Worker
    processes are the matter of `scoring/batch/`."""
    from empathy_judge.scoring.batch import run
    from empathy_judge.scoring.batch.workers import Worker

    def work(parts: Any, launch: Any, devices: Any, look: Any) -> None:
        Worker(parts, parts.job.load(devices[0]), launch.rank, launch.world).run()

    monkeypatch.setattr(run, "run_workers", work)


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for something that other threads or processes do."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def real_data(name: str) -> Path:
    """A file or folder of EMPATHY_JUDGE_REAL_DATA; skips without it."""
    path = Path(os.environ.get("EMPATHY_JUDGE_REAL_DATA", "nowhere"), name)
    if not path.exists():
        pytest.skip(f"EMPATHY_JUDGE_REAL_DATA holds no {name}")
    return path


def loaded(path: Path) -> Any:
    """A program that is no part of the package, as a module; it finds its neighbours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        return importlib.import_module(path.stem)


def encoded(samples, rate: int = 16_000, kind: str = "WAV", subtype: str | None = None, **how: Any) -> bytes:
    """An audio file."""
    file = io.BytesIO()
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    with soundfile.SoundFile(file, "w", rate, channels, subtype, format=kind, **how) as sound:
        for start in range(0, max(len(samples), 1), 100_000):  # libsndfile wants the stack for all of it at once
            sound.write(samples[start : start + 100_000])
    return file.getvalue()


@pytest.fixture(scope="session")
def parser():
    """Of recipes, as the command has it."""
    from empathy_judge.train.recipe import RecipeParser

    return RecipeParser()


def output_of(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a command that goes well prints."""
    from empathy_judge.cli import main

    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a command prints when it is used wrongly."""
    from empathy_judge.cli import main

    assert main(words) == 2
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in captured.err
    return line


@pytest.fixture
def source(request, tmp_path) -> Source:
    """A source as the tests of a module bring it: of the class that is called `SOURCE` there."""
    from .data_modules.builders import Source

    return getattr(request.module, "SOURCE", Source)(tmp_path / "source")


@pytest.fixture
def sharded(tmp_path, monkeypatch) -> Any:
    """60 embedded pairs in 3 shards, row groups of 4."""
    from empathy_judge.data_modules import writing

    from .data_modules.builders import Source

    monkeypatch.setattr(writing, "ROW_GROUP_ROWS", 4)
    source = Source(tmp_path / "source", groups=12, per_group=5)
    source.load(embed_audio=True, shard_rows=25)
    return source


@pytest.fixture(name="encoded")
def encoded_clips(monkeypatch) -> list[int]:
    """How many clips were encoded each time."""
    from empathy_judge.models.judge import EmpathyJudge

    counts: list[int] = []
    plain = EmpathyJudge._encoded
    monkeypatch.setattr(
        EmpathyJudge, "_encoded", lambda judge, clips: counts.append(len(clips.lengths)) or plain(judge, clips)
    )
    return counts
