"""Scores are put onto the steps of their scale, whatever type of number they were stored in."""

from __future__ import annotations

import itertools
import json
from decimal import Decimal
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from datasets.table import InMemoryTable
from empathy_judge import PairDataset, dataset_from_frames
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.importers import hugging_face, label_studio, table
from empathy_judge.data_modules.importers.assemble import assemble
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.steps import as_written, on_scale, same_scores
from empathy_judge.eval.agreement_table import measure_agreement
from empathy_judge.eval.frame import read_frame

from .builders import parsed

TENTHS = Dimension("w", 1, 5, 0.1)
ALL_TENTHS = [float(f"{number / 10:.1f}") for number in range(10, 51)]
STORED = [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(5, 2)]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("low", "high", "step", "decimals"),
    [(1, 5, 0.1, 1), (0, 1, 0.05, 2), (-0.3, 0.3, 0.15, 2), (1, 7, 1, 0), (0, 10, 0.25, 2), (1.1, 3.3, 0.2, 1)],
)
def test_every_step_in_every_type(kind, low, high, step, decimals):
    steps = [float(f"{low + number * step:.{decimals}f}") for number in range(round((high - low) / step) + 1)]
    stored = np.array(steps).astype(kind).astype(np.float64)
    assert on_scale(stored, low, high, step).tolist() == steps


def test_what_is_between_steps_or_outside():
    wrong = [1.15, 1.0999, 1.1001, 0.9, 5.1, 5.001, np.inf, -np.inf, np.nan, 1e300]
    assert np.isnan(on_scale(np.array(wrong), 1, 5, 0.1)).all()
    assert on_scale(np.array([1.1 + 2e-16, 1.099999, 5.000001, 0.1 + 0.2 + 1]), 1, 5, 0.1).tolist() == [
        1.1,
        1.1,
        5,
        1.3,
    ]
    assert on_scale(np.array([0.33333, 0.66667]), 0, 1, 0.33333).tolist() == [1 / 3, 2 / 3]


def test_a_type_that_cannot_tell_the_steps_apart_is_refused():
    """Near 100, float16 has steps of 0.0625: 99.83 and 99.84 are the same number there."""
    assert np.isnan(on_scale(np.array([np.float16(99.83)], np.float64), 0, 100, 0.01)).all()
    assert on_scale(np.array([np.float32(99.83)], np.float64), 0, 100, 0.01).tolist() == [99.83]


def test_without_steps_scores_stay_as_they_are():
    scores = np.array([float(np.float32(1.1)), 0.1 + 0.2, -0.0, 0.0])
    assert repr(on_scale(scores, -1, 5, None).tolist()) == repr(scores.tolist())
    ends = np.array([np.float32(1.1), np.float16(0.1), 1.11, np.nan, np.inf])  # 1.10000002 and 0.09998
    np.testing.assert_array_equal(on_scale(ends, 0.1, 1.1, None), [1.1, 0.1, np.nan, np.nan, np.nan])


def test_scores_of_an_unknown_scale():
    narrow = [float(np.float32(1.1)), float(np.float16(2.3)), float(np.float32(3.7))]
    given = np.array([1.1, *narrow, 2.3, 3.0, 3.0001, np.nan, 0.3, 0.1 + 0.2])
    expected = [1.1, 1.1, 2.3, narrow[2], 2.3, 3.0, 3.0001, np.nan, 0.3, 0.1 + 0.2]
    np.testing.assert_array_equal(same_scores(given), expected)
    assert same_scores(np.array([])).tolist() == []


def test_a_number_of_few_digits_was_written_so(tmp_path):
    """In float16, 70.1 is 70.125, 65.4 is 65.375, and 500.4 is 500.5: means of eight ratings on a scale to 100."""
    scores = [70.1, 70.125, 65.4, 65.375, 500.4, 500.5, 16777217.0, 16777216.0]
    assert same_scores(np.array(scores)).tolist() == scores
    rows = [f"i{number},a,w,{score}" for number, score in enumerate(scores)]
    (tmp_path / "table.csv").write_text("\n".join(["item,annotator,dimension,score", *rows]) + "\n")
    assert read_frame(tmp_path / "table.csv", {}).rows["score"].tolist() == scores
    np.testing.assert_array_equal(on_scale(np.array(scores[:4]), 0, 100, 0.1), [70.1, np.nan, 65.4, np.nan])
    assert np.isnan(on_scale(np.array([-0.125, 70.125]), 0, 70.1, None)).all()


