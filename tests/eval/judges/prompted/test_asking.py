"""Settings, rubrics, forms and examples, without anybody being asked."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.eval.judges.prompted.cache import cache_key
from empathy_judge.eval.judges.prompted.costs import check_budget, disclosure, planned
from empathy_judge.eval.judges.prompted.factory import choose_examples
from empathy_judge.eval.judges.prompted.questions import AnswerForm, Sound, Unread, describe, score_question
from empathy_judge.eval.judges.prompted.settings import Price, PromptedSettings, parse_settings

from ...conftest import dataset_of
from .conftest import EMPATHY, GOOD, clip
from .servers import Response, answer, serve


def test_settings():
    settings = parse_settings(["rubric=support", "samples=5", "price=2.5:32:10", "base_url=http://h:1/v1/"], "x")
    assert settings == PromptedSettings(rubric="support", samples=5, price=Price(2.5, 32, 10), base_url="http://h:1/v1")
    for words, temperature in (([], 1), (["samples=1"], 0), (["samples=1", "temperature=0.7"], 0.7)):
        assert parse_settings(words, "x").sampling_temperature == temperature


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("rubric=kindness", "vocal, attunement, support, plain"),
        ("samples=1_0", "1 to 100"),
        ("samples=012", "1 to 100"),
        ("temperature=0_1", "0 to 2"),
        ("price=1_0:1:1", "TEXT_IN"),
        ("samples=0", "1 to 100"),
        ("samples=1e3", "1 to 100"),
        ("temperature=nan", "0 to 2"),
        ("price=1:2", "TEXT_IN:AUDIO_IN:OUT"),
        ("price=-1:2:3", "TEXT_IN:AUDIO_IN:OUT"),
        ("base_url=ftp://host", "http://HOST"),
        ("base_url=https://me:secret@host/v1", "without a user name or a password"),
        ("base_url=http://host/v1?api-key=secret", "without ? and #"),
        ("base_url=http://host/v1#", "without ? and #"),
        ("concurrency=2.5", "a whole number, 1 to 1000"),
        ("opponents=3", "an even number, or 0"),
        ("voice=alloy", "expected NAME=VALUE of mode, rubric"),
        ("samples", "NAME=VALUE"),
    ],
)
def test_bad_settings_are_named(setting, expected):
    with pytest.raises(UserError) as told:
        parse_settings([setting], "openai:m")
    assert expected in str(told.value)
    assert setting.partition("=")[0] in str(told.value)


def test_a_setting_that_comes_twice_is_refused():
    with pytest.raises(UserError, match="samples comes twice; expected each setting once"):
        parse_settings(["samples=1", "samples=2"], "openai:m")


def test_anchors_stand_at_their_points():
    five = describe("vocal", [EMPATHY])
    assert [line.strip()[:5] for line in five.splitlines()[-5:]] == ["1 = t", "2 = t", "3 = c", "4 = w", "5 = i"]
    hundred = describe("vocal", [Dimension("empathy", 0, 100)])
    assert [line.split(" = ")[0].strip() for line in hundred.splitlines()[-5:]] == ["0", "25", "50", "75", "100"]
    two = describe("plain", [Dimension("empathy", 0, 1, 1)])
    assert two.splitlines()[-2:] == ["  0 = very poor", "  1 = excellent"]
    three = describe("plain", [Dimension("empathy", 0, 2, 1)])
    assert three.splitlines()[-3:] == ["  0 = very poor", "  1 = fair", "  2 = excellent"]
    bad = describe("plain", [Dimension("noise", 1, 5, 1, higher_is_better=False)])
    assert bad.splitlines()[-5] == "  1 = excellent"


def test_what_a_form_describes_it_reads():
    form = AnswerForm((EMPATHY, Dimension("warmth", 0, 10)))
    assert form.schema()["required"] == ["reason", "vocal_empathy", "warmth"]
    assert form.read('{"reason": "x", "vocal_empathy": 4, "warmth": 7.5}') == {"vocal_empathy": 4, "warmth": 7.5}
    with pytest.raises(Unread, match="unreadable answer"):
        form.read('{"vocal_empathy": 4}')
    preferred = AnswerForm((EMPATHY,), "verdicts")
    assert preferred.schema()["properties"]["vocal_empathy"]["enum"] == ["first", "tie", "second"]
    assert preferred.read('{"reason": "", "vocal_empathy": "Second "}') == {"vocal_empathy": -1}
    with pytest.raises(Unread, match="unreadable answer"):
        preferred.read('{"reason": "", "vocal_empathy": "both"}')
    twice = 'First {"vocal_empathy": 2}, but rather {"vocal_empathy": 3}'
    assert AnswerForm((EMPATHY,)).read(twice) == {"vocal_empathy": 3}  # the last object counts


@pytest.mark.parametrize(
    ("written", "in_object", "alone"),
    [
        ("4", 4, 4),
        (" 4.5 ", 4.5, 4.5),
        ("+4", 4, 4),
        ("\uff14", 4, 4),  # a full-width digit
        ("4.", None, 4),
        ("**Score:** 4", None, 4),
        ("vocal_empathy = 4", None, 4),
        *[
            (words, None, None)
            for words in (
                "1_0", "4/5", "4 out of 5", "four of 5", "4,5", ".5", "4\u00bd", "\u22124", "1e0", "NaN", "4 or 5"
            )
        ],
    ],
)  # fmt: skip
def test_a_number_is_one_number_or_none(written, in_object, alone):
    """Python reads 1_0 as 10; a digit among words may be the end of the scale."""
    scale = Dimension("vocal_empathy", 0, 10, 1)
    told = json.dumps({"vocal_empathy": written})
    for form, text, expected in (("scores", told, in_object), ("number", written, alone)):
        if expected is None:
            with pytest.raises(Unread, match="unreadable answer"):
                AnswerForm((scale,), form).read(text)
        else:
            assert AnswerForm((scale,), form).read(text) == {"vocal_empathy": expected}


def test_a_number_outside_the_scale_is_none():
    for form, text in (("scores", '{"vocal_empathy": "11"}'), ("number", "-4"), ("number", "11")):
        with pytest.raises(Unread, match="score out of range"):
            AnswerForm((Dimension("vocal_empathy", 0, 10, 1),), form).read(text)


def test_transcripts_alone_hold_no_sound(make_pairs):
    (pair,) = make_pairs(1)
    for hears, sounds, words in (("audio", 2, 0), ("both", 2, 2), ("transcript", 0, 2)):
        question = score_question(pair, [EMPATHY], parse_settings([f"hears={hears}", "answers=schema"], "x"), 9)
        texts = [part for part in question.messages[-1].parts if isinstance(part, str)]
        assert len(question.sounds) == sounds
        assert sum("transcript" in text for text in texts) == words
    assert "You read" in question.system
    silent = Pair("s", clip(300), group_id="g")
    with pytest.raises(UserError, match="'s' has no response_text"):
        score_question(silent, [EMPATHY], parse_settings(["hears=transcript", "answers=schema"], "x"), 9)


def rated(count: int) -> PairDataset:
    """Pair n of group n // 2 has the mean rating 1 + 4 n / (count - 1)."""
    splits = ["train"] * (count - 2) + ["test"] * 2
    pairs = [
        Pair(f"p{n:02d}", clip(200 + n), group_id=f"g{n // 2}", split=split, response_text="Oh.")
        for n, split in enumerate(splits)
    ]
    return dataset_of(pairs, [(f"p{n:02d}", "r", EMPATHY.name, 1 + 4 * n / (count - 1)) for n in range(count)], EMPATHY)


