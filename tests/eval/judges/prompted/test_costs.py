"""What is said and asked for before the first question."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest
from empathy_judge.cli import main
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.eval.judges.prompted import prices
from empathy_judge.eval.judges.prompted.costs import check_budget, disclosure, planned
from empathy_judge.eval.judges.prompted.openai import OpenAIProvider
from empathy_judge.eval.judges.prompted.questions import score_question
from empathy_judge.eval.judges.prompted.settings import parse_settings

from ...conftest import dataset_of
from .conftest import EMPATHY, OPENAI_PRICE, clip
from .servers import GOOD, Response, answer, serve


@pytest.mark.parametrize("budget", [[], ["--budget", "5"]])
@pytest.mark.parametrize("where", ["setting", "variable"])
def test_a_server_without_a_price_is_asked_nothing(where, budget, rated_folder, tmp_path, monkeypatch, capsys):
    with serve(lambda request: Response(answer("openai", GOOD))) as server:
        spec = "openai:gpt-audio-1.5,samples=1"
        if where == "variable":
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        else:
            spec += f",base_url={server.url}/v1"
        words = ["compare", spec, "constant", "--data", str(rated_folder), "--answers", str(tmp_path / "a.sqlite")]
        assert main([*words, "--checks", "none", *budget]) == 2
        assert not server.requests
    line = capsys.readouterr().err.strip().splitlines()[-1]
    host = server.url.removeprefix("http://")
    assert line == (
        f"error: judge openai:gpt-audio-1.5@{host},samples=1: no price is known of this model on {host}; give "
        "price=TEXT_IN:AUDIO_IN:OUT (dollars for a million tokens) and --budget DOLLARS, or price=0:0:0 if it is free"
    )


def test_listening_checks_need_a_budget_though_all_else_was_answered(make_judge, make_pairs):
    pairs = make_pairs(3)
    with serve(lambda request: Response(answer("openai", GOOD))) as server:
        judge = make_judge("openai", server.url, ["samples=2", OPENAI_PRICE])
        fresh = planned(judge, pairs)
        judge.score(pairs)
        plan = planned(judge, pairs)
    assert (fresh.requests, plan.requests, plan.dollars) == (6, 0, 0)
    assert plan.anew > fresh.anew * 0.99 == fresh.dollars * 0.99 > 0  # after answers, at their rates
    check_budget(judge, plan, passes=1)
    with pytest.raises(UserError, match=r"would cost about .*; give --budget DOLLARS"):
        check_budget(judge, plan, passes=3)
    said = disclosure(judge, plan, passes=3)
    assert "0 to send, 6 answered before; 2 listening checks may ask 6 more each" in said
    assert f"estimate: ${2 * plan.anew:.2f} (prices as given; " in said


def test_an_estimate_says_what_it_assumes(opened, make_dataset):
    for spec, assumed in (
        ("openai:gpt-audio-1.5", "10 tokens for a second of audio, 1 for 3.5 bytes of text, 60 in an answer"),
        ("openai:m,base_url=http://h,price=1:2:3", "32 tokens for a second of audio, 1 for 3.5 bytes of text, 60 in"),
        ("gemini:gemini-3.1-pro-preview", "32 tokens for a second of audio, 1 for 3.5 bytes of text, 600 in an answer"),
    ):
        judge = opened(spec, make_dataset(n_groups=4), dry_run=True)
        assert assumed in disclosure(judge, planned(judge, []), 1)


def test_the_price_of_1_000_pairs_is_that_of_these_however_many_were_asked(make_judge, make_pairs):
    judge = make_judge("openai", "http://127.0.0.1:9", ["samples=2", OPENAI_PRICE])
    for count in (1, 4):
        plan = planned(judge, make_pairs(count))
        each = plan.dollars / count
        assert 1 < 1000 * each < 20
        assert disclosure(judge, plan, 1).splitlines()[-1].endswith(f"; 1,000 such pairs: ${1000 * each:.2f}")
    assert "1,000 such pairs" not in disclosure(judge, planned(judge, []), 1)


class Today(date):
    """A day that a test chooses."""

    now = date(2026, 11, 28)

    @classmethod
    def today(cls) -> Today:
        return cls(cls.now.year, cls.now.month, cls.now.day)


RETIRING = "openai:gpt-audio-mini"  # on 20 January 2027


@pytest.mark.parametrize(
    ("today", "said"),
    [
        (date(2026, 10, 21), None),
        (date(2026, 10, 22), "retires on 2027-01-20, in 90 days"),
        (date(2027, 1, 19), "retires on 2027-01-20, in 1 day"),
        (date(2027, 1, 20), "was retired on 2027-01-20; answers that are kept can be read"),
        (date(2027, 3, 1), "was retired on 2027-01-20; answers that are kept can be read"),
    ],
)
def test_a_model_that_its_vendor_retires(today, said, opened, make_pairs, monkeypatch):
    monkeypatch.setattr(prices, "date", Today)
    monkeypatch.setattr(Today, "now", today)
    judge = opened(RETIRING, dataset_of([], [], EMPATHY), budget=1, dry_run=True)
    plan = planned(judge, make_pairs(1))
    warnings = [line for line in disclosure(judge, plan, 1).splitlines() if "warning" in line]
    assert [f"  warning: {RETIRING} {said}" in line for line in warnings] == ([] if said is None else [True])
    if said and "was" in said:
        with pytest.raises(UserError, match=f"judge {RETIRING}: {RETIRING} was retired on 2027-01-20; .* name another"):
            check_budget(judge, plan, 1)
    else:
        check_budget(judge, plan, 1)
    check_budget(judge, replace(plan, requests=0), 1)  # all that is needed is kept
    elsewhere = opened(f"{RETIRING},base_url=http://h,price=0:0:0", dataset_of([], [], EMPATHY))
    assert "retire" not in disclosure(elsewhere, plan, 1)
    check_budget(elsewhere, plan, 1)


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("gemini:gemini-3.8-flash", (0.75, 0.75, 3.75)),
        ("gemini:models/gemini-3.5-flash", (1.5, 1.5, 9)),
        ("gemini-decision:gemini-decision-1", (0.1, 0.1, 0)),
        ("qwen:qwen3.8-omni-flash", (0.15, 0.15, 0.47)),
    ],
)
def test_models_of_today_have_a_price(model, price, opened):
    judge = opened(model, dataset_of([], [], EMPATHY), dry_run=True)
    assert judge.session.budget.price == price


@pytest.mark.parametrize(("rate", "seconds"), [(8_000, 200.0), (48_000, 61.5)])
def test_long_clips_are_estimated_in_full(rate, seconds, make_judge):
    judge = make_judge("openai", "http://127.0.0.1:9", ["samples=1", "price=0:1e6:0"])  # a dollar for a token of audio
    pair = Pair("p", clip(300, seconds, rate), (Turn("user", clip(400, 0.5)),), group_id="g")
    plan = planned(judge, [pair])
    assert plan.seconds == pytest.approx(seconds + 0.5)
    assert plan.dollars == pytest.approx(32 * (seconds + 0.5))


def test_the_silent_clip_of_a_transcript_is_estimated_too(make_pairs):
    settings = parse_settings(["hears=transcript", "answers=function"], "x")
    question = score_question(make_pairs(1)[0], [EMPATHY], settings, 400)
    assert OpenAIProvider("gpt-audio-1.5", settings).seconds(question) == 0.5
    elsewhere = parse_settings(["base_url=http://h"], "x")
    assert OpenAIProvider("gpt-audio-1.5", elsewhere).seconds(question) == 0
