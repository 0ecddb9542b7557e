"""Runs of these tests end where training ends."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.writing import write_dataset
from empathy_judge.models import BEST, CHECKPOINTS, LAST
from empathy_judge.models.closed_form import FeatureBatch, Solution, fit
from empathy_judge.scoring.predictor import Predictor
from empathy_judge.train import publishing
from empathy_judge.train.collate import Batch
from empathy_judge.train.module import JudgeModule

OF_CLIPS = {"judge__head_input__audio": "all_layers", "judge__head_input__functionals": "true"}
PROBE = {"method": "probe", **OF_CLIPS}
BEST_FILE, LAST_FILE = f"{CHECKPOINTS}/{BEST}", f"{CHECKPOINTS}/{LAST}"


class Killed(Exception):
    """Stands for SIGKILL: nothing is saved on the way out."""


def metrics(run: Path) -> pd.DataFrame:
    """All rows that the CSV logger wrote, those of earlier starts first."""
    return pd.concat([pd.read_csv(path) for path in sorted((run / "logs").rglob("metrics.csv"))])


def under_torchrun(
    folder: Path, program: str, *words: object, processes: int = 2, timeout: float = 600, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What a program said in processes that torchrun started with these words."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.run(
        [*command, str(folder / "program.py"), *map(str, words)],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


def frame_of(pairs) -> pd.DataFrame:
    """Pairs with one turn of context as `write_dataset` takes them, in the folder of their clips."""
    return pd.DataFrame([
        {
            "pair_id": pair.pair_id, "group_id": pair.group_id, "split": pair.split,
            "context_audio": Path(str(pair.context[0].audio)).name, "response_audio": Path(str(pair.response)).name,
        }
        for pair in pairs
    ])  # fmt: skip


def small_dataset(folder: Path, source: Path, validation_pairs: int, same_clip: bool = False, **unrated: str) -> Path:
    """The responses of a dataset, so many for validation, if asked all with the clip of the first; of dimensions
    without ratings in a split this is named."""
    shutil.copytree(source, folder)
    (folder / "split.yaml").unlink()
    dataset = PairDataset.load(source)
    pairs = frame_of(dataset.pairs).drop(columns="context_audio")
    pairs["group_id"] = pairs["pair_id"]
    pairs["split"] = ["validation"] * validation_pairs + ["train"] * (len(pairs) - validation_pairs)
    if same_clip:
        validation = pairs["split"] == "validation"
        pairs.loc[validation, "response_audio"] = [pairs["response_audio"].iloc[0]] * validation.sum()
    ratings = dataset.ratings
    for name, split in unrated.items():
        without = pairs.loc[pairs["split"] == split, "pair_id"]
        ratings = ratings[(ratings["dimension"] != name) | ~ratings["pair_id"].isin(without)]
    write_dataset(folder, dataset.card, pairs, ratings)
    return folder


def scores_of(judge, pairs, batch_size: int = 4) -> np.ndarray:
    return torch.stack([found.score for _, found in Predictor(judge, batch_size).predict(pairs)]).numpy()


@torch.no_grad()
def read_by(judge, pair) -> torch.Tensor:
    """Features before they are compared with landmarks."""
    inputs = judge.with_encoded_audio(judge.build_inputs([pair]))
    pooled = judge.pool_states(judge.backbone.hidden_states(inputs), inputs)
    return judge.head_input.standardised(pooled, *judge.head_input.raw(inputs))[0].double()


def let_probes_choose_a_kernel(monkeypatch, *, without_language_model: bool = False) -> None:
    """Of one width, of the ranks of ratings; its states may be noise to the fit, so that it leaves them out."""
    monkeypatch.setattr("empathy_judge.models.probe.WIDTHS", (0.25,))
    monkeypatch.setattr("empathy_judge.models.closed_form.MIN_GAIN", -np.inf)

    def fitted(sample: FeatureBatch, blocks: np.ndarray, *arguments, **options) -> Solution:
        if without_language_model:
            noise = np.random.default_rng(0).normal(size=sample.features.shape)
            sample = sample._replace(features=np.where(blocks == 0, noise, sample.features))
        solution = fit(sample, blocks, *arguments, **options)
        assert solution.record["ranks"]
        assert solution.omits_first or not without_language_model
        return solution

    monkeypatch.setattr("empathy_judge.models.probe.fit", fitted)


@pytest.fixture(autouse=True)
def without_calibration(monkeypatch) -> None:
    """Measuring clips takes as long as an epoch; `trained_run` is calibrated."""
    monkeypatch.setattr(publishing, "calibrate", lambda *_: None)


@pytest.fixture
def every_batch(monkeypatch) -> Callable[..., None]:
    """Calls a function with the module, a batch and its number before each training step, or each of these steps."""

    def every_batch(note: Callable[[JudgeModule, Batch, int], object], *steps: str) -> None:
        for name in steps or ("training_step",):
            plain = getattr(JudgeModule, name)

            def step(module: JudgeModule, batch: Batch, batch_idx: int, plain=plain):
                note(module, batch, batch_idx)
                return plain(module, batch, batch_idx)

            monkeypatch.setattr(JudgeModule, name, step)

    return every_batch


@pytest.fixture
def batches_read(every_batch) -> list[tuple[int, int, list[int]]]:
    """Epoch, number and items of every batch that was trained on."""
    read: list[tuple[int, int, list[int]]] = []
    every_batch(lambda module, batch, number: read.append((module.current_epoch, number, batch.indices.tolist())))
    return read


@pytest.fixture
def run(trained_run, tmp_path) -> Path:
    """A copy of the finished run, to be spoilt."""
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


@pytest.fixture
def in_a_step(monkeypatch):
    """Something is done before the step that begins after so many."""

    @contextmanager
    def patched(after: int, do: Callable[[], None]) -> Iterator[None]:
        plain, begun = JudgeModule.training_step, itertools.count()

        def step(module: JudgeModule, batch, batch_idx):
            if next(begun) == after:
                do()
            return plain(module, batch, batch_idx)

        with monkeypatch.context() as patch:
            patch.setattr(JudgeModule, "training_step", step)
            yield

    return patched
