"""Several datasets as one: whose is whose stays known, equal audio is stored once, no name is taken for another. On the
common scale ends meet ends, good meets good, and steps stay only where they are true."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import soundfile
import yaml
from empathy_judge.cli import main
from empathy_judge.commands.data import _dataset_lines
from empathy_judge.data_modules.audio import audio_hash, decode
from empathy_judge.data_modules.audit import split_columns
from empathy_judge.data_modules.combine import combine, parse_renames
from empathy_judge.data_modules.errors import DataError, UserError
from empathy_judge.data_modules.ratings import PREFERENCE_COLUMNS, RATING_COLUMNS, Dimension, onto_first_scale
from empathy_judge.data_modules.schema import DatasetCard, PairDataset, write_dataset, write_splits

from ..conftest import RATE, output_of, tone

SEVEN = Dimension("empathy", 1, 7, 1)
FIVE = Dimension("empathy", 1, 5, 1)
RUDE = Dimension("rudeness", 0, 1, higher_is_better=False)
Make = Callable[..., PairDataset]


def clip(folder: Path, hertz: int) -> str:
    """A tone; equal frequencies are equal bytes."""
    soundfile.write(folder / f"{hertz}.wav", tone(0.2, hertz, 0.3), RATE)
    return f"{hertz}.wav"


@pytest.fixture
def make(tmp_path) -> Make:
    """Makes a dataset of three pairs ``p0`` to ``p2`` of one context; tones of the responses differ by `shift` Hz."""

    def make(
        name: str,
        ratings: list[tuple[str, str, str, float]],
        dimensions: tuple[Dimension, ...] = (FIVE,),
        preferences: list[tuple[Any, ...]] | None = None,
        shift: int = 0,
        embed: bool = False,
        tags: dict[str, str] | None = None,
        **card: Any,
    ) -> PairDataset:
        folder = tmp_path / name
        folder.mkdir()
        paths = [clip(folder, 200), *(clip(folder, 300 + 10 * n + shift) for n in range(3))]
        audio: list[Any] = [(folder / path).read_bytes() for path in paths] if embed else paths
        pairs = [
            {
                "pair_id": f"p{n}", "group_id": f"g{n}", "system_id": f"s{n % 2}", "response_speaker": None,
                "context_audio": [{"role": "user", "audio": audio[0]}], "response_audio": audio[1 + n],
                "language": "en", "situation": "late", "tags": tags,
            }
            for n in range(3)
        ]  # fmt: skip
        write_dataset(
            folder,
            DatasetCard(name, dimensions, **{"source": f"{name}'s", "licence": "CC0", **card}),
            pd.DataFrame(pairs),
            pd.DataFrame(ratings, columns=list(RATING_COLUMNS)),
            None if preferences is None else pd.DataFrame(preferences, columns=list(PREFERENCE_COLUMNS)),
        )
        return PairDataset.load(folder)

    return make


@pytest.fixture
def lab(make) -> PairDataset:
    ratings = [("p0", "r", "empathy", 4.0), ("p1", "r", "empathy", 2.0), ("p0", "q", "empathy", 5.0)]
    return make("lab", ratings, preferences=[("p0", "p1", "r", "empathy", 1.0)])


@pytest.fixture
def crowd(make) -> PairDataset:
    ratings = [("p0", "r", "warmth", 7.0), ("p2", "r", "warmth", 4.0), ("p2", "r", "rudeness", 0.25)]
    warmth = Dimension("warmth", 1, 7, 1)
    return make("crowd", ratings, (warmth, RUDE), shift=10, embed=True, synthetic=True, tags={"cue": "sad"})


def rows(table: pd.DataFrame | None) -> list[tuple[Any, ...]]:
    return sorted(table.itertuples(index=False, name=None))


def test_two_campaigns_become_one_dataset(lab, crowd, tmp_path):
    both = combine([lab, crowd], tmp_path / "both", renames={"crowd": {"warmth": "empathy"}})
    assert [pair.pair_id for pair in both.pairs] == [f"{name}/p{n}" for name in ("lab", "crowd") for n in range(3)]
    last = both.pairs[5]
    assert (last.group_id, last.system_id, last.response_speaker) == ("crowd/g2", "crowd/s0", None)
    assert (last.situation, last.language, last.tags) == ("late", "en", (("campaign", "crowd"), ("cue", "sad")))
    assert both.pairs[0].tags == (("campaign", "lab"),)
    assert both.card.dimensions == (FIVE, RUDE)
    assert rows(both.ratings) == [
        ("crowd/p0", "crowd/r", "empathy", 5.0),
        ("crowd/p2", "crowd/r", "empathy", 3.0),
        ("crowd/p2", "crowd/r", "rudeness", 0.25),
        ("lab/p0", "lab/q", "empathy", 5.0),
        ("lab/p0", "lab/r", "empathy", 4.0),
        ("lab/p1", "lab/r", "empathy", 2.0),
    ]
    assert rows(both.preferences) == [("lab/p0", "lab/p1", "lab/r", "empathy", 1.0)]
    assert both.card.synthetic
    assert (both.card.name, both.card.licence, both.card.source) == ("both", "CC0", "lab: lab's; crowd: crowd's")
    assert f"lab (3 pairs, {lab.card.content_hash[:12]})" in both.card.description
    assert "empathy of crowd: 1 to 7 in steps of 1 mapped onto 1 to 5 in steps of 1." in both.card.description


@pytest.mark.parametrize("embed", [False, True])
def test_equal_audio_is_stored_once_and_every_clip_sounds_as_before(lab, crowd, tmp_path, embed):
    """A context that all pairs share, three responses each, of which two are in both datasets: 5 clips."""
    both = combine([lab, crowd], tmp_path / "both", embed_audio=embed, shard_rows=4)
    files = [] if embed else list((tmp_path / "both" / "audio").iterdir())
    assert len(files) == (0 if embed else 5)
    assert both.fingerprints == {
        f"{part.card.name}/{key}": value for part in (lab, crowd) for key, value in part.fingerprints.items()
    }
    for pair, was in zip(both.pairs, (*lab.pairs, *crowd.pairs), strict=True):
        assert [turn.role for turn in pair.context] == ["user"]
        np.testing.assert_array_equal(decode(pair.response, RATE), decode(was.response, RATE))
        assert audio_hash(pair.context[0].audio) == both.fingerprints["lab/p0"][0]
    assert sorted(path.name for path in (tmp_path / "both").glob("pairs*")) == ["pairs" if embed else "pairs.parquet"]


def test_names_are_kept_in_the_columns_that_are_shared(lab, crowd, tmp_path):
    both = combine([lab, crowd], tmp_path / "both", names=["a", "b"], shared=("system_id", "rater_id"))
    assert {pair.system_id for pair in both.pairs} == {"s0", "s1"}
    assert {pair.group_id for pair in both.pairs} == {f"{name}/g{n}" for name in "ab" for n in range(3)}
    assert set(both.ratings["rater_id"]) == {"r", "q"}
    with pytest.raises(UserError, match=r"shared column 'pair_id'; expected group_id, context_speaker, response_spea"):
        combine([lab, crowd], tmp_path / "other", shared=("pair_id",))


def test_a_scale_without_its_steps_says_so(make, tmp_path):
    five = make("five", [("p0", "r", "empathy", 4.0)])
    seven = make("seven", [("p0", "r", "empathy", 2.0)], (SEVEN,))
    both = combine([five, seven], tmp_path / "both")
    assert both.card.dimensions == (Dimension("empathy", 1, 5),)
    assert both.ratings["score"].tolist() == pytest.approx([4.0, 1 + 4 / 6])
    assert "empathy has no steps any more: scores fall between steps of 1." in both.card.description
    turned = combine([seven, five], tmp_path / "turned")
    assert turned.card.dimensions == (Dimension("empathy", 1, 7),)
    assert turned.ratings["score"].tolist() == [2.0, 5.5]


def split_by(dataset: PairDataset, *columns: str) -> PairDataset:
    """One pair each in train, validation and test, and the note by what."""
    write_splits(dataset.root, ["train", "validation", "test"])
    note = {"by": list(columns), "split_hash": PairDataset.load(dataset.root).split_hash()}
    (Path(str(dataset.root)) / "split.yaml").write_text(yaml.safe_dump(note))
    return PairDataset.load(dataset.root)


@pytest.fixture
def apart(make) -> PairDataset:
    """Shares no response with the others."""
    return make("apart", [("p0", "r", "warmth", 7.0)], (Dimension("warmth", 1, 7, 1),), shift=100)


def test_splits_stay_where_all_were_made_alike(lab, apart, tmp_path):
    assert "plits" not in combine([lab, apart], tmp_path / "unsplit").card.description
    parts = [split_by(lab, "system_id", "response_speaker"), split_by(apart, "response_speaker", "system_id")]
    both = combine(parts, tmp_path / "both")
    assert [pair.split for pair in both.pairs] == ["train", "validation", "test"] * 2
    assert split_columns(both) == ("system_id", "response_speaker")
    assert both.card.content_hash == combine([lab, apart], tmp_path / "again").card.content_hash


def test_splits_are_dropped_where_they_would_leak_or_are_called_or_made_differently(lab, crowd, apart, tmp_path):
    def check_dropped(parts: list[PairDataset], why: str, **options: Any) -> None:
        made = combine(parts, tmp_path / "made", overwrite=True, **options)
        assert {pair.split for pair in made.pairs} == {None}
        assert f"Splits were dropped{why}" in made.card.description
        assert split_columns(made) == ("group_id",)

    check_dropped([split_by(lab, "system_id", "response_speaker"), crowd], ": crowd had none.")
    why = ", they were made differently: lab by system_id, response_speaker; crowd by group_id."
    check_dropped([PairDataset.load(lab.root), split_by(crowd, "group_id")], why)
    parts = [split_by(part, "system_id") for part in (lab, crowd, apart)]
    check_dropped(parts[:2], ", some things would be in several: 2 of response_clip.")
    check_dropped(parts[::2], ", some things would be in several: 1 of system_id.", shared=["system_id"])
    write_splits(apart.root, ["fold1", "fold2", "fold3"])
    for part in (lab, apart):
        (Path(str(part.root)) / "split.yaml").unlink()
    why = ", they are called differently: lab has test, train, validation; apart has fold1, fold2, fold3."
    check_dropped([PairDataset.load(lab.root), PairDataset.load(apart.root)], why)


def test_by_what_it_was_split_is_said_in_the_folder_as_it_appears(lab, apart, tmp_path, monkeypatch):
    both = [split_by(lab, "system_id"), split_by(apart, "system_id")]

    def killed(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PairDataset, "load", killed)
        with pytest.raises(KeyboardInterrupt):
            combine(both, tmp_path / "both")
    assert split_columns(PairDataset.load(tmp_path / "both")) == ("system_id",)


def test_a_clip_that_was_changed_after_the_import_is_refused(lab, crowd, tmp_path):
    (tmp_path / "lab" / clip(tmp_path / "lab", 999)).replace(tmp_path / "lab" / "310.wav")
    with pytest.raises(DataError, match=r"lab, pair 'p1': .*310.wav: the content is not what was imported"):
        combine([lab, crowd], tmp_path / "both")
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ["a"]}, "1 name for 2 datasets; expected one for each"),
        ({"names": ["a", "a"]}, "dataset name 'a'; expected distinct ones without '/', as --names gives them"),
        ({"names": ["a", "b/c"]}, "dataset name 'b/c'; expected distinct ones"),
        ({"renames": {"web": {"warmth": "empathy"}}}, "rename in dataset 'web'; expected lab, crowd"),
        ({"renames": {"crowd": {"heat": "empathy"}}}, "crowd: no dimension 'heat'; it has warmth, rudeness"),
        ({"renames": {"crowd": {"warmth": "rudeness"}}}, "crowd: dimensions .*; expected at least one, each name once"),
        ({"renames": {"crowd": {"warmth": "a b"}}}, "dimension name 'a b'; expected letters"),
    ],
)
def test_names_that_cannot_be_used_are_refused(lab, crowd, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        combine([lab, crowd], tmp_path / "both", **options)
    assert not (tmp_path / "both").exists()


def test_dimensions_can_change_names_with_each_other(crowd, tmp_path):
    swapped = combine(
        [crowd], tmp_path / "swapped", renames=parse_renames(["crowd:warmth=rudeness", "crowd:rudeness=warmth"])
    )
    assert [dimension.name for dimension in swapped.card.dimensions] == ["rudeness", "warmth"]
    assert set(zip(swapped.ratings["dimension"], swapped.ratings["score"], strict=True)) == {
        ("rudeness", 7.0),
        ("rudeness", 4.0),
        ("warmth", 0.25),
    }
    with pytest.raises(UserError, match="--rename 'warmth=empathy': expected NAME:OLD=NEW"):
        parse_renames(["warmth=empathy"])
    with pytest.raises(UserError, match="--rename 'a:emp=y': emp is x already; expected each name once"):
        parse_renames(["a:emp=x", "a:emp=y"])


def test_the_command(lab, crowd, tmp_path, capsys):
    out = tmp_path / "both"
    words = ["combine", str(lab.root), str(crowd.root), "--out", str(out)]
    facts = json.loads(output_of(capsys, *words, "--rename", "crowd:warmth=empathy", "--shared", "rater_id", "--json"))
    counts = {name: facts[name] for name in ("pairs", "ratings", "raters", "preferences", "pairs_without_rating")}
    assert counts == {"pairs": 6, "ratings": 6, "raters": 2, "preferences": 1, "pairs_without_rating": 2}
    assert facts["content_hash"] == PairDataset.load(out).card.content_hash
    assert main([*words, "--names", "a", "b"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {out}: exists; expected a folder that does not exist ye")
    described = {**facts, "description": "lab: Columns not imported: age."}
    assert "--column" not in "".join(_dataset_lines(described))  # combine has no such option
    assert "--column" in "".join(_dataset_lines({**described, "skipped": None}))
    with pytest.raises(SystemExit):
        main(["combine", "--help"])
    assert "example: empathy-judge combine lab crowd" in capsys.readouterr().out


# ---------------------------------------------------------------- scores of one quality from several scales


def onto(first: Dimension, own: Dimension, scores: list[float]) -> tuple[Dimension, list[float]]:
    scale, (_, mapped) = onto_first_scale([first, own], [np.array([first.minimum]), np.array(scores)])
    return scale, mapped.tolist()


@pytest.mark.parametrize(
    ("own", "scores", "expected"),
    [
        (Dimension("empathy", 1, 7, 1), [1, 4, 7], [1, 3, 5]),
        (Dimension("empathy", 1, 5, 1, higher_is_better=False), [1, 2, 5], [5, 4, 1]),
        (Dimension("empathy", -0.3, 0.3, 0.15, higher_is_better=False), [-0.3, -0.15, 0.0, 0.15, 0.3], [5, 4, 3, 2, 1]),
        (Dimension("empathy", 0, 100), [0, 25, 75], [1, 2, 4]),
    ],
)
def test_a_step_stays_where_all_scores_are_on_it(own, scores, expected):
    assert onto(FIVE, own, scores) == (FIVE, expected)


def test_scores_on_a_step_are_the_same_numbers_in_all_parts():
    tenths = Dimension("empathy", 0, 0.7, 0.1)
    scale, mapped = onto(tenths, Dimension("empathy", 1, 8, 1), [1, 2, 3, 4, 5, 6, 7, 8])
    assert (scale, mapped) == (tenths, [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])


def test_a_scale_becomes_continuous_where_a_score_falls_between_its_steps():
    scale, mapped = onto(FIVE, Dimension("empathy", 1, 7, 1), [1, 2, 7])
    assert (scale, mapped) == (Dimension("empathy", 1, 5), [1, pytest.approx(1 + 2 / 3, abs=1e-12), 5])
    assert onto(FIVE, Dimension("empathy", 1, 5, 0.5), [1.5, 4]) == (Dimension("empathy", 1, 5), [1.5, 4])


def test_scores_of_the_same_range_go_onto_the_steps_that_remain():
    """Whatever they were stored in: nearly equal numbers would not tie."""
    tenths = Dimension("empathy", 0, 1, 0.1)
    odd = [0.1, 0.30000000000000004, 0.7, 0.699999, float(np.float32(0.9)), float(np.float16(0.6))]
    for own in (tenths, Dimension("empathy", 0, 1)):
        assert onto(tenths, own, odd) == (tenths, [0.1, 0.3, 0.7, 0.7, 0.9, 0.6])
    between = Dimension("empathy", 0, 1, 0.05)
    assert onto(tenths, between, [float(np.float32(0.15)), 0.2]) == (Dimension("empathy", 0, 1), [0.15, 0.2])
    low = Dimension("empathy", 0, 1, higher_is_better=False)
    assert onto(low, low, odd) == (low, odd)


def test_no_score_leaves_the_scale_by_rounding():
    first, own = Dimension("empathy", 0.1, 0.7), Dimension("empathy", 0.3, 1.1)
    for direction in (True, False):
        turned = Dimension("empathy", 0.3, 1.1, higher_is_better=direction)
        _, mapped = onto(first, turned, [own.minimum, own.maximum, 0.7])
        assert min(mapped) == 0.1
        assert max(mapped) == 0.7
        assert mapped[2] == pytest.approx(0.4)
