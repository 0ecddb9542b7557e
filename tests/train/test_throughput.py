"""What training says of its own speed is what happened."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from empathy_judge.core import processes as parallel
from empathy_judge.train import throughput
from empathy_judge.train.collate import Collate
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.run import train
from empathy_judge.train.throughput import summary


@pytest.fixture
def work(monkeypatch) -> list[float]:
    """What `Throughput` counted in a run: pairs, tokens, tokens with padding, seconds, seconds of waiting."""
    counted: list[float] = []
    plain = throughput.summary
    monkeypatch.setattr(throughput, "summary", lambda table: counted.extend(table[0].tolist()) or plain(table))
    return counted


def test_a_run_counts_its_pairs_tokens_and_padding_and_says_how_far_it_is(
    work, every_batch, train_arguments, tmp_path, capsys, monkeypatch
):
    """12 pairs in batches of 4, two epochs."""
    monkeypatch.setattr(parallel, "LINE_SECONDS", 0.0)
    masks: list[torch.Tensor] = []
    every_batch(lambda module, batch, number: masks.append(batch.inputs.attention_mask))
    options = {"trainer__max_epochs": 2, "trainer__accumulate_grad_batches": 2, "trainer__log_every_n_steps": 0}
    train(train_arguments(tmp_path / "run", **options))
    tokens, places = sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)
    assert len(masks) == 6
    assert work[:3] == [24, tokens, places]
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("trained on 24 pairs in ")
    assert f"{1 - tokens / places:.1%} padding".replace("%", " %") in lines[-1]
    steps = [line for line in lines if line.startswith("training: ")]
    assert [line.split(",")[0] for line in steps] == [f"training: {done} of 4" for done in (0, 1, 2, 2, 3, 4)]
    assert steps[0].endswith("per second, epoch 1")
    assert steps[-1].endswith("0 s left, epoch 2")
    assert sum(line.startswith("validation: ") for line in lines) >= 2


def test_waiting_for_data_counts_and_validation_does_not(work, train_arguments, tmp_path, monkeypatch, capsys):
    """And nothing is said of progress where none is asked for."""
    monkeypatch.setattr(parallel, "LINE_SECONDS", 0.0)
    collate, validation_step = Collate.__call__, JudgeModule.validation_step

    def slow_collate(made, items):
        time.sleep(0.1 if items[0].pair.split == "train" else 0)
        return collate(made, items)

    def slow_validation(module, batch, batch_idx):
        time.sleep(0.2)
        validation_step(module, batch, batch_idx)

    monkeypatch.setattr(Collate, "__call__", slow_collate)
    monkeypatch.setattr(JudgeModule, "validation_step", slow_validation)
    started = time.perf_counter()
    train(train_arguments(tmp_path / "run", trainer__max_epochs=1, trainer__enable_progress_bar="false"))
    elapsed = time.perf_counter() - started
    assert "training: " not in capsys.readouterr().err
    *_, seconds, waiting, _ = work
    assert 0.3 <= waiting < seconds < elapsed - 0.6  # 3 batches of training and of validation pairs


@pytest.mark.parametrize("processes", [1, 2])
def test_the_line_at_the_end(processes):
    """Pairs of processes add up, seconds of the clock do not."""
    one = [1234 / processes, 4321 * 56 / processes, 4321 * 56 / 0.968 / processes, 56.0, 0.448, 1.2e9]
    table = torch.tensor([one] * processes, dtype=torch.float64)
    assert summary(table) == (
        "trained on 1,234 pairs in 56 s: 22 pairs/s, 4,321 tokens/s, 3.2 % padding, 0.8 % waiting for data, 1.2 GB"
    )


def test_a_profile_of_lightning_is_written(train_arguments, tmp_path):
    run, profile = tmp_path / "run", tmp_path / "profile"
    few = {"trainer__max_epochs": 1, "trainer__limit_train_batches": 1, "trainer__limit_val_batches": 1}
    words = train_arguments(run, **few, trainer__logger="false", trainer__profiler="PyTorchProfiler")
    train([*words, "--trainer.profiler.dirpath", str(profile), "--trainer.profiler.filename", "summary"])
    (page,) = profile.glob("*.txt")
    assert "aten::" in Path(page).read_text(encoding="utf-8")
    assert list(profile.glob("*.json"))
