"""A small dataset in memory in which everything is known."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.audio import prosody
from empathy_judge.audio.decode import AudioSource, Clip, decode, probe
from empathy_judge.audio.espeak import Tone, Voice, restart, speak
from empathy_judge.data_modules.overview import inspect_dataset
from empathy_judge.data_modules.schema import DatasetCard, Dimension, Pair, PairDataset, Turn
from empathy_judge.data_modules.writing import write_dataset, write_splits
from empathy_judge.eval.checks import CHECKS
from empathy_judge.eval.evaluate import Results, evaluate
from empathy_judge.eval.inspection import inspection_facts
from empathy_judge.eval.judges import INTERVAL_COLUMNS, score_table
from empathy_judge.eval.leaderboard import Leaderboard
from empathy_judge.eval.pages.inspection import write_inspection_page
from empathy_judge.eval.report.dimension import CheckReport
from empathy_judge.eval.report.leaderboard import Board
from empathy_judge.eval.statistics.agreement import Statistic
from empathy_judge.scoring.score_table import ABSTAINED
from rich.console import Console

from ..conftest import encoded, tone

RATE = 8000
WARMTH = {"name": "warmth", "minimum": 1.0, "maximum": 5.0}
HOSTILE = "<script>alert('1')</script><img src=x onerror=alert(2)>\"&$x_{$"


class Page(HTMLParser):
    """Elements and text of a page; refuses tags that do not close.

    Attributes:
        source: The page.
        elements: Tag and attributes of each.
        raw: The text as it stands there.
        text: The text with one space wherever there are any.
    """

    VOID = frozenset({"meta", "br", "link", "img", "input"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source, self.raw = source, ""
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._open: list[str] = []
        self.feed(source)
        assert self._open == []
        self.text = re.sub(r"\s+", " ", self.raw)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.raw += data + " "

    @property
    def tags(self) -> list[str]:
        """Of all elements."""
        return [tag for tag, _ in self.elements]

    def all(self, tag: str) -> list[dict[str, str]]:
        """Attributes of the elements of a tag."""
        return [attributes for name, attributes in self.elements if name == tag]

    def assert_alone(self) -> None:
        """Refuses scripts, handlers, and addresses outside the page and its audio."""
        assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(self.tags)
        ids = {attributes["id"] for _, attributes in self.elements if "id" in attributes}
        for _, attributes in self.elements:
            assert not any(name.startswith("on") for name in attributes)
            for name in ("src", "href", "xlink:href", "action", "poster"):
                address = attributes.get(name, "#")
                own = address == "#" or address.removeprefix("#") in ids
                assert own or address.startswith(("audio/clip-", "data:audio/"))
        assert "url(http" not in self.source
        assert "@import" not in self.source


def long_table(scores: Mapping[str, np.ndarray], dimension: str, **columns: Any) -> pd.DataFrame:
    """As `frame.read_frame` takes it: what each annotator gives to the items i0, i1, ..."""
    parts = []
    for name, own in scores.items():
        items = [f"i{item}" for item in range(len(own))]
        parts.append(pd.DataFrame({"item": items, "annotator": name, "dimension": dimension, "score": own, **columns}))
    return pd.concat(parts, ignore_index=True)


def statistic(value: float | None, low: float | None, high: float | None, reason: str | None = None) -> Statistic:
    """Of 60 items."""
    return Statistic(value, low, high, 60, reason=reason)


def assert_near(found: Statistic, value: float, **tolerance: float) -> None:
    """A statistic has a value, and an interval around it."""
    assert found.value == pytest.approx(value, **tolerance)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high


def check_of(name: str, left: Statistic, drop: Statistic, *, p95: float = 1.2, n: int = 60) -> CheckReport:
    """A listening check, as it stands in a report: what is left of the Spearman, and what it lost."""
    return CheckReport(
        expects=CHECKS[name].expects,
        tolerance=CHECKS[name].tolerance,
        spearman=left,
        drop=drop,
        mean_change=0.5,
        p95_change=p95,
        judge_sd=0.8,
        n=n,
        failed={},
    )


def dataset_of(pairs: Sequence[Pair], rows: Sequence[tuple[Any, ...]], *dimensions: Dimension) -> PairDataset:
    """Pairs in memory, and rows of ratings: pair, rater, dimension, score."""
    card = DatasetCard("made", dimensions, "made for a test", "CC0-1.0", True, content_hash="c" * 64)
    ratings = pd.DataFrame(rows, columns=pd.Index(["pair_id", "rater_id", "dimension", "score"]))
    return PairDataset(Path("made"), card, tuple(pairs), ratings)


def tone_clip(tone: float, samples: int = 800) -> Clip:
    """A clip whose sound is its level: tone / 10 throughout."""
    return Clip(np.full(samples, tone / 10, dtype=np.float32), RATE)


def tone_of(clip: object) -> float:
    """The tone of a clip made by `tone_clip`; silence has tone 0."""
    assert isinstance(clip, Clip)
    return round(float(clip.samples[0]) * 10, 3)


def true_score(context: float, response: float) -> float:
    """What people would say: the fit of the tones, and some of the response tone itself. Between 1 and 5."""
    return 3.5 - abs(context - response) + 0.25 * response


class ToneJudge:
    """Knows the rule; without a context it assumes tone 2. `noise` is fixed per pair."""

    name = "tone judge"
    only_given: str | None = None

    def __init__(self, noise: float = 0.0, dimensions: tuple[str, ...] = ("empathy",)) -> None:
        self.dimensions = dimensions
        self._noise = noise

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        scores = [[self.one(pair)] * len(self.dimensions) for pair in pairs]
        return score_table(pairs, self.dimensions, np.array(scores).reshape(len(pairs), -1))

    def one(self, pair: Pair) -> float:
        context = tone_of(pair.context[-1].audio) if pair.context else 2.0
        noise = np.random.default_rng(int(pair.pair_id.rsplit("-", 1)[1])).normal()
        return true_score(context, tone_of(pair.response)) + self._noise * noise


TEXTS = ("The bus leaves at nine.", "I wrote it down for you.", "We can look at it on Monday.")


@cache
def spoken_pairs() -> tuple[Pair, ...]:
    """Three responses to each of ten contexts, of many ranges of pitch and levels; words and tone are drawn apart."""
    restart()  # whatever was spoken before
    rng = np.random.default_rng(0)

    def said(voice: Voice) -> tuple[Clip, str]:
        text = TEXTS[rng.integers(3)]
        tone = Tone(range=rng.uniform(0, 2.5), rate=rng.integers(150, 220), level=rng.uniform(-34, -20))
        return Clip(*speak(text, voice, tone)), text

    found = []
    for group in range(10):
        voice = Voice("en-us", "m", 105, 1.0) if group % 2 else Voice("en", "f", 200, 1.16)
        context, asked = said(voice)
        for member in range(3):
            response, answered = said(voice)
            turns, texts = (Turn("user", context),), {"context_text": asked, "response_text": answered}
            found.append(Pair(f"pair-{group}-{member}", response, turns, None, f"group-{group}", **texts))
    return tuple(found)


@cache
def _prosody(samples: bytes) -> prosody.Prosody:
    return prosody.summarise(prosody.track(np.frombuffer(samples, np.float32)))


def prosody_of(source: AudioSource) -> prosody.Prosody:
    """Its prosody, measured once for each sound."""
    return _prosody(decode(source, prosody.RATE).tobytes())


def pitch_range(source: AudioSource) -> float:
    """In semitones; 0 without a pitch, and at most 12."""
    return min(float(np.nan_to_num(prosody_of(source).pitch_range)), 12.0)


def printed_at(width: int, views: Iterable[Any]) -> str:
    """What a terminal of this width shows of tables and sentences."""
    console = Console(width=width, record=True, file=io.StringIO())
    for view in views:
        console.print(view, markup=False, soft_wrap=isinstance(view, str))
    return console.export_text()


class AnyJudge:
    """Its table of scores is what a function makes of the pairs."""

    only_given: str | None = None

    def __init__(self, score: Callable[[Sequence[Pair]], pd.DataFrame], name="judge", dimensions=("empathy",)) -> None:
        self.score, self.name, self.dimensions = score, name, dimensions


def sure_judge(judge: Any, halves: dict[str, float], errors: tuple[float, float]) -> AnyJudge:
    """Wraps a judge; is unsure of every second pair, and gives intervals of a width that depends on the setting."""

    def score(pairs: Sequence[Pair]) -> pd.DataFrame:
        table = judge.score(pairs)
        half = table["pair_id"].map({pair.pair_id: halves[pair.setting or ""] for pair in pairs})
        odd = table["pair_id"].str.extract(r"(\d+)$")[0].astype(int) % 2
        columns: dict[str, Any] = {"uncertainty": np.where(odd, errors[1], errors[0])}
        for level, (low, high) in INTERVAL_COLUMNS.items():
            share = np.nan if level == 0.95 else 1.0 if level == 0.9 else 0.5
            columns |= {low: table["score"] - share * half, high: table["score"] + share * half}
        return table.assign(**columns, **{ABSTAINED: odd == 1})

    return AnyJudge(score, judge.name, judge.dimensions)


class MeasureJudge(AnyJudge):
    """Scores a pair by one measure; `seen` says how many pairs it was given each time."""

    def __init__(self, measure: Callable[[Pair], float], name: str = "judge") -> None:
        super().__init__(self._score, name)
        self.measure, self.seen = measure, list[int]()

    def _score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        self.seen.append(len(pairs))
        return score_table(pairs, self.dimensions, np.array([[self.measure(pair)] for pair in pairs]))


@pytest.fixture
def make_tone_judge() -> type[ToneJudge]:
    """`ToneJudge`; by default it gives exactly what a panel without noise gives."""
    return ToneJudge


@pytest.fixture
def make_dataset() -> Callable[..., PairDataset]:
    """Builds pairs of known tones, in groups that share a context, rated by a panel; noise 0 = exactly."""

    def make(
        n_groups: int = 20,
        per_group: int = 4,
        raters: int = 4,
        noise: float = 0.0,
        systems: int = 4,
        synthetic: bool = True,
        dimensions: tuple[str, ...] = ("empathy",),
    ) -> PairDataset:
        rng = np.random.default_rng(0)
        pairs, ratings = [], []
        for group in range(n_groups):
            context = float(rng.integers(1, 5))
            for member in range(per_group):
                number = group * per_group + member
                response = float(rng.integers(1, 5))
                pairs.append(
                    Pair(
                        pair_id=f"pair-{number}",
                        response=tone_clip(response, 400 + number),
                        context=(Turn("user", tone_clip(context, 800 + group)),),
                        situation=f"situation {group}",
                        group_id=f"group-{group}",
                        system_id=f"system-{member % systems}",
                        context_speaker=f"speaker-{group}",
                        setting="context_variant" if group % 2 else "tone_variant",
                        language="en",
                        split="train" if group < n_groups // 4 else "test",
                        context_text=f"said {group}",
                        response_text=f"answered {number}",
                    )
                )
                for dimension in dimensions:
                    for rater in range(raters):
                        score = true_score(context, response) + noise * rng.normal()
                        ratings.append((f"pair-{number}", f"rater-{rater}", dimension, score))
        dataset = dataset_of(pairs, ratings, *(Dimension(name, 0.0, 6.0) for name in dimensions))
        return replace(dataset, card=replace(dataset.card, name="tones", synthetic=synthetic))

    return make


def long_is_good(noise: float, sign: int = 1) -> MeasureJudge:
    """Scores the duration of the response, with noise."""
    rng = np.random.default_rng(1)
    return MeasureJudge(lambda pair: sign * (probe(pair.response).seconds * 20 + noise * rng.normal()), "long is good")


EMPATHY = Dimension("empathy", 1, 5, 1)


PAIRS, GROUPS, RATERS = 30, 6, 4


def pair_rows(context: bool = True) -> list[dict[str, Any]]:
    """Pairs with different responses, in groups that share a context."""
    return [
        {
            "pair_id": f"pair-{number:02d}",
            "group_id": f"group-{number % GROUPS}",
            "system_id": f"system-{number % 2}",
            "response_audio": encoded(tone(0.2 + number / 100, 300 + 10 * number, 0.4)),
            **({"context_audio": encoded(tone(0.2, 150 + number % GROUPS, 0.4))} if context else {}),
        }
        for number in range(PAIRS)
    ]


def rating_rows(dimensions: tuple[Dimension, ...] = (EMPATHY,), raters: int = RATERS) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for dimension in dimensions:
        for number in range(PAIRS):
            for rater in range(raters):
                share = np.clip((number % 5) / 4 + rng.normal(0, 0.25), 0, 1)
                steps = (dimension.maximum - dimension.minimum) / (dimension.step or 1e-6)
                score = dimension.minimum + round(share * steps) * (dimension.step or 1e-6)
                rows.append((f"pair-{number:02d}", f"rater-{rater}", dimension.name, min(score, dimension.maximum)))
    return pd.DataFrame(rows, columns=["pair_id", "rater_id", "dimension", "score"])


Inspected = Callable[..., Page]


@pytest.fixture
def inspected(tmp_path) -> Inspected:
    """Writes a dataset, inspects it, and reads the page back."""

    def inspect(
        pairs: list[dict[str, Any]] | None = None,
        ratings: pd.DataFrame | None = None,
        preferences: pd.DataFrame | None = None,
        dimensions: tuple[Dimension, ...] = (EMPATHY,),
        splits: list[str | None] | None = None,
        **card: Any,
    ) -> Page:
        data = tmp_path / "data"
        written = DatasetCard(
            **{"name": "tones", "source": "a test", "licence": "CC0-1.0", **card, "dimensions": dimensions}
        )
        frame = pd.DataFrame(pair_rows() if pairs is None else pairs, dtype=object)
        write_dataset(data, written, frame, rating_rows(dimensions) if ratings is None else ratings, preferences)
        if splits is not None:
            write_splits(data, splits)
        return write_page(data, tmp_path / "page")

    return inspect


def write_page(data: Path, out: Path) -> Page:
    dataset = PairDataset.load(data)
    write_inspection_page(dataset, inspect_dataset(PairDataset.load(data)), inspection_facts(dataset), out)
    return Page((out / "index.html").read_text(encoding="utf-8"))


@pytest.fixture
def two_dimensions(make_dataset, make_tone_judge) -> Results:
    """A judge of two dimensions, with four listening checks."""
    dimensions = ("empathy", "warmth")
    data = make_dataset(noise=0.4, dimensions=dimensions)
    checks = ("response_only", "gain", "low_pass", "flat_prosody")
    return evaluate(make_tone_judge(0.4, dimensions), data, split="test", checks=checks, resamples=50)


def table(means: dict[str, float], contexts: int = 24, seed: int = 0) -> pd.DataFrame:
    """Scores around the means of systems, on contexts that all answer."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(0, 0.5, contexts)
    rows = [
        {
            "pair_id": f"{system}/{n}", "group_id": f"c{n}", "system_id": system,
            "warmth": round(float(np.clip(mean + hard[n] + rng.normal(0, 0.2), 1, 5)), 6), "warmth_standard_error": 0.3,
            "warmth_label": "fair", "warnings": "unlike_training" if n == 0 else "", "seconds": 2.0, "status": "ok",
        }
        for system, mean in means.items()
        for n in range(contexts)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def only(found: Leaderboard) -> Board:
    """The board of its only dimension."""
    (board,) = found.report.boards
    return board


@pytest.fixture
def write_scores(tmp_path) -> Callable[..., str]:
    """Writes scores, with the summary that `score` leaves beside them unless the judge is None."""

    def write(rows: pd.DataFrame, name: str = "scores.csv", judge: str | None = "a" * 64, **facts: Any) -> str:
        path = tmp_path / name
        rows.to_csv(path, index=False)
        if judge is not None:
            identity = {"judge": judge, "backbone": "as in training"} | facts.pop("identity", {})
            out = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            said = {"dimensions": [WARMTH | facts], "weights": None, "three_way": {}}
            summary = {"identity": identity, "out": out, "judge": said}
            path.with_name(f"{name}.summary.json").write_text(json.dumps(summary))
        return str(path)

    return write