def test_examples_span_the_scale_and_come_from_the_training_split():
    dataset = rated(22)
    examples = choose_examples(dataset, ["train"], 5)
    scores = [example.scores[EMPATHY.name] for example in examples]
    train = dataset.subset("train").mean_scores()[EMPATHY.name]
    assert (min(scores), max(scores)) == (train.min(), train.max())
    assert len({example.pair.group_id for example in examples}) == 5
    assert {example.pair.split for example in examples} == {"train"}
    assert sorted(scores) != scores
    steps = sorted(scores)
    assert max(b - a for a, b in itertools.pairwise(steps)) < 1.3
    with pytest.raises(UserError, match=r"10 groups .*each of the 11 examples"):
        choose_examples(dataset, ["train"], 11)


def test_examples_stand_before_the_question():
    dataset = rated(22)
    examples = choose_examples(dataset, ["train"], 2)
    settings = parse_settings(["examples=2", "answers=schema"], "x")
    question = score_question(dataset.pairs[-1], [EMPATHY], settings, 9, examples)
    assert [message.role for message in question.messages] == ["user", "assistant"] * 2 + ["user"]
    said = [message.parts[0] for message in question.messages if message.role == "assistant"]
    assert said == [
        f'{{"reason": "mean of the raters", "vocal_empathy": {example.scores[EMPATHY.name]:.3g}}}'
        for example in examples
    ]
    assert len(question.sounds) == 3
    assert len({sound.wav for sound in question.sounds}) == 3
    assert all(isinstance(sound, Sound) for sound in question.sounds)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("openai:", "expected openai:MODEL"),
        ("openai:gpt-audio-1.5", "OPENAI_API_KEY is not set"),
        ("gemini:gemini-3.1-pro-preview", "GEMINI_API_KEY is not set"),
        ("gemini:g,base_url=http://h,answers=function", "expected one of schema, text, logprobs"),
        ("openai:m,base_url=http://h,mode=pairwise,examples=2", "use them with mode=pointwise"),
        ("openai:m,base_url=http://h,mode=pairwise,answers=logprobs", "is for mode=pointwise alone"),
    ],
)
def test_judges_that_cannot_be_opened(spec, told, opened):
    with pytest.raises(UserError, match=told):
        opened(spec, rated(22))


