"""How deep to read: the layer that carries the ratings is found."""

from __future__ import annotations

import json
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import torch
from empathy_judge.cli import main
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.eval import layers
from empathy_judge.eval.layers import ENCODER, LANGUAGE_MODEL
from empathy_judge.eval.pages.charts import ACCENT, MUTED
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.probe import without_adapters
from empathy_judge.models.settings import JudgeSettings

GROUPS, EACH = 40, 4


def test_the_fewest_layers_that_are_not_told_apart_from_the_best_are_named():
    rng = np.random.default_rng(0)
    human = rng.normal(size=GROUPS * EACH)
    draws = Resamples.draw(np.repeat(np.arange(GROUPS), EACH).astype(str), 300, 0)
    noise = {1: 4.0, 2: 4.0, 3: 0.30, 4: 0.29, 5: 4.0}
    predicted = [human + spread * rng.normal(size=len(human)) for spread in noise.values()]
    costs = np.linspace(0, 1, 6)
    rows, best = layers._rows(LANGUAGE_MODEL, 1, "empathy", costs, predicted, human, draws)
    assert [row["depth"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["cost"] for row in rows] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert best.value == max(row["spearman"] for row in rows)
    assert layers._enough(rows, LANGUAGE_MODEL) == 3
    assert layers._enough(rows, ENCODER) is None
    (panel,) = layers.picture({"rows": rows, "depth": 3, "encoder_ahead": []}).axes
    assert [line.get_color() for line in panel.lines] == [ACCENT, MUTED]


def test_a_ridge_predicts_groups_that_it_was_not_fitted_to():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 6))
    targets = np.stack([features[:, 0], rng.normal(size=200)], 1)
    groups = np.repeat(np.arange(50), 4).astype(str)
    targets[3, 0] = np.nan
    found = layers.left_out(features, targets, groups, 0)
    assert np.corrcoef(np.delete(found[:, 0], 3), np.delete(targets[:, 0], 3))[0, 1] > 0.99
    assert abs(np.corrcoef(found[:, 1], targets[:, 1])[0, 1]) < 0.3


def test_the_layer_that_carries_the_ratings_is_found(dataset_folder, backbone_folder, monkeypatch, tmp_path, capsys):
    """The backbone's own states, and in those of its third layer the ratings."""
    dataset = PairDataset.load(dataset_folder)
    means = dataset.mean_scores()
    of_pair = dict(zip((pair.pair_id for pair in dataset.pairs), means.to_numpy(), strict=True))
    own, read = layers.made_by, layers.ClipReader.inputs
    current: list[list[str]] = []

    def inputs(reader, pairs):
        for usable, made in read(reader, pairs):
            current[:] = [[pair.pair_id for pair in usable]]
            yield usable, made

    @contextmanager
    def pooled(*given):
        with own(*given) as made:
            yield made
        generator = torch.Generator().manual_seed(len(current[0]))
        for number, states in enumerate(made):
            states[:] = torch.randn(states.shape, generator=generator)
            if number == 2:
                ratings = torch.tensor(np.stack([of_pair[name] for name in current[0]]), dtype=states.dtype)
                states *= 0.01
                states[:, :2] = ratings
                states[:, 2] = 100.0  # so that the layer norm divides all pairs by the same

    monkeypatch.setattr(layers.ClipReader, "inputs", inputs)
    monkeypatch.setattr(layers, "made_by", pooled)
    out = tmp_path / "layers"
    words = ["layers", str(backbone_folder), "--data", str(dataset_folder), "--out", str(out), "--resamples", "200"]
    assert main(words) == 0
    found = json.loads((out / "layers.json").read_text())
    depth = found["depth"]
    line = f"A judge of depth {depth} (of 4) is not told apart from the best. In a recipe: judge: {{depth: {depth}}}"
    shown = capsys.readouterr().out
    assert line in shown
    starred = shown.replace("* worse than the best layer of its part (95 % interval of the difference above 0)", "")
    assert ("*" in starred) == (starred != shown) == any((row["behind_low"] or 0) > 0 for row in found["rows"])
    for dimension in ("empathy", "warmth"):
        own = [row for row in found["rows"] if row["part"] == LANGUAGE_MODEL and row["dimension"] == dimension]
        best = max(own, key=lambda row: row["spearman"])
        assert best["depth"] == 3
        assert best["spearman"] > 0.8
        assert best["behind"] == 0
    frame = pd.DataFrame(found["rows"])
    frame = frame[frame["part"] == LANGUAGE_MODEL]
    assert (sorted(set(frame["depth"])), frame["cost"].iloc[-1], set(frame["n"])) == ([1, 2, 3, 4], 1.0, {21})
    assert (out / "layers.png").stat().st_size > 10_000
    assert len((out / "layers.csv").read_text().splitlines()) == 1 + len(found["rows"])


