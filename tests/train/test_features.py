"""What is computed once is what would be computed each time; what changes in training is not kept."""

from __future__ import annotations

import inspect
import tempfile
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from empathy_judge.core.disk_store import DiskStore
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.backbones.layers import compile_layers, transformer_layers
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.predictor import Predictor
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
        pytest.param("layers", CUT, marks=pytest.mark.long),
    ],
)
def test_the_loss_curve_is_that_of_the_plain_path(cache, options, train_arguments, tmp_path):
    common = {
        "trainer__max_epochs": 1, "trainer__logger": "false", "data__num_workers": int(cache == "layers"), **options,
    }  # fmt: skip
    plain = curve(train_arguments(tmp_path / "plain", cache__what="none", **common))
    kept = {"cache__what": cache, "cache__folder": tmp_path / "kept"}
    for name, more in (("memory", {"cache__what": cache}), ("cold", kept), ("warm", kept)):
        found = curve(train_arguments(tmp_path / name, **common, **more))
        assert len(found) == len(plain) == 3
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
    list(Predictor(judge, 4, store=store).predict(pairs))
    of_test_split = sum(encoded)
    assert 0 < of_test_split < 2 * len(pairs)
    kept = [found.score for _, found in Predictor(judge, 4, store=store).predict(pairs)]
    assert sum(encoded) == of_test_split
    np.testing.assert_allclose(torch.stack(kept), scores_of(judge, pairs), atol=1e-5)


@pytest.mark.parametrize("cache", ["audio", pytest.param("layers", marks=pytest.mark.long)])
def test_files_that_were_damaged_are_replaced_before_training(cache, train_arguments, tmp_path, capsys):
    folder = tmp_path / "kept"
    common = {"trainer__max_epochs": 1, "trainer__logger": "false", "cache__what": cache, "cache__folder": folder}
    plain = curve(train_arguments(tmp_path / "first", **common, **UPPER))
    files = sorted(folder.rglob("*.safetensors"))
    for path in files:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] + b"\x00" * (len(data) - len(data) // 2))
    capsys.readouterr()
    again = curve(train_arguments(tmp_path / "second", **common, **UPPER, data__num_workers=int(cache == "layers")))
    np.testing.assert_allclose(again, plain, rtol=1e-6)
    assert capsys.readouterr().err.count("cannot be used") == 1
    assert len(files) > 20
    assert all(path.stem in DiskStore(folder) for path in files)


@pytest.mark.parametrize(("workers", "forks_safely"), [(0, (3, 0)), pytest.param(1, (4, 0), marks=pytest.mark.long)])
def test_the_upper_layers_run_alone_from_the_first_batch_on(
    workers, forks_safely, train_arguments, tmp_path, monkeypatch
):
    """Also where processes read data that start by forkserver, which gives them nothing but what can be pickled."""
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
        ({"cache__what": "audio", "judge__lora__full_parts": '["audio_tower"]'}, "with an audio_tower that is trained"),
        ({"cache__what": "audio", "judge__lora__parts": '["audio_tower"]'}, "with an audio_tower that is trained"),
        ({"cache__what": "layers", "data__augmentation__gain_probability": 1, **UPPER}, "with augmentation"),
        ({"cache__what": "audio", "cache__folder": "kept", "cache__gigabytes": 0}, "above 0"),
    ],
)  # fmt: skip
def test_what_changes_is_not_kept(options, message, train_arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as found:
        train(train_arguments(tmp_path / "run", **options))
    assert any(words in str(found.value) for words in ("expected ", "; use "))


@pytest.mark.parametrize("cache", ["audio", "layers"])
def test_a_machine_that_has_everything_computes_nothing_while_another_does(cache, train_arguments, tmp_path, encoded):
    """With folders of their own, of which one was filled by an earlier run."""

    def again(trainer: Trainer, module: JudgeModule) -> None:
        encoded.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(features, "rank_and_world_size", lambda: (0, 2))
            patch.setattr(features, "all_gather_object", lambda own: [own, 1])  # the other has a batch to compute
            module.collate.features.prepare(module.data.train.pairs, nullcontext, (0, 1))
        assert encoded == []

    options = {"trainer__max_epochs": 1, "trainer__logger": "false", "cache__folder": tmp_path / "kept", **UPPER}
    train(
        train_arguments(tmp_path / "run", **options, cache__what=cache), watching=[LambdaCallback(on_fit_start=again)]
    )


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