@pytest.mark.parametrize("spec", ["openai:gpt-audio-1.5", "gemini:gemini-3.1-pro-preview"])
def test_a_dry_run_needs_no_key(spec, opened):
    assert opened(spec, rated(22), dry_run=True).session.provider.told == ", with no key"


@pytest.mark.parametrize("key", ["the-first-half\nof-a-secret", "sk-schl\u00fcssel-secret"])
@pytest.mark.parametrize(
    ("spec", "variable"),
    [("openai:m,base_url=http://h", "EMPATHY_JUDGE_API_KEY"), ("gemini:gemini-3.1-pro-preview", "GEMINI_API_KEY")],
)
def test_a_key_that_no_header_holds_is_refused_and_not_printed(spec, variable, key, opened, monkeypatch):
    """httpx would refuse each request with the key in the message."""
    monkeypatch.setenv(variable, key)
    with pytest.raises(UserError, match=f"{variable} holds a line break or more than ASCII") as refused:
        opened(spec, rated(22))
    assert "secret" not in str(refused.value)


def test_probabilities_need_single_digits(opened):
    dataset = dataset_of(rated(22).pairs, [], Dimension("vocal_empathy", 0, 100))
    with pytest.raises(UserError, match="single digits"):
        opened("openai:m,base_url=http://h,answers=logprobs", dataset)


VENDORS = {
    "openai": ("gpt-audio-1.5", "OPENAI_BASE_URL", "OPENAI_API_KEY", "https://api.openai.com/v1"),
    "gemini": (
        "gemini-3.1-pro-preview", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY",
        "https://generativelanguage.googleapis.com",
    ),
}  # fmt: skip


def test_answers_of_earlier_versions_stay_valid(opened, make_pairs):
    """The key of an answer that was paid for must not move: who is asked, every word, parameter and clip."""
    keys = {
        "openai:m,base_url=http://h/v1": "6bf1cb61dc86a9a7",
        "openai:m,base_url=http://h/v1,rubric=support,hears=both,answers=schema,examples=2": "04e5ac5aba02bdb3",
        "gemini:m,base_url=http://h,mode=pairwise,temperature=0.3": "701bdb63b267450a",
        "gemini:m,base_url=http://h,rubric=plain,hears=transcript,answers=logprobs,samples=1": "74a99452cbcf5253",
    }
    first, second = make_pairs(2)
    pairs = [first, replace(second, context=first.context)]
    for spec, key in keys.items():
        judge = opened(spec, rated(22))
        task = judge.tasks(pairs)[-1]
        assert cache_key(judge.session.provider, task.build(), task.sample).startswith(key), spec


