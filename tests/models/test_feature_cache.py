"""The names of what is kept: one for each result, shared by all judges that would compute the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from empathy_judge.core.disk_store import DiskStore
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.feature_cache import ClipStates, PairStates
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import LoraSettings
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.export.check import rated_set
from empathy_judge.scoring.export.write import write_whole
from empathy_judge.scoring.predictor import Predictor

from .conftest import clip, edit, saved


def names(judge: EmpathyJudge, tmp_path: Path) -> tuple[str, str]:
    """Of the states of a clip, and of the hidden states of the layers below the last."""
    states = ClipStates(judge, DiskStore(tmp_path / "names"))
    return states.name(clip(1.0)), PairStates(judge, states, 3, "32-true")._lower


@pytest.fixture
def other(make_judge, backbone_folder, tmp_path) -> Callable[..., EmpathyJudge]:
    """A judge on the same weights, whose backbone is configured in another way."""

    def make(file: str, part: str | None, **values: Any) -> EmpathyJudge:
        folder = Path(shutil.copytree(backbone_folder, tmp_path / "other"))
        edit(folder / file, lambda config: (config if part is None else config[part]).update(values))
        return make_judge(backbone=str(folder))

    return make


@pytest.mark.parametrize(
    ("file", "part", "values", "both"),
    [
        ("processor_config.json", "feature_extractor", {"hop_length": 80}, True),
        ("processor_config.json", "feature_extractor", {"n_fft": 400}, True),
        ("config.json", "audio_config", {"activation_function": "relu"}, True),
        ("config.json", "audio_config", {"layer_norm_eps": 0.5}, True),
        ("config.json", "audio_config", {"scale_embedding": True}, True),
        ("config.json", "text_config", {"hidden_act": "relu"}, False),
        ("config.json", "text_config", {"rms_norm_eps": 0.5}, False),
    ],
)
def test_backbones_of_equal_weights_that_compute_something_else(file, part, values, both, other, make_judge, tmp_path):
    plain, changed = (names(judge, tmp_path) for judge in (make_judge(), other(file, part, **values)))
    assert changed[1] != plain[1]
    assert (changed[0] != plain[0]) == both  # the audio tower does not read the other parts


@pytest.mark.parametrize(
    ("file", "part", "values"),
    [
        ("config.json", None, {"_name_or_path": "/elsewhere", "transformers_version": "4.0.0", "architectures": None}),
        ("config.json", None, {"dtype": "bfloat16", "use_cache": False}),
        ("config.json", "audio_config", {"dropout": 0.3, "encoder_layerdrop": 0.1, "initializer_range": 0.5}),
        ("config.json", "text_config", {"attention_dropout": 0.5, "use_cache": False}),
        ("processor_config.json", "feature_extractor", {"processor_class": "Another"}),
    ],
)
def test_what_changes_no_state_changes_no_name(file, part, values, other, make_judge, tmp_path):
    assert names(other(file, part, **values), tmp_path) == names(make_judge(), tmp_path)


def test_a_judge_has_the_same_names_when_it_was_saved_loaded_and_exported(make_judge, dataset_folder, tmp_path):
    judge = make_judge()
    expected = names(judge, tmp_path)
    folder = saved(judge, tmp_path / "judge")
    assert names(load_any(folder).judge, tmp_path) == expected
    assert names(make_judge(LoraSettings(parts=[]), seed=2, pooling="attention"), tmp_path) == expected
    loaded = load_any(folder)
    dataset = PairDataset.load(dataset_folder)
    write_whole(loaded, tmp_path / "exported", "none", rated_set(loaded, dataset, "all"))
    assert names(load_any(tmp_path / "exported").judge, tmp_path)[0] == expected[0]


def test_scores_are_the_same_whatever_became_of_the_files(make_judge, pairs, tmp_path, capsys):
    judge, folder = make_judge(), tmp_path / "kept"

    def scores() -> np.ndarray:
        found = Predictor(judge, 4, store=DiskStore(folder)).predict(pairs)
        return np.array([result.score.tolist() for _, result in found])

    plain = scores()
    files = {path: path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))}
    assert len(files) > 6
    contents = list(files.values())
    capsys.readouterr()
    for spoilt in (
        [data[: len(data) // 2] + b"\x00" * (len(data) - len(data) // 2) for data in contents],
        contents[1:] + contents[:1],
    ):
        for path, data in zip(files, spoilt, strict=True):
            path.write_bytes(data)
        np.testing.assert_array_equal(scores(), plain)
        assert capsys.readouterr().err.count("cannot be used") == 1
        assert all(path.stem in DiskStore(folder) for path in files)
        assert capsys.readouterr().err == ""


def test_states_that_are_not_finite_are_not_kept(make_judge, tmp_path):
    judge = make_judge()
    states = ClipStates(judge, DiskStore(tmp_path))
    (encoded,) = judge.encode_clips([judge.decode(clip(1.0))])
    states.put(clip(1.0), [encoded[0]._replace(states=encoded[0].states * float("nan"))])
    assert clip(1.0) not in states
    states.put(clip(1.0), encoded)
    assert torch.equal(states.get(clip(1.0))[0].states, encoded[0].states)
