"""Judges by their specs: examples, keys, servers and answers that were paid for; whole programs that are killed."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from empathy_judge.cli import main
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.eval.judges.prompted.cache import cache_key
from empathy_judge.eval.judges.prompted.costs import check_budget, disclosure, planned
from empathy_judge.eval.judges.prompted.factory import PROVIDERS, choose_examples
from empathy_judge.eval.judges.prompted.questions import Sound, score_question
from empathy_judge.eval.judges.prompted.settings import parse_settings

from ...conftest import dataset_of
from .conftest import EMPATHY, clip
from .servers import DECIDING, GOOD, LimitedServer, Request, Response, answer, gemini_error, openai_error, serve


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
        ("gemini:gemini-decision-1", "is a decision model; expected gemini-decision:gemini-decision-1"),
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
    assert opened(spec, rated(22), dry_run=True).session.provider.access == ", with no key"


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


def command(url: str, data: Path, answers: Path, *more: str) -> list[str]:
    spec = f"openai:m,base_url={url}/v1,samples=2,concurrency=4,price=2.5:32:10"
    words = ["compare", spec, "constant", "--data", str(data), "--answers", str(answers), "--budget", "5"]
    return [sys.executable, "-m", "empathy_judge.cli", *words, "--checks", "none", "--resamples", "50", *more]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_twice_and_resumed_nothing_is_paid_twice(number, rated_folder, tmp_path, capsys):
    """Killed without warning, at most what was under way is lost."""
    limited = LimitedServer()
    charged = limited.charged
    with serve(limited) as server:
        arguments = command(server.url, rated_folder, tmp_path / "answers.sqlite")
        for wanted in (40, 110):
            process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            while sum(charged.values()) < wanted and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
            if number == signal.SIGTERM:
                assert process.returncode == 75, told
                assert "the same command goes on" in told
        assert main([*arguments[3:], "--json"]) == 0
    assert '"n_items": 100' in capsys.readouterr().out
    if number == signal.SIGTERM:
        assert len(charged) == 100
        assert set(charged.values()) == {2}  # two samples of each pair, none asked a third time
    assert 200 <= sum(charged.values()) <= 200 + 2 * 4


class Compared(NamedTuple):
    """How `compare` ended."""

    code: int
    out: str  # each white space as one space
    errors: list[str]


@pytest.fixture
def compared(rated_folder, tmp_path, capsys):
    """Compares on the 20 pairs of the training split, with two questions about each, which cost 0.004075 dollars."""
    score = [4]
    with serve(lambda request: Response(answer("openai", GOOD | {"vocal_empathy": score[0]}))) as server:

        def compared(*more: str) -> Compared:
            words = command(server.url, rated_folder, tmp_path / "answers.sqlite", "--split", "train", *more)
            code = main(words[3:])
            shown = capsys.readouterr()
            return Compared(code, " ".join(shown.out.split()), shown.err.splitlines())

        compared.score = score
        yield compared


def test_pairs_without_a_score_are_a_finding(compared):
    compared.score[:] = [9]
    code, said, errors = compared()
    assert (code, errors[-1].partition(": ")[2]) == (1, "no pair has a score: 20 x score out of range")
    assert "40 failed (100 %: 40 x score out of range); 20 pairs without a score." in said


_SHORT = r"The budget is used up: the same command with --budget (\S+) asks the (\d+) questions? that (?:is|are) left\."


@pytest.mark.parametrize(
    ("budget", "checks", "unasked", "pairs"),
    [
        (0.05, "none", 29, "14 of 20 rated pairs have no score: 14 x not asked: the budget is used up"),
        (0.05, "response_only", 69, "14 of 20 rated pairs have no score: 14 x not asked: the budget is used up"),
        (0.165, "none", 1, None),  # of the last pair one answer came
        (0.167, "response_only", 40, None),  # the check alone
        (0.25, "response_only", 20, None),  # half of it
    ],
)
def test_a_budget_that_was_too_small_is_a_finding_and_what_is_named_is_enough(budget, checks, unasked, pairs, compared):
    code, said, errors = compared("--budget", str(budget), "--checks", checks)
    lines = [line.partition("/v1: ")[2] or line.partition(": ")[2] for line in errors[-2:]]
    short = re.fullmatch(_SHORT, lines[-1])
    assert (code, int(short[2])) == (1, unasked)
    assert (lines[0] == pairs) == (pairs is not None)
    assert short[0] in said
    code, said, errors = compared("--budget", short[1], "--checks", checks)
    assert (code, "The budget is used up" in said) == (0, False), errors[-1]


def test_a_budget_below_the_first_question_has_no_cost_to_name(compared):
    code, _, errors = compared("--budget", "0.0001")
    assert code == 1
    told = "with --budget $0.0052 above the cost that --dry-run estimates asks the 40 questions that are left."
    assert errors[-1].endswith(told)
    assert compared("--budget", "0.0053").out.count("asks the 39 questions") == 1


def test_a_challenge_names_the_budget_that_was_too_small(dataset_folder, tmp_path, capsys):
    scores = {dimension.name: 4 for dimension in PairDataset.load(dataset_folder).card.dimensions}
    with serve(lambda request: Response(answer("openai", {"reason": "r", **scores}))) as server:
        words = ["challenge", "aeq-bench", f"openai:m,base_url={server.url}/v1,samples=2,price=2.5:32:10"]
        words += ["--data", str(dataset_folder), "--answers", str(tmp_path / "a.sqlite"), "--resamples", "20"]

        def challenged(budget: str) -> tuple[int, str]:
            code = main([*words, "--budget", budget])
            return code, capsys.readouterr().err.splitlines()[-1]

        code, line = challenged("0.05")
        short = re.search(_SHORT, line)
        assert (code, short is not None) == (1, True)
        assert challenged(short[1])[0] == 0


@pytest.mark.slow
def test_every_vendor_in_one_comparison(rated_folder, tmp_path, capsys):
    """Each is asked on its own path in its own form; the score depends on what it was sent."""
    paths = {
        "/v1/chat/completions": "openai", "/compatible-mode/v1/chat/completions": "qwen",
        "/v1beta/models/m:generateContent": "gemini", "/v1beta/decisions": "gemini-decision",
        "/v1/systemone": "systemone", "/v0/decisions/file": "hume",
    }  # fmt: skip

    def behave(request: Request) -> Response:
        vendor = paths[request.path]
        score = 1 + int(hashlib.sha256(repr(request.body).encode()).hexdigest(), 16) % 5
        if vendor in DECIDING:
            return Response(answer(vendor, {"vocal_empathy": [0.8 if n == score - 1 else 0.05 for n in range(5)]}))
        return Response(answer(vendor, GOOD | {"vocal_empathy": score}))

    free = "price=0:0:0"
    with serve(behave) as server:
        specs = [
            f"openai:m,base_url={server.url}/v1,samples=1,{free}",
            f"qwen:qwen3.8-omni-flash,base_url={server.url}/compatible-mode/v1,samples=1,{free}",
            f"gemini:m,base_url={server.url},samples=1,{free}",
            f"gemini-decision:m,base_url={server.url},{free}",
            f"systemone:m,base_url={server.url},{free}",
            f"hume:,base_url={server.url},{free}",
        ]
        where = ["--data", str(rated_folder), "--split", "train", "--answers", str(tmp_path / "a.sqlite")]
        assert main(["compare", *specs, *where, "--checks", "none", "--resamples", "50", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [one["prompting"]["scored"] for one in report["reports"]] == [20] * 6
    assert Counter(paths[request.path] for request in server.requests) == dict.fromkeys(PROVIDERS, 20)


KEY = "sk-planted-QzXwVkJqZz"


@pytest.mark.slow
def test_no_key_and_no_audio_in_anything_that_is_written(rated_folder, tmp_path, monkeypatch, capsys):
    """A key is planted; the server repeats it in its errors."""
    number = itertools.count()

    def behave(request: Request) -> Response:
        to_openai = "authorization" in request.headers
        sent = request.headers["authorization" if to_openai else "x-goog-api-key"]
        assert KEY in sent
        turn = next(number) % 10  # few are asked again, for which they wait
        if turn == 3:
            told = f"failed with {sent} of {KEY}"
            return openai_error(500, told) if to_openai else gemini_error(500, "INTERNAL", told)
        if turn == 7:
            told = f"bad request with {sent}"
            return openai_error(400, told) if to_openai else gemini_error(400, "INVALID_ARGUMENT", told)
        return Response(answer("openai", GOOD) if to_openai else answer("gemini", GOOD))

    environment = os.environ | {"EMPATHY_JUDGE_API_KEY": KEY, "OPENAI_LOG": "debug"}
    with serve(behave) as server:
        out = tmp_path / "out"
        gemini = f"gemini:m,base_url={server.url},samples=1,price=2:2:12"
        more = ["--out", str(out), "--split", "train"]
        arguments = command(server.url, rated_folder, tmp_path / "answers.sqlite", *more)
        arguments.insert(arguments.index("constant"), gemini)
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode in (0, 1), done.stderr  # 1 where a request was refused for good
        assert {"authorization", "x-goog-api-key"} <= {name for one in server.requests for name in one.headers}
        audio = server.requests[0].body["messages"][-1]["content"][1]["input_audio"]["data"]
        asked = len(server.requests)
        monkeypatch.setenv("EMPATHY_JUDGE_API_KEY", KEY)
        assert main([*arguments[3:], "--dry-run"]) == 0
        assert len(server.requests) == asked

        def refuse(request: Request) -> Response:
            return openai_error(401, f"Incorrect API key provided: {KEY[:6]}*****{KEY[-4:]} ({KEY})")

    with serve(refuse) as server:
        assert main(command(server.url, rated_folder, tmp_path / "other.sqlite")[3:]) == 2
    shown = capsys.readouterr()
    assert '"model": "m"' in shown.out
    assert shown.err.strip().splitlines()[-1].startswith("error: openai:m: HTTP 401: ")
    written = [done.stdout, done.stderr, shown.out, shown.err]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) >= 4
    everything = "\n".join(written).encode() + b"".join(file.read_bytes() for file in files)
    for secret in (KEY, KEY[-4:], "Bearer", audio[200:240]):
        assert secret.encode() not in everything, secret
    assert asked > 50