@pytest.mark.parametrize(("kind", "digits"), [(np.float32, 6), (np.float16, 3)])
def test_numbers_of_narrow_types_are_as_they_were_written(kind, digits):
    written = [float(f"{number}e{2 - digits}") for number in range(0, 10**digits, 7 ** (digits - 2))]
    assert as_written(np.array(written, kind)).tolist() == written
    third = float(kind(1 / 3))
    others = [2.03125, 1.0009765625, 65504.0, third]
    assert as_written(np.array(others, kind)).tolist() == others
    odd = as_written(np.array([np.nan, np.inf, -np.inf, -0.0], kind))
    assert np.isnan(odd[0])
    assert odd[1:].tolist() == [np.inf, -np.inf, 0.0]


@pytest.mark.parametrize("kind", STORED)
def test_columns_of_one_type_measure_the_same(tmp_path, kind):
    """Without a scale, and no other score says what a number was: means tie only where scores are exact."""
    scores = (np.random.default_rng(0).integers(10, 50, (30, 4)) / 10).ravel()
    rows = {"item": np.repeat([f"i{n}" for n in range(30)], 4), "annotator": list("abcd") * 30, "dimension": "w"}
    plain = pa.Table.from_pandas(pd.DataFrame({**rows, "score": scores}), preserve_index=False)
    narrow = [Decimal(str(s)) for s in scores] if pa.types.is_decimal(kind) else scores
    column = pa.array(scores.astype(np.float16)) if kind == pa.float16() else pa.array(narrow, kind)
    found = []
    for number, one in enumerate((plain, plain.set_column(3, "score", column))):
        pq.write_table(one, tmp_path / f"{number}.parquet")
        frame = read_frame(tmp_path / f"{number}.parquet", {})
        assert frame.rows["score"].tolist() == scores.tolist()
        found.append(measure_agreement(frame, [], resamples=0).as_json()["dimensions"])
    assert repr(found[0]) == repr(found[1])


# ---------------------------------------------------------------- every way into a dataset


@pytest.fixture
def folder(tmp_path) -> Path:
    for number in range(41):
        samples = 0.5 * np.sin(np.arange(2_000) * (0.1 + 0.01 * number))
        soundfile.write(tmp_path / f"{number}.wav", samples, 16_000)
    return tmp_path


def stored(kind: pa.DataType) -> pa.Table:
    scores = ALL_TENTHS
    if kind == pa.float16():
        narrow = pa.array(np.array(scores, np.float16))
    else:
        narrow = pa.array([Decimal(str(s)) for s in scores] if pa.types.is_decimal(kind) else scores, kind)
    names = {"pair_id": [str(n) for n in range(41)], "response_audio": [f"{n}.wav" for n in range(41)]}
    return pa.table({**names, "w:a": narrow, "w:b": pa.array(scores, pa.float64())})


def check(dataset: PairDataset) -> None:
    scores = dataset.ratings.pivot(index="pair_id", columns="rater_id", values="score").loc[map(str, range(41))]
    assert scores["a"].tolist() == ALL_TENTHS
    assert scores["b"].tolist() == ALL_TENTHS
    again = PairDataset.load(dataset.root)
    assert again.ratings["score"].tolist() == dataset.ratings["score"].tolist()


@pytest.mark.parametrize("kind", STORED, ids=str)
def test_tables_and_hugging_face(folder, hub_cache, kind):
    pq.write_table(stored(kind), folder / "t.parquet")
    words = ["--dimension", "w=1:5:0.1"]
    one = assemble(table.read(folder / "t.parquet", parsed(table, words)), folder / "one")
    check(one)
    datasets.Dataset(InMemoryTable(stored(kind))).save_to_disk(str(folder))
    two = assemble(hugging_face.read(folder, parsed(hugging_face, words)), folder / "two")
    check(two)
    assert one.card.content_hash == two.card.content_hash