@pytest.mark.parametrize("vendor", VENDORS)
def test_another_server_is_another_one_however_it_was_named(vendor, opened, make_pairs, monkeypatch):
    """Name, price, disclosure and answers that are kept are those of the server; only the key differs."""
    model, variable, key, official = VENDORS[vendor]
    monkeypatch.setenv(key, "sk-of-the-vendor")
    monkeypatch.setenv("EMPATHY_JUDGE_API_KEY", "sk-of-another")

    def judged(*settings: str) -> Any:
        return opened(",".join([f"{vendor}:{model}", *settings]), rated(22))

    def told(judge: Any) -> str:
        return disclosure(judge, planned(judge, make_pairs(1)), 1).splitlines()[0]

    usual, in_settings = judged(), judged("base_url=http://host:8000/v1/")
    monkeypatch.setenv(variable, "http://host:8000/v1/")
    in_variable = judged()
    monkeypatch.setenv(variable, f"{official}/")
    assert judged().name == judged(f"base_url={official}/").name == usual.name == f"{vendor}:{model}"
    assert told(usual) == f"{vendor}:{model} asks {official.split('/')[2]}, with the key in {key}"
    assert usual.session.budget.price is not None
    for judge, chosen, own in (
        (in_settings, "", ("EMPATHY_JUDGE_API_KEY", "sk-of-another")),
        (in_variable, f", as {variable} says", (key, "sk-of-the-vendor")),
    ):
        assert judge.name == f"{vendor}:{model}@host:8000"
        assert judge.session.budget.price is None
        assert told(judge) == f"{judge.name} asks host:8000{chosen}, with the key in {own[0]}"
        assert judge.session.provider.key == own[1]
    question = in_settings.tasks(make_pairs(1))[0].build()
    kept = [cache_key(judge.session.provider, question, 0) for judge in (usual, in_settings, in_variable)]
    assert kept[0] != kept[1] == kept[2]


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_budget_needs_a_price_on_any_server(vendor, opened, make_pairs, monkeypatch):
    model, variable, _, _ = VENDORS[vendor]
    monkeypatch.setenv(variable, "http://host:8000/v1")

    def check(*settings: str, budget: float | None) -> None:
        judge = opened(",".join([f"{vendor}:{model}", *settings]), rated(22), budget=budget)
        check_budget(judge, planned(judge, make_pairs(1)), 1)

    for budget in (None, 0.0001):
        with pytest.raises(UserError, match=r"no price is known of this model on host:8000.*") as told:
            check(budget=budget)
        (line,) = str(told.value).splitlines()
        assert "price=TEXT_IN:AUDIO_IN:OUT" in line
        assert "--budget DOLLARS, or price=0:0:0 if it is free" in line
    check("price=0:0:0", budget=None)
    check("price=0:0:0", budget=0.0001)
    with pytest.raises(UserError, match=r"the questions would cost about \$0\.\d\d; give --budget DOLLARS"):
        check("price=2:2:12", budget=None)
    check("price=2:2:12", budget=0.0001)


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_key_of_the_sdk_goes_to_the_server_of_the_sdk(vendor, opened, make_pairs, monkeypatch):
    model, variable, key, _ = VENDORS[vendor]
    with serve(lambda request: Response(answer(vendor, GOOD))) as server:
        monkeypatch.setenv(variable, f"{server.url}/v1" if vendor == "openai" else server.url)
        for value in ("sk-of-the-vendor", None):
            monkeypatch.setenv(key, value) if value else monkeypatch.delenv(key)
            judge = opened(f"{vendor}:{model},samples=1", rated(22))
            assert judge.score(make_pairs(1 if value else 2))["score"].iloc[-1] == 4
            assert disclosure(judge, planned(judge, []), 1).splitlines()[0].endswith("no key") == (value is None)
    sent = [{**request.headers} for request in server.requests]
    assert "sk-of-the-vendor" in str(sent[0])
    assert "sk-of-the-vendor" not in str(sent[1:])


def test_a_variable_without_an_address_is_named(opened, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    with pytest.raises(UserError, match=r"the variable OPENAI_BASE_URL is 'localhost:8000'; expected http://HOST"):
        opened("openai:m", rated(22))
