"""What is computed once is what would be computed each time; what changes in training is not kept."""

from __future__ import annotations

import inspect
import os
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models import disk_store
from empathy_judge.models.artifact import load_any
from empathy_judge.models.backbones.layers import compile_layers, transformer_layers
from empathy_judge.models.disk_store import DiskStore
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.scoring import PairScorer
from empathy_judge.train import features, module
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.run import train
from filelock import FileLock
from lightning import Trainer
from lightning.pytorch.callbacks import LambdaCallback
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

from .conftest import scores_of

UPPER = {"judge__lora__layers": "[-1, 4]"}  # of four
CUT = {"judge__depth": 0.5, "judge__lora__layers": "[-1, 2]"}


@pytest.fixture
def encoded(monkeypatch) -> list[int]:
    """How many clips were encoded each time."""
    counts: list[int] = []
    plain = EmpathyJudge._encoded
    monkeypatch.setattr(
        EmpathyJudge, "_encoded", lambda judge, clips: counts.append(len(clips.lengths)) or plain(judge, clips)
    )
    return counts


def curve(words: list[str], losses: list[float] | None = None) -> np.ndarray:
    """The loss of every step, also in `losses` as soon as it is made."""
    found = [] if losses is None else losses
    noted = LambdaCallback(on_train_batch_end=lambda *given: found.append(given[2]["loss"].item()))
    train(words, watching=[noted])
    return np.array(found)


@pytest.mark.parametrize(
    ("cache", "options"),
    [
        ("audio", {}),
        pytest.param("audio", UPPER, marks=pytest.mark.long),
        pytest.param("layers", UPPER, marks=pytest.mark.long),
        ("layers", CUT),
    ],
)
def test_the_loss_curve_is_that_of_the_plain_path(cache, options, train_arguments, tmp_path):
    common = {
        "trainer__max_epochs": 2, "trainer__logger": "false", "data__num_workers": int(cache == "layers"), **options,
    }  # fmt: skip
    plain = curve(train_arguments(tmp_path / "plain", cache__what="none", **common))
    kept = {"cache__what": cache, "cache__folder": tmp_path / "kept"}
    for name, more in (("memory", {"cache__what": cache}), ("cold", kept), ("warm", kept)):
        found = curve(train_arguments(tmp_path / name, **common, **more))
        assert len(found) == len(plain) == 6
        assert np.abs(found - plain).max() < 1e-4 * plain.max(), name
    assert plain.std() > 1e-3


def test_runs_share_what_is_kept_and_scoring_does_too(train_arguments, dataset_folder, tmp_path, encoded):
    pairs = PairDataset.load(dataset_folder).pairs
    common = {"trainer__max_epochs": 1, "trainer__logger": "false", "cache__folder": tmp_path / "kept"}
    train(train_arguments(tmp_path / "first", **common))
    assert sum(encoded) > 0
    encoded.clear()
    train(train_arguments(tmp_path / "second", **common, seed=3, judge__lora__rank=2, judge__depth=2))
    assert encoded == []
    judge = load_any(tmp_path / "first").judge
    store = DiskStore(tmp_path / "kept", 1.0)
    list(PairScorer(judge, 4, store=store).predict(pairs))
    of_test_split = sum(encoded)
    assert 0 < of_test_split < 2 * len(pairs)
    kept = [found.score for _, found in PairScorer(judge, 4, store=store).predict(pairs)]
    assert sum(encoded) == of_test_split
    np.testing.assert_allclose(torch.stack(kept), scores_of(judge, pairs), atol=1e-5)


