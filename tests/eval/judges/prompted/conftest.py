"""Pairs to ask about, and no key but those that a test sets."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import soundfile
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import DatasetCard, Pair, PairDataset, Turn
from empathy_judge.data_modules.writing import write_dataset
from empathy_judge.eval.judges.prompted.cache import AnswerCache
from empathy_judge.eval.judges.prompted.factory import PROVIDERS, open_prompted
from empathy_judge.eval.judges.prompted.judges import PairwiseJudge, PointwiseJudge
from empathy_judge.eval.judges.prompted.runner import Session
from empathy_judge.eval.judges.prompted.settings import parse_settings
from empathy_judge.eval.measurement import Asking

from .servers import Request, Response, in_turn, serve

EMPATHY = Dimension("vocal_empathy", 1, 5, 1)
OPENAI_PRICE = "price=2.5:32:10"
RUNNER = "empathy_judge.eval.judges.prompted.runner"
Pairs = Callable[[int], list[Pair]]


def clip(hertz: float, seconds: float = 0.2, rate: int = 8_000) -> Clip:
    """A quiet tone."""
    return Clip((0.1 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32), rate)


def same_sound(wav: bytes, source: Any) -> None:
    """The bytes of a WAV file hold the clip."""
    samples, rate = soundfile.read(io.BytesIO(wav))
    assert rate == source.rate
    np.testing.assert_allclose(samples, source.samples, atol=1 / 32_000)


@pytest.fixture
def make_pairs() -> Callable[[int], list[Pair]]:
    """Pairs with a context of their own each, and transcripts."""

    def make(count: int) -> list[Pair]:
        return [
            Pair(
                f"p{number}", clip(200 + number), (Turn("user", clip(1_000 + number)),),
                group_id=f"script number {number}", system_id="a system", context_text="I lost my job.",
                response_text="Oh no.",
            )
            for number in range(count)
        ]  # fmt: skip

    return make


@pytest.fixture(autouse=True)
def no_keys(monkeypatch) -> None:
    """Whoever runs the tests may have keys."""
    keys = (
        "OPENAI_API_KEY",
        "GEMINI_API_KEY",
        "GOOGLE_API_KEY",
        "EMPATHY_JUDGE_API_KEY",
        "HUME_API_KEY",
        "DASHSCOPE_API_KEY",
    )
    for name in (*keys, "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "DASHSCOPE_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(tmp_path) -> AnswerCache:
    """An empty one."""
    return AnswerCache(tmp_path / "answers.sqlite")


@pytest.fixture
def make_judge(store) -> Callable[..., PointwiseJudge | PairwiseJudge]:
    """Vendor, address of the server, settings -> judge."""

    def make(
        vendor: str,
        url: str,
        settings: Sequence[str] = ("samples=1",),
        budget: float | None = None,
        dimensions: Sequence[Dimension] = (EMPATHY,),
        base: str = "",
    ) -> PointwiseJudge | PairwiseJudge:
        base = f"{url}/v1" if vendor in ("openai", "qwen") else f"{url}{base}"
        parsed = parse_settings([f"base_url={base}", *settings], vendor)
        provider = PROVIDERS[vendor]("" if PROVIDERS[vendor].models else "a-model", parsed)
        session = Session(provider, parsed, store, budget)
        judge = PairwiseJudge if parsed.mode == "pairwise" else PointwiseJudge
        return judge(vendor, session, dimensions)

    return make


@pytest.fixture
def opened(store) -> Callable[..., Any]:
    """Spec, dataset, budget -> judge, whose examples come from the training split."""

    def make(spec: str, dataset: PairDataset, budget: float | None = None, dry_run: bool = False) -> Any:
        how = Asking(answers=store.path, budget=budget)
        return open_prompted(spec, dataset, ["train"], how, dry_run=dry_run)

    return make


@pytest.fixture(scope="module")
def rated_folder(tmp_path_factory) -> Path:
    """A dataset of 120 short pairs on disk."""
    folder = tmp_path_factory.mktemp("rated")
    pairs, ratings = [], []
    for number in range(120):
        for kind, hertz in (("context", 1_000), ("response", 200)):
            made = clip(hertz + number)
            soundfile.write(folder / f"{kind}{number}.wav", made.samples, made.rate)
        pairs.append(
            {
                "pair_id": f"p{number}", "group_id": f"g{number}", "context_audio": f"context{number}.wav",
                "response_audio": f"response{number}.wav", "split": "train" if number < 20 else "test",
            }
        )  # fmt: skip
        ratings += [(f"p{number}", f"r{rater}", EMPATHY.name, float(1 + (number + rater) % 5)) for rater in range(3)]
    columns = ["pair_id", "rater_id", "dimension", "score"]
    card = DatasetCard("tones", (EMPATHY,), "made", "CC0-1.0", synthetic=True)
    write_dataset(folder, card, pd.DataFrame(pairs), pd.DataFrame(ratings, columns=columns))
    return folder


class Scored(NamedTuple):
    """What a judge made of the answers of a server."""

    table: pd.DataFrame
    requests: list[Request]  # what the server got
    judge: Any

    @property
    def row(self) -> Any:
        """The first one."""
        return self.table.iloc[0]


@pytest.fixture
def scored(make_judge, make_pairs) -> Callable[..., Scored]:
    """Vendor, its server (a function, or responses in turn), pairs (or how many), options of `make_judge` -> result."""

    def score(vendor: str, *responses: Any, pairs: Any = 1, **options: Any) -> Scored:
        made = [one if isinstance(one, Response) else Response(one) for one in responses]
        with serve(responses[0] if callable(responses[0]) else in_turn(made)) as server:
            judge = make_judge(vendor, server.url, **options)
            table = judge.score(make_pairs(pairs) if isinstance(pairs, int) else pairs)
        return Scored(table, server.requests, judge)

    return score
