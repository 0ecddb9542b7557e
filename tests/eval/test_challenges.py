"""Public challenges: their scores by hand and from datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.schema import Dimension, Pair, PairDataset, Turn
from empathy_judge.eval import challenges
from empathy_judge.eval.challenges import challenge, crossings, matched_accuracy
from empathy_judge.eval.judges import score_table
from empathy_judge.eval.judges.baselines.simple import ConstantJudge
from empathy_judge.eval.other_views import challenge_views
from empathy_judge.eval.statistics.bootstrap import Resamples
from rich.table import Table

from .conftest import AnyJudge, dataset_of, tone_clip, tone_of


def value(statistic: Any) -> float:
    assert statistic.value is not None, statistic.reason
    return statistic.value


def test_the_score_by_hand():
    """Five questions right of seven; of three groups one is all right: (5 + 1) / (7 + 3)."""
    right = np.array([True, True, True, False, True, False, True])
    groups = np.array(["a", "a", "b", "b", "b", "c", "c"])
    found = challenges.grouped_score(right, groups)
    assert value(found["score"]) == pytest.approx(6 / 10, abs=1e-12)
    assert value(found["accuracy"]) == pytest.approx(5 / 7, abs=1e-12)
    assert value(found["group_accuracy"]) == pytest.approx(1 / 3, abs=1e-12)
    assert (found["score"].n, found["group_accuracy"].n) == (7, 3)
    assert found["score"].reason == "no interval: 3 groups, at least 5 needed"
    assert challenges.grouped_score(np.zeros(0, bool), np.zeros(0, str))["score"].reason == "0 questions"


def test_the_interval_is_that_of_groups_drawn_again():
    rng = np.random.default_rng(1)
    right, groups = rng.random(60) < 0.7, rng.integers(12, size=60).astype(str)
    found = challenges.grouped_score(right, groups, resamples=300, seed=4)
    names = np.unique(groups)
    scores = []
    for drawn in Resamples.sample(groups, 300, seed=4).counts:
        above = below = 0
        for name, times in zip(names, drawn, strict=True):
            own = right[groups == name]
            above += times * (own.sum() + own.all())
            below += times * (len(own) + 1)
        scores.append(above / below)
    assert (found["score"].low, found["score"].high) == pytest.approx(np.percentile(scores, [2.5, 97.5]), abs=1e-12)


def contest_data() -> tuple[list[Pair], pd.DataFrame]:
    """Two sources, groups of two questions each, of two or three options; the first option is right."""
    pairs, rows = [], []
    for setting, options in (("context_variant", 3), ("tone_variant", 2)):
        for group in range(6):
            for question in range(2):
                # A context variant has the same clip and another situation, a tone variant another clip
                tone = question if setting == "tone_variant" else 0
                for option in range(options):
                    pair = Pair(
                        f"{setting}-{group}-{question}-{option}", tone_clip(len(pairs) / 1000),
                        (Turn("user", tone_clip(-(group + tone / 10) / 10)),),
                        f"situation {question}" if setting == "context_variant" else None,
                        f"script {group}", setting=setting,
                    )  # fmt: skip
                    pairs.append(pair)
                    wrong = group < 2 and question == 0  # the first question of groups 0 and 1
                    rows.append((pair.pair_id, float(option == 0), float(option if wrong else -option)))
    return pairs, pd.DataFrame(rows, columns=["pair_id", "human_mean", "score"]).set_index("pair_id")


@pytest.mark.parametrize(("right", "ends"), [(1, (0.025 ** (1 / 20), 1.0)), (0, (0.0, 1 - 0.025 ** (1 / 20)))])
def test_all_right_or_all_wrong_is_not_certain(right, ends):
    """As of any share of 0 or 1: Clopper and Pearson, one trial for each group."""
    found = challenges.grouped_score(np.full(40, right == 1), np.repeat(np.arange(20), 2).astype(str))
    for statistic in found.values():
        assert (statistic.low, statistic.high) == pytest.approx(ends, abs=1e-12)


def test_questions_are_found_in_a_dataset():
    pairs, items = contest_data()
    found = challenges.challenge_scores(pairs, items.sample(frac=1, random_state=0))
    assert list(found) == ["context_variant", "tone_variant", "all"]
    for name, questions, groups, chance in (
        ("context_variant", 12, 6, 1 / 3), ("tone_variant", 12, 6, 1 / 2), ("all", 24, 12, 5 / 12),
    ):  # fmt: skip
        one = found[name]
        assert (one.score.n, one.group_accuracy.n) == (questions, groups)
        assert value(one.accuracy) == pytest.approx(10 / 12, abs=1e-12)
        assert value(one.score) == pytest.approx((10 + 4) / 18, abs=1e-12)
        assert one.chance == pytest.approx(chance, abs=1e-12)
        assert one.score.low is not None
    constant = challenges.challenge_scores(pairs, items.assign(score=3.0))["all"]
    assert value(constant.score) == 0.0
    for option in "01":  # without a score of one of its options no question is answered
        gaps = items.assign(score=items["score"].mask(items.index.str.endswith(option)))
        assert value(challenges.challenge_scores(pairs, gaps)["all"].accuracy) == 0.0
    tied = items.assign(score=items["score"].clip(-1, 1))  # of the wrong answers, beside the right one nothing changes
    assert value(challenges.challenge_scores(pairs, tied)["all"].accuracy) == pytest.approx(10 / 12, abs=1e-12)


def test_questions_without_a_known_answer_are_left_out():
    pairs, items = contest_data()
    unrated = items.index.str.startswith("tone_variant-3-1")
    tied = items.index.str.startswith("context_variant-4-0")
    changed = items.assign(human_mean=items["human_mean"].mask(unrated & items.index.str.endswith("1")))
    changed.loc[tied, "human_mean"] = 1.0
    found = challenges.challenge_scores(pairs, changed)
    assert (*(found[name].score.n for name in ("tone_variant", "context_variant", "all")),) == (11, 11, 22)
    alone = [replace(pair, group_id=pair.pair_id) for pair in pairs]
    with pytest.raises(DataError, match="60 pairs hold no question"):
        challenges.challenge_scores(alone, items)
    with pytest.raises(DataError, match="0 pairs hold no question"):
        challenges.challenge_scores([], items)


def test_a_setting_may_have_the_name_of_a_field_but_not_of_the_result_over_all():
    pairs, items = contest_data()
    ratings = [(pair_id, "r", "fit", score) for pair_id, score in items["human_mean"].items()]

    def found(name: str) -> Any:
        renamed = [replace(pair, setting=name) if pair.setting == "tone_variant" else pair for pair in pairs]
        dataset = dataset_of(renamed, ratings, Dimension("fit", 0, 1))
        return challenge("aeq-bench", ConstantJudge({"fit": 1.0}), dataset, split=None, resamples=50, seed=0)

    table = next(challenge_views(found("value")))
    assert isinstance(table, Table)
    assert table.row_count == 3
    with pytest.raises(DataError, match="setting 'all': expected another name"):
        found("all")


# ---------------------------------------------------------------- EchoMind

VOICES = ("target", "neutral", "alternative")


def level_judge(rule: Callable[[float, float], float]) -> AnyJudge:
    """Scores a pair by the levels of its two clips."""

    def score(pairs: Sequence[Pair]) -> pd.DataFrame:
        fit = [rule(tone_of(pair.context[0].audio), tone_of(pair.response)) for pair in pairs]
        return score_table(pairs, ("fit", "other"), np.array([fit, [1.0] * len(pairs)]).T)

    return AnyJudge(score, "levels", ("fit", "other"))


def echo_pairs(scripts: int = 20, systems: int = 2, voices: tuple[str, ...] = VOICES) -> list[Pair]:
    """The level of a clip tells the voice; each answer sounds like the voice it answers."""
    return [
        Pair(
            f"synthesis-{script}-system{system}-{voice}", tone_clip(number + 1 + script / 1000),
            (Turn("user", tone_clip(number + 1 + system / 1000)),), None, f"script_{script}", f"system{system}",
            setting=f"speaker: male / {voice}", response_text=f"{voice} {script}",
        )
        for script in range(scripts) for system in range(systems) for number, voice in enumerate(voices)
    ]  # fmt: skip


ECHO = dataset_of(echo_pairs(), [], Dimension("fit", 0, 1))


def test_accuracy_of_matched_responses_by_hand():
    matched, crossed = np.array([3.0, 2.0, 1.0, 5.0, np.nan]), np.array([1.0, 2.0, 4.0, 4.0, 1.0])
    found = matched_accuracy(matched, crossed, np.array(["a", "a", "b", "b", "b"]))
    assert (found.value, found.n, found.dropped) == (0.625, 4, 1)
    assert found.reason == "no interval: 2 groups, at least 5 needed"
    nothing = matched_accuracy(np.array([np.nan]), np.array([1.0]), np.array(["a"]))
    assert (nothing.value, nothing.reason) == (None, "0 comparisons, 1 dropped")
    assert matched_accuracy(np.zeros(0), np.zeros(0), np.zeros(0, str)).reason == "0 comparisons"


def test_every_pair_meets_the_responses_to_the_other_voices_of_its_script_and_system():
    pairs = echo_pairs(scripts=2)
    found = crossings(pairs)
    assert len(found) == 2 * 2 * 3 * 2
    by_id = {pair.pair_id: pair for pair in pairs}
    for matched, crossed in found:
        own, other = by_id[matched], by_id[crossed.pair_id.removeprefix(f"{matched} x ")]
        assert crossed.context is own.context
        assert (crossed.response, crossed.response_text) == (other.response, other.response_text)
        assert {(pair.group_id, pair.system_id) for pair in (own, other, crossed)} == {(own.group_id, own.system_id)}
        assert own.setting != other.setting
    assert len({crossed.pair_id for _, crossed in found}) == len(found)


@pytest.mark.parametrize(
    ("rule", "accuracy", "low", "high"),
    [
        # all or none of 20 scripts: the exact interval
        (lambda context, response: -abs(context - response), 1.0, 0.025 ** (1 / 20), 1.0),
        (lambda context, response: abs(context - response), 0.0, 0.0, 1 - 0.025 ** (1 / 20)),
        (lambda context, response: response, 0.5, 0.5, 0.5),  # a response-only judge wins as often as it loses
        (lambda context, response: context, 0.5, 0.5, 0.5),  # ties
    ],
)
def test_judges_that_listen_and_that_do_not(rule, accuracy, low, high):
    found = challenge("echomind", level_judge(rule), ECHO, split=None, resamples=50, seed=0).dimensions
    assert [found["fit"].value, found["fit"].low, found["fit"].high] == pytest.approx([accuracy, low, high], abs=1e-12)
    assert found["fit"].n == 20 * 2 * 6
    assert found["other"].value == 0.5
    turned = downwards(ECHO)
    found = challenge("echomind", level_judge(rule), turned, split=None, resamples=50, seed=0).dimensions
    assert found["fit"].value == pytest.approx(1 - accuracy, abs=1e-12)


# ---------------------------------------------------------------- known judges, and the command


def downwards(dataset: PairDataset) -> PairDataset:
    """The same, and low ratings are good."""
    scales = tuple(replace(own, higher_is_better=False) for own in dataset.card.dimensions)
    return replace(dataset, card=replace(dataset.card, dimensions=scales))


def distinct(dataset: PairDataset) -> PairDataset:
    """One response per tone in each group, so that one is the best."""
    seen, pairs = set(), []
    for pair in dataset.pairs:
        key = pair.group_id, tone_of(pair.response)
        if key not in seen:
            seen.add(key)
            pairs.append(pair)
    return dataclasses.replace(dataset, pairs=tuple(pairs))


def test_aeq_bench_of_known_judges(make_dataset, make_tone_judge):
    dataset = distinct(make_dataset(raters=3))
    found = challenge("aeq-bench", make_tone_judge(), dataset, split=None, resamples=50, seed=0).dimensions["empathy"]
    assert set(found) == {"all", "context_variant", "tone_variant"}
    assert found["all"].score.value == 1.0
    assert found["all"].score.n == found["context_variant"].score.n + found["tone_variant"].score.n
    assert 0.25 <= found["all"].chance <= 0.5
    human = dataset.mean_scores()["empathy"]

    def lowest_alone(pairs: Sequence[Pair]) -> pd.DataFrame:
        """Knows the lowest of a question, and nothing of the others."""
        own = pd.Series([human[pair.pair_id] for pair in pairs])
        contexts = zip(pairs, challenges.context_keys(pairs), strict=True)
        question = [repr((pair.group_id, pair.setting, key)) for pair, key in contexts]
        least = own.groupby(question).transform("min")
        return score_table(pairs, ("empathy",), np.where(own == least, 1.0, 5.0)[:, None])

    of_scales = [
        challenge("aeq-bench", AnyJudge(lowest_alone), own, split=None, resamples=50, seed=0).dimensions
        for own in (dataset, downwards(dataset))
    ]
    higher, lower = (found["empathy"]["all"].score.value for found in of_scales)
    assert higher < 0.5
    assert lower == 1.0
    tied = challenge("aeq-bench", ConstantJudge({"empathy": 3.0}), dataset, split=None, resamples=50, seed=0)
    assert tied.dimensions["empathy"]["all"].score.value == 0.0  # a tie is no answer
    with pytest.raises(DataError, match="judge constant scores charm; dataset tones has ratings of empathy"):
        challenge("aeq-bench", ConstantJudge({"charm": 3.0}), dataset, split=None, resamples=50, seed=0)