@pytest.mark.parametrize("heard", [("empathy", "warmth"), ("empathy",), ()])
def test_an_encoder_that_is_ahead_of_the_language_model_is_what_the_head_should_read(
    dataset_folder, backbone_folder, monkeypatch, heard
):
    """A layer of the encoder holds the ratings of some dimensions, one of the language model the others; all else is
    noise."""
    dataset = PairDataset.load(dataset_folder)
    means = dataset.mean_scores()
    rng, own = np.random.default_rng(0), layers._read

    def read(judge, pairs, folder):
        usable, files = own(judge, pairs, folder)
        made = {name: rng.normal(size=states.shape) for name, states in files.items()}
        ratings = means.loc[[pair.pair_id for pair in usable]]
        for part in (ENCODER, LANGUAGE_MODEL):
            made[part][1] *= 1e-3
        for column, name in enumerate(("empathy", "warmth")):
            made[ENCODER if name in heard else LANGUAGE_MODEL][1][:, column] = ratings[name]
        return usable, made

    monkeypatch.setattr(layers, "_read", read)
    monkeypatch.setattr(layers, "_standardised", lambda states: np.nan_to_num(np.asarray(states, np.float64)))
    found = layers.measure_layers(str(backbone_folder), dataset, ("train", "validation", "test"), resamples=200)
    assert found["encoder_ahead"] == [*heard]
    *_, shown = layers.layer_views(found)
    both = f"judge: {{depth: {found['depth']}, head_input: {{audio: all_layers}}}}"
    depth_alone = f"judge: {{depth: {found['depth']}}}"
    expected = {2: "judge: {head_input: {audio: all_layers}}", 1: both, 0: depth_alone}[len(heard)]
    assert found["recipe"] == expected
    assert str(shown).endswith(f"In a recipe: {expected}")
    assert ("A judge of depth" in str(shown)) == (len(heard) < 2)
    marked = [line.get_label() for panel in layers.picture(found).axes for line in panel.lines if line.is_dashed()]
    assert marked == ([f"depth {found['depth']}"] * 2 if len(heard) < 2 else [])  # as the recipe


def test_what_a_layer_says_is_what_a_judge_of_that_depth_would_read(dataset_folder, backbone_folder):
    """The pooled state behind the norm: of a judge with so many layers, the one that its head reads."""
    data = PairDataset.load(dataset_folder)

    def judge_of(**settings) -> EmpathyJudge:
        own = without_adapters(JudgeSettings(backbone=str(backbone_folder), pooling="response_mean", **settings))
        return EmpathyJudge(own, data.card.dimensions).eval()

    pairs = data.pairs[:3]
    whole = judge_of(head_input=layers.HeadInputSettings("all_layers"))
    with torch.inference_mode():
        found = layers._of_layers(whole, whole.build_inputs(pairs))
        assert found[LANGUAGE_MODEL].shape[0] == 4
        assert found[ENCODER].shape[:2] == (whole.backbone.layer_sizes[0], 3)
        for depth in (1, 2, 4):
            judge = judge_of(depth=depth)
            inputs = judge.heard(judge.build_inputs(pairs))
            own = judge.pool_states(judge.backbone.hidden_states(inputs), inputs)
            expected = torch.nn.functional.layer_norm(own, own.shape[-1:])
            assert (found[LANGUAGE_MODEL][depth - 1] - expected).abs().max() < 1e-5


def test_what_no_pair_has_is_zero_without_a_warning(recwarn):
    states = np.array([[1.0, np.nan, np.nan, 2.0], [3.0, np.nan, 5.0, 2.0]])
    np.testing.assert_array_equal(layers._standardised(states), [[-1, 0, 0, 0], [1, 0, 0, 0]])
    assert not recwarn.list
