"""What training says of its own speed is what happened."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from empathy_judge.data_modules import parallel
from empathy_judge.train import throughput
from empathy_judge.train.collate import Collate
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.run import train
from empathy_judge.train.throughput import Work, summary

from .conftest import metrics


@pytest.fixture
def seen(every_batch, monkeypatch) -> SimpleNamespace:
    """The `batches` of a run as its own hooks saw them, and the `work` that `Throughput` made of them."""
    seen, said = SimpleNamespace(batches=[]), throughput.summary
    every_batch(lambda module, batch, number: seen.batches.append(batch))

    def at_the_end(work: Work, processes: int, memory: float) -> str:
        seen.work = work
        return said(work, processes, memory)

    monkeypatch.setattr(throughput, "summary", at_the_end)
    return seen


def logged(run: Path) -> pd.DataFrame:
    table = metrics(run)
    return table[table["throughput/padding"].notna()]


def test_a_run_counts_its_pairs_tokens_and_padding(seen, train_arguments, tmp_path, capsys):
    """12 pairs in batches of 4, two epochs; two batches make a step of the optimizer, an epoch's last one alone."""
    train(train_arguments(tmp_path / "run", trainer__max_epochs=2, trainer__accumulate_grad_batches=2))
    masks = [batch.inputs.attention_mask for batch in seen.batches]
    tokens, places = sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)
    assert len(masks) == 6
    assert (seen.work.pairs, seen.work.tokens, seen.work.padded) == (24, tokens, places)
    rows = logged(tmp_path / "run")
    assert rows["step"].tolist() == [0, 1, 2, 3]
    both = masks[0].numel() + masks[1].numel()
    assert rows["throughput/padding"].iloc[0] == pytest.approx(
        1 - (int(masks[0].sum()) + int(masks[1].sum())) / both, abs=1e-6
    )
    alone = rows.iloc[1]  # of the third batch
    assert alone["throughput/padding"] == pytest.approx(1 - masks[2].float().mean().item(), abs=1e-6)
    assert alone["throughput/tokens_per_second"] / alone["throughput/pairs_per_second"] == pytest.approx(
        int(masks[2].sum()) / 4, rel=1e-5
    )
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("trained on 24 pairs in ")
    assert f"{places / places - tokens / places:.1%} padding".replace("%", " %") in last


def test_without_figures_the_work_is_counted_all_the_same(seen, train_arguments, tmp_path):
    """Lightning logs nothing where the interval is 0; ours divided by it."""
    train(train_arguments(tmp_path / "run", trainer__max_epochs=1, trainer__log_every_n_steps=0))
    assert (len(seen.batches), seen.work.pairs) == (3, 12)
    assert "throughput/padding" not in metrics(tmp_path / "run")


def test_a_log_says_how_far_training_is(train_arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(parallel, "LINE_SECONDS", 0.0)
    words = train_arguments(tmp_path / "run", trainer__max_epochs=2, trainer__accumulate_grad_batches=2)
    train(words)
    lines = capsys.readouterr().err.splitlines()
    steps = [line for line in lines if line.startswith("training: ")]
    assert [line.split(",")[0] for line in steps] == [f"training: {done} of 4" for done in (0, 1, 2, 2, 3, 4)]
    assert steps[0].endswith("time left unknown, epoch 1")
    assert steps[-1].endswith("0 s left, epoch 2")
    assert sum(line.startswith("validation: ") for line in lines) >= 2
    train([*words, "--run", str(tmp_path / "quiet"), "--trainer.enable_progress_bar", "false"])
    assert "training: " not in capsys.readouterr().err


def test_waiting_is_told_apart_and_validation_does_not_count(seen, train_arguments, tmp_path, monkeypatch):
    collate, validation_step = Collate.__call__, JudgeModule.validation_step
    slept = {"collate": 0.0}

    def slow_collate(made, items):
        if items[0].pair.split == "train":
            time.sleep(0.1)
            slept["collate"] += 0.1
        return collate(made, items)

    def slow_validation(module, batch, batch_idx):
        time.sleep(0.5)
        validation_step(module, batch, batch_idx)

    monkeypatch.setattr(Collate, "__call__", slow_collate)
    monkeypatch.setattr(JudgeModule, "validation_step", slow_validation)
    started = time.perf_counter()
    train(train_arguments(tmp_path / "run", trainer__max_epochs=1, trainer__val_check_interval=2))
    elapsed = time.perf_counter() - started
    assert slept["collate"] == pytest.approx(0.3)
    assert 0.3 <= seen.work.waiting < seen.work.seconds < elapsed - 1.5  # 3 batches of validation pairs
    rows = logged(tmp_path / "run")
    seconds = 4 / rows["throughput/pairs_per_second"]  # of a step of 4 pairs
    assert (rows["throughput/waiting"] * seconds >= 0.0999).all()
    assert (rows["throughput/waiting"] < 1).all()


def test_rates_of_several_processes():
    """Two processes, 10 s each: pairs add up, seconds of the clock do not."""
    one = Work(pairs=100, tokens=9_000, padded=12_000, seconds=10, waiting=1)
    found = (one + replace(one, pairs=60, tokens=8_000, padded=8_000, waiting=3)).rates(2)
    assert found["pairs_per_second"] == 16
    assert found["tokens_per_second"] == 1_700
    assert found["padding"] == pytest.approx(0.15)
    assert found["waiting"] == pytest.approx(0.2)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_line_at_the_end(processes):
    elapsed = 56.0 * processes
    work = Work(1234, 4321 * 56, 4321 * 56 / 0.968, elapsed, 0.008 * elapsed)
    assert summary(work, processes, 1.2e9) == (
        "trained on 1,234 pairs in 56 s: 22 pairs/s, 4,321 tokens/s, 3.2 % padding, 0.8 % waiting for data, 1.2 GB"
    )


def test_a_profile_is_written(train_arguments, tmp_path):
    run = tmp_path / "run"
    train(train_arguments(run, trainer__max_epochs=1, trainer__logger="false", data__batch_size=2, profile="true"))
    (page,) = (run / "profile").glob("*.txt")
    assert "aten::" in page.read_text(encoding="utf-8")
    (trace,) = (run / "profile").glob("*training_step*.pt.trace.json")
    assert any("optimizer_step" in event.get("name", "") for event in json.loads(trace.read_text())["traceEvents"])