@pytest.mark.parametrize(
    "kind", ["float16", "float32", "Float32", "float32[pyarrow]", "decimal128(5, 2)[pyarrow]", object]
)
def test_frames(folder, kind):
    if kind is object:
        scores = pd.Series([np.float32(score) for score in ALL_TENTHS], dtype=object)
    elif str(kind).startswith("decimal"):
        arrow = pd.ArrowDtype(pa.decimal128(5, 2))
        scores = pd.Series([Decimal(str(score)) for score in ALL_TENTHS], dtype=arrow)
    else:
        scores = pd.Series(ALL_TENTHS).astype(str(kind))
    pairs = pd.DataFrame(
        {"pair_id": map(str, range(41)), "response_audio": [str(folder / f"{n}.wav") for n in range(41)]}
    )
    ratings = pd.DataFrame({"pair_id": pairs["pair_id"], "w:a": scores, "w:b": ALL_TENTHS})
    check(dataset_from_frames(pairs, ratings, dimensions=[TENTHS], folder=folder / "made"))


def test_label_studio(folder):
    def result(score: float) -> list[dict[str, object]]:
        return [{"from_name": "w", "to_name": "x", "type": "number", "value": {"number": score}}]

    tasks = []
    for number, score in enumerate(float(np.float32(score)) for score in ALL_TENTHS):
        annotation = {"id": 1, "completed_by": 7, "result": result(score)}
        tasks.append({"id": number, "data": {"x": f"{number}.wav"}, "annotations": [annotation]})
    (folder / "export.json").write_text(json.dumps(tasks))
    words = ["--response", "x", "--dimension", "w=1:5:0.1"]
    read = label_studio.read(folder / "export.json", parsed(label_studio, words))
    assert read.ratings is not None
    assert read.ratings["score"].tolist() == ALL_TENTHS


def test_scores_beside_a_step_are_refused_with_their_place(folder):
    values = stored(pa.float32()).to_pandas().astype({"w:a": "float64"})
    values.loc[3, "w:a"] += 0.001
    values.to_parquet(folder / "t.parquet")
    with pytest.raises(
        DataError, match=r"t\.parquet, row 4, column 'w:a': value 1\.30\d+; expected for w: 1 to 5 in steps"
    ):
        table.read(folder / "t.parquet", parsed(table, ["--dimension", "w=1:5:0.1"]))


# ---------------------------------------------------------------- what is counted


def nominal_alpha(scores: np.ndarray) -> float:
    """Krippendorff's alpha of complete ratings, shape (items, raters), from its definition: 1 - observed / expected."""
    observed = np.mean([x != y for row in scores for x, y in itertools.permutations(row, 2)])
    expected = np.mean([x != y for x, y in itertools.permutations(scores.ravel(), 2)])
    return float(1 - observed / expected)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_agreement_does_not_depend_on_the_type(tmp_path, kind):
    rng = np.random.default_rng(0)
    truth = np.round(rng.uniform(1, 5, 40), 1)
    noisy = np.round(np.clip(truth + rng.normal(0, 0.3, 40), 1, 5), 1)
    reports = []
    for name, own in (("wide", truth), ("narrow", truth.astype(kind).astype(np.float64))):
        columns = {"a": own, "b": truth, "c": noisy}
        rows = [(str(n), who, "w", s) for who, values in columns.items() for n, s in enumerate(values.tolist())]
        path = tmp_path / f"{name}.csv"
        pd.DataFrame(rows, columns=["item", "annotator", "dimension", "score"]).to_csv(path, index=False)
        frame = read_frame(path, {})
        scores = frame.rows.pivot(index="pair_id", columns="rater_id", values="score").to_numpy()
        assert nominal_alpha(scores) == nominal_alpha(np.column_stack([truth, truth, noisy]))
        (report,) = measure_agreement(frame, [], pairs=True, kappa_weights="ranks", resamples=20).as_json()[
            "dimensions"
        ]
        reports.append((report["people"], report["pairs"]))
    assert reports[0] == reports[1]
    assert reports[1][1][0]["linear_kappa"]["value"] == 1