@pytest.mark.parametrize(("workers", "forks_safely"), [(0, (3, 0)), (1, (3, 0)), (1, (4, 0))])
def test_the_upper_layers_run_alone_from_the_first_batch_on(
    workers, forks_safely, train_arguments, tmp_path, monkeypatch
):
    """However processes that read data start: by fork, or by forkserver where Python does not fork safely."""
    monkeypatch.setattr("empathy_judge.data_modules.datamodule._FORKS_SAFELY", forks_safely)
    ran: list[int] = []
    options = {"trainer__max_epochs": 3, "trainer__logger": "false", "data__num_workers": workers, **UPPER}
    plain = JudgeModule.on_train_batch_start

    def start(module: JudgeModule) -> None:
        for number, layer in enumerate(module.judge.network.language_model.layers):
            layer.mlp.register_forward_hook(lambda *_, number=number: ran.append(number))

    def step(module: JudgeModule, batch, batch_idx):
        assert batch.inputs.audio_states is None
        assert batch.inputs.clips is None
        return plain(module, batch, batch_idx)

    monkeypatch.setattr(JudgeModule, "on_train_start", start)
    monkeypatch.setattr(JudgeModule, "on_train_batch_start", step)
    train(train_arguments(tmp_path / "run", cache__what="layers", **options))
    assert set(ran) == {3}
    assert len(ran) >= 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache__what": "layers"}, "LoRA from the first layer on"),
        ({"cache__what": "layers", "judge__lora__layers": "[0, 1]"}, "LoRA from the first layer on"),
        ({"cache__what": "layers", "judge__lora__parts": '["language_model", "projector"]', **UPPER}, "with projector"),
        ({"cache__what": "layers", "judge__lora__full_parts": '["projector"]', **UPPER}, "projector that is trained"),
        ({"cache__what": "layers", "judge__lora__parts": '["language_model", "audio_tower"]', **UPPER}, "audio_tower"),
        ({"cache__what": "layers", "judge__pooling": "layer_mix", **UPPER}, "layer_mix, which reads every layer"),
        ({"cache__what": "audio", "judge__lora__full_parts": '["audio_tower"]'}, "with an audio_tower that is trained"),
        ({"cache__what": "audio", "judge__lora__parts": '["audio_tower"]'}, "with an audio_tower that is trained"),
        ({"cache__what": "layers", "data__augmentation__gain_probability": 1, **UPPER}, "with augmentation"),
        ({"cache__what": "audio", "cache__folder": "kept", "cache__gigabytes": 0}, "more than 0"),
    ],
)  # fmt: skip
def test_what_changes_is_not_kept(options, message, train_arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as found:
        train(train_arguments(tmp_path / "run", **options))
    assert any(words in str(found.value) for words in ("expected ", "; use "))


# ---------------------------------------------------------------- the folder


def tensors(number: int) -> dict[str, torch.Tensor]:
    return {"states": torch.full((250,), float(number))}  # about a kilobyte


def test_a_store_keeps_what_it_was_given(tmp_path):
    store = DiskStore(tmp_path / "deep" / "kept", 1.0)
    assert store.get("ab1") is None
    assert "ab1" not in store
    store.put("ab1", tensors(1))
    store.put("ab1", tensors(2))  # a name stands for one content
    assert "ab1" in DiskStore(tmp_path / "deep" / "kept", 1.0)
    assert torch.equal(store.get("ab1")["states"], tensors(1)["states"])


def test_a_damaged_file_counts_as_none(tmp_path):
    store = DiskStore(tmp_path, 1.0)
    for number, content in enumerate((b"", b"\x00" * 20, b"\xff" * 4_000)):
        store.put(f"ab{number}", tensors(1))
        (path,) = tmp_path.rglob("*.safetensors")
        path.write_bytes(content)
        assert store.get(f"ab{number}") is None
        assert not path.exists()


def test_what_was_used_longest_ago_makes_room(tmp_path, monkeypatch):
    now = [1_000_000.0]
    monkeypatch.setattr(disk_store.time, "time", lambda: now[0])
    store = DiskStore(tmp_path, 20e-6)  # 20 kB
    for number in range(12):
        store.put(f"a{number}x", tensors(number))
        for path in tmp_path.rglob(f"a{number}x.safetensors"):
            os.utime(path, (number, number))
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    store.get("a0x")  # used again
    for number in range(12, 24):
        store.put(f"a{number}x", tensors(number))
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors")) <= 20_000
    assert size > 10_000
    assert "a0x" in store
    assert "a1x" not in store
    assert "a23x" in store


def test_a_full_disk_stops_no_work(tmp_path, monkeypatch, capsys):
    store = DiskStore(tmp_path, 1.0)
    store.put("ab", tensors(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    store.put("cd", tensors(2))
    store.put("ef", tensors(3))
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert "cd" not in store
    assert store.get("ab") is not None
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["ab.safetensors"]


def test_machines_whose_processes_have_the_same_number_share_a_store(tmp_path, monkeypatch, capsys):
    store, plain = DiskStore(tmp_path, 1.0), os.replace

    def after_another_machine(source: Path, target: Path) -> None:
        monkeypatch.setattr(disk_store.os, "replace", plain)
        DiskStore(tmp_path, 1.0).put("abc", tensors(1))  # the same, in a container of its own
        plain(source, target)

    monkeypatch.setattr(disk_store.os, "replace", after_another_machine)
    store.put("abc", tensors(1))
    store.put("abd", tensors(2))
    assert capsys.readouterr().err == ""
    assert "abd" in store
    assert torch.equal(store.get("abc")["states"], tensors(1)["states"])


@pytest.mark.parametrize("cache", ["audio", "layers"])
def test_a_machine_that_has_everything_computes_nothing_while_another_does(cache, train_arguments, tmp_path, encoded):
    """With folders of their own, of which one was filled by an earlier run."""

    def again(trainer: Trainer, module: JudgeModule) -> None:
        encoded.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(features, "place", lambda: (0, 2))
            patch.setattr(features, "of_all", lambda own: [own, 1])  # the other has a batch to compute
            module.collate.features.prepare(module.data.train.pairs, nullcontext, (0, 1))
        assert encoded == []

    options = {"trainer__max_epochs": 1, "trainer__logger": "false", "cache__folder": tmp_path / "kept", **UPPER}
    train(
        train_arguments(tmp_path / "run", **options, cache__what=cache), watching=[LambdaCallback(on_fit_start=again)]
    )


def test_what_a_killed_process_left_is_deleted(tmp_path, monkeypatch):
    store = DiskStore(tmp_path, 1.0)
    (tmp_path / "ab").mkdir()
    left = tmp_path / "ab" / ".abc.77.unfinished"
    left.write_bytes(b"x")
    store.put("abd", tensors(1))
    assert left.exists()  # perhaps it is being written
    later = time.time() + 7_200
    monkeypatch.setattr(disk_store.time, "time", lambda: later)
    DiskStore(tmp_path, 1.0).put("abe", tensors(1))
    assert not left.exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "compiled", "run"),
    [
        ({"cache__what": "none"}, 8, 8),
        ({"cache__what": "none", "gradient_checkpointing": "true"}, 8, 12),
        ({"cache__what": "layers", **UPPER}, 5, 1),
    ],
)
def test_compiled_layers_make_the_same_curve(options, compiled, run, device, train_arguments, tmp_path, monkeypatch):
    """They are what every step computes with, in one piece. By Inductor on a GPU; on a CPU, where that takes a minute,
    torch takes them apart and puts them together again."""
    found, ran, losses, kinds = [], [], [], set()

    def backend(graph, inputs):
        made = torch._dynamo.lookup_backend("aot_eager" if device.type == "cpu" else "inductor")(graph, inputs)

        def noted(*args):
            ran.append(len(losses))
            return made(*args)

        return noted

    def quickly(network, leave):
        found.append(compile_layers(network, leave, backend=backend))
        kinds.update(inspect.unwrap(type(layer).forward).__code__ for layer in transformer_layers(network))
        return found[-1]

    monkeypatch.setattr(module, "compile_layers", quickly)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    common = {"trainer__max_epochs": 1, "trainer__logger": "false", "gradient_checkpointing": "false", **options}
    common["trainer__accelerator"] = "cpu" if device.type == "cpu" else "gpu"
    plain = curve(train_arguments(tmp_path / "plain", **common))
    same = curve(train_arguments(tmp_path / "compiled", compile_layers="true", **common), losses)
    assert found == [compiled]
    assert len(same) == 3
    assert ran.count(0) == ran.count(1) == ran.count(2) == run
    assert np.abs(same - plain).max() < (1e-5 if device.type == "cpu" else 1e-3) * plain.max()
    assert not torch._dynamo.utils.counters["graph_break"]
    # with and without gradients, training and validation; beyond the limit torch would go on without
    made = [len(_debug_get_cache_entry_list(kind)) for kind in kinds]
    assert sum(made) == torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert max(made) < torch._dynamo.config.recompile_limit


def test_a_folder_for_the_run_alone_is_gone_afterwards(train_arguments, tmp_path, monkeypatch, encoded):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    left = tmp_path / "temporary" / "empathy-judge-cache-1"  # by a killed run
    other = left.with_name("empathy-judge-cache-2")  # of a run that goes on
    for folder in (left, other):
        folder.mkdir(parents=True)
        folder.with_suffix(".lock").touch()
    seen = []
    monkeypatch.setattr(JudgeModule, "on_train_start", lambda _: seen.extend((tmp_path / "temporary").rglob("*.safe*")))
    with FileLock(other.with_suffix(".lock")):
        train(train_arguments(tmp_path / "run", trainer__max_epochs=2, trainer__logger="false", cache__what="audio"))
    assert len(seen) == sum(encoded) == 28  # 21 responses, 7 contexts
    assert list((tmp_path / "temporary").glob("*[!k]")) == [other]
