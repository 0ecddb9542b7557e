"""The trained judge as a call."""

from __future__ import annotations

import asyncio
import io
import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import soundfile
import torch
from empathy_judge import Scorer, score_table
from empathy_judge.audio import decode as audio
from empathy_judge.audio.decode import Clip
from empathy_judge.core.errors import AudioError, UserError
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.scoring.assessment import Assessment

from ..models.conftest import saved

RATE = 16_000


@pytest.fixture(scope="module")
def scorer(judge_folder, device) -> Scorer:
    return Scorer.from_pretrained(judge_folder, device=device.type, batch_size=3)


def close(one: dict[str, float], other: dict[str, float]) -> bool:
    assert one.keys() == other.keys() == {"empathy", "warmth"}
    return all(abs(one[name] - other[name]) <= 1e-5 for name in one)


@pytest.fixture(scope="module")
def spreading(make_judge, tmp_path_factory) -> Scorer:
    """A judge that says how ratings spread."""
    scales = (Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 1, 0.5))
    folder = saved(make_judge(head="histogram", scales=scales), tmp_path_factory.mktemp("spreading") / "judge")
    return Scorer.from_pretrained(folder, device="cpu")


def test_levels_are_part_of_a_score_where_the_head_knows_them(scorer, spreading, clips):
    assert scorer.assess(clips / "c.wav", clips / "r0.wav").levels is None
    assert not [column for column in scorer.columns if column.name.endswith("_levels")]
    found = spreading.assess(clips / "c.wav", clips / "r0.wav")
    assert {name: len(shares) for name, shares in found.levels.items()} == {"empathy": 5, "warmth": 3}
    for dimension in spreading.dimensions:
        shares = np.array(found.levels[dimension.name])
        assert shares.sum() == pytest.approx(1, abs=1e-12)
        mean = dimension.minimum + (dimension.step or 0) * shares @ np.arange(len(shares))
        assert mean == pytest.approx(found.scores[dimension.name].score, abs=1e-5)
    table = score_table(spreading, pd.DataFrame({"response_audio": [str(clips / "r0.wav"), str(clips / "no.wav")]}))
    alone = spreading.assess(None, clips / "r0.wav").levels["warmth"]
    assert [float(share) for share in table["warmth_levels"][0].split(";")] == pytest.approx(alone, abs=1e-6)
    assert pd.isna(table["warmth_levels"][1])


def test_clips_that_cannot_be_judged_are_named(scorer, clips):
    soundfile.write(clips / "long.wav", np.zeros(3_700 * 4_000), 4_000, subtype="PCM_U8")
    (clips / "empty.wav").write_bytes(b"")
    (clips / "text.wav").write_text("not audio")
    (clips / "cut.wav").write_bytes((clips / "r0.wav").read_bytes()[:5_000])
    for name, reason in (
        ("long.wav", r"lasts 3700\.0 s; expected at most 1000 s"),
        ("empty.wav", "empty"),
        ("text.wav", "not a sound file"),
        ("cut.wav", "cut off"),
        ("absent.wav", "no such file"),
    ):
        for context, response in ((None, clips / name), (clips / name, clips / "r0.wav")):
            with pytest.raises(AudioError, match=rf"{clips / name}: .*{reason}"):
                scorer.score(context, response)
        with pytest.raises(AudioError, match=str(clips / name)):
            scorer.score([None, None], [clips / "r0.wav", clips / name])
    with pytest.raises(AudioError, match="is nan"):
        scorer.score(None, (np.array([0.1, np.nan] * 8_000, dtype=np.float32), RATE))


def test_a_long_clip_is_heard_in_windows_unless_that_is_refused(scorer, judge_folder, clips, make_tone, tmp_path):
    context, short, long = clips / "c.wav", clips / "r0.wav", clips / "long.wav"
    soundfile.write(long, make_tone(25, 100, 0.1), RATE)
    soundfile.write(clips / "hours.wav", np.zeros(300 * 4_000), 4_000, subtype="PCM_U8")  # 30 windows
    found, cut = scorer.assess(context, [short, long])
    assert (found.windows, cut.windows) == (1, 3)
    assert (round(found.seconds, 6), round(cut.seconds, 6)) == (0.5, 25.0)
    with pytest.raises(AudioError, match="its clips together make 900 windows; expected at most 100"):
        scorer.score(clips / "hours.wav", clips / "hours.wav")

    kept = tmp_path / "kept"
    Scorer.from_pretrained(judge_folder, device="cpu", cache=kept).score(context, long)
    strict = Scorer.from_pretrained(judge_folder, device="cpu", cache=kept, windows=False)
    for clip in (context, long):
        with pytest.raises(AudioError, match=r"long\.wav: lasts 25\.0 s; expected at most 10 s"):
            strict.score(clip, long)
    assert close(strict.score(context, short), found.points)
    again = Scorer.from_pretrained(judge_folder, device="cpu", cache=kept).assess(context, long)
    assert again.windows == 3
    assert close(again.points, cut.points)


def test_one_context_for_many_responses_is_heard_once_and_scores_as_with_each(scorer, judge_folder, clips):
    responses = [clips / f"r{number}.wav" for number in range(4)]
    expected = [scorer.score(clips / "c.wav", response, situation="Late.") for response in responses]
    with mock.patch.object(audio, "resample", wraps=audio.resample) as decoded:
        fresh = Scorer.from_pretrained(judge_folder, device="cpu")
        with open(clips / "c.wav", "rb") as context:  # an open file can be read only once
            found = fresh.score(context, responses, situation="Late.")
    assert all(map(close, found, expected))
    assert decoded.call_count == 5
    assert not close(expected[0], expected[1])


def test_an_endless_generator_is_read_as_far_as_it_is_asked_for(scorer, clips):
    taken = []

    def questions():
        for number in itertools.count():
            taken.append(number)
            name = "missing" if number == 1 else f"r{number % 4}"
            yield (clips / "c.wav", clips / f"{name}.wav") if number % 2 else {"response": clips / f"{name}.wav"}

    found = list(itertools.islice(scorer.assess_each(questions()), 30))
    assert len(taken) <= 30 + 4 * scorer.batch_size
    assert isinstance(found[1], AudioError)
    good = [own for number, own in enumerate(found) if number != 1]
    assert all(isinstance(own, Assessment) for own in good)
    assert close(found[4].points, scorer.score(None, clips / "r0.wav"))
    assert close(found[7].points, scorer.score(clips / "c.wav", clips / "r3.wav"))
    with pytest.raises(UserError, match="pair 0: 'reponse'; expected response, context, situation"):
        next(scorer.assess_each([{"reponse": clips / "r0.wav"}]))


def test_threads_and_tasks_get_the_scores_of_a_single_call(scorer, clips):
    names = [f"r{number % 4}.wav" for number in range(24)]
    expected = {name: scorer.score(clips / "c.wav", clips / name) for name in set(names)}
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda name: scorer.score(clips / "c.wav", clips / name), names))

    async def ask():
        return await asyncio.gather(*(scorer.score_async(clips / "c.wav", clips / name) for name in names))

    for name, one, other in zip(names, found, asyncio.run(ask()), strict=True):
        assert close(one, expected[name])
        assert close(other, expected[name])


def test_a_pair_that_no_pass_has_room_for_is_named(judge_folder, clips, monkeypatch):
    scorer = Scorer.from_pretrained(judge_folder, device="cpu", batch_size=8)
    monkeypatch.setattr(EmpathyJudge, "pooled", mock.Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory. 1")))
    with pytest.raises(AudioError, match="pair '0': too long for the memory of cpu"):
        scorer.score(None, clips / "r0.wav")


def test_what_speaks_against_a_score_is_said(scorer, clips, make_tone):
    noise = np.random.default_rng(0).normal(scale=0.05, size=RATE).astype(np.float32)
    usual = scorer.assess(clips / "c.wav", clips / "r1.wav")
    assert usual.warnings == ()
    found = scorer.assess((make_tone(0.3, 200, 0.3), RATE), (noise, RATE)).warnings
    assert [(one.code, one.text) for one in found] == [
        ("short", "context: lasts 0.30 s; usual: at least 0.5 s"),
        ("no_speech", "response: less than 0.2 s with a voice in 1.00 s"),
    ]
    silent = scorer.assess(None, (np.zeros(RATE, np.float32), RATE))
    assert [one.code for one in silent.warnings] == ["no_speech"]


@pytest.mark.long
def test_compiled_layers_give_the_same_scores(scorer, judge_folder, clips):
    compiled = Scorer.from_pretrained(judge_folder, device="cpu", compiled=True)
    responses = [clips / f"r{number}.wav" for number in range(4)]
    for context, response in ((clips / "c.wav", responses), ([None] * 4, responses), (clips / "c.wav", responses[:1])):
        assert all(map(close, compiled.score(context, response), scorer.score(context, response)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, c: s.score(None, [c, None]), "pair 1: clip of type NoneType"),
        (lambda s, c: s.score(None, [c, "a\0b"]), "pair 1: path 'a.*holds a zero byte"),
        (lambda s, c: s.score(None, [c, c], situation=["Late.", 5]), "pair 1: situation 5; expected text"),
        (lambda s, c: s.score(None, c, situation="\ud800"), "pair 0: situation"),
        (lambda s, c: s.score(None, c, situation="<|audio_bos|>"), "situation text may not contain"),
        (lambda s, c: s.assess(None, c, level="0.9"), "level '0.9'; expected 0.5, 0.8, 0.9, 0.95"),
        (lambda s, c: s.assess(None, c, level=None), "level None; expected"),
        (lambda s, c: list(s.assess_each([(c,)])), r"pair 0: \(.*expected \(context, response\)"),
        (lambda s, c: list(s.assess_each([(None, c), c])), r"pair 1: .*expected \(context, response\)"),
        (lambda s, c: list(s.assess_each([{"response": math.nan}])), "pair 0: no response"),
        (lambda s, c: list(s.assess_each([None])), "pair 0: None; expected"),
        (lambda s, c: s.rank(None, c), "expected a list of responses"),
        (lambda s, c: s.rank(None, [c, 5]), "pair 1: clip of type int"),
        (lambda s, c: s.score([None], [c, c]), "2 responses with 1 context and 2 situations"),
        (lambda s, c: s.score([None] * 2, [c]), "1 response with 2 contexts and 1 situation"),
        (lambda s, c: s.score([None] * 2, [c, c], situation=["one"]), "2 responses with 2 contexts and 1 situation;"),
        (lambda s, c: s.score([c], c), "one response with lists of contexts or situations"),
        (lambda s, c: s.score(None, c, situation=["Late."]), "one response with lists of contexts or situations"),
        (lambda s, c: s.score(None, c.samples), "samples without a rate"),
        (lambda s, c: s.score(None, {}), "clip with nothing"),
        (lambda s, c: Scorer.from_pretrained("judge", quantization="int3"), "quantization 'int3'; expected none, nf4"),
        (lambda s, c: Scorer.from_pretrained(None), "judge None; expected a folder, or OWNER/NAME on the Hugging Face"),
        *(
            (
                lambda s, c, size=size: Scorer.from_pretrained("judge", batch_size=size),
                f"batch_size {size!r}; expected a",
            )
            for size in (0, -3, "3")
        ),
        (lambda s, c: Scorer.from_pretrained("judge", kept_bytes=-1), "kept_bytes -1; expected a whole number, 0 or"),
        (lambda s, c: s.rank(None, [c], by="vocal_empathy"), "dimension 'vocal_empathy'; expected empathy, warmth"),
        (lambda s, c: s.score(None, (c.samples, 16_000.7)), r"at 16000\.7 Hz .*expected a whole number of Hz"),
        (lambda s, c: s.score(None, (np.ma.masked_less(c.samples, 0.0), RATE)), r"some are masked; .* \.filled\(0\)"),
        (lambda s, c: s.score(None, {"array": c.samples}), "array and sampling_rate"),
        (lambda s, c: s.score(None, io.StringIO()), "text"),
        (lambda s, c: s.score(None, (np.zeros((2, 8_000), dtype=np.float32), RATE)), "one-dimensional"),
        (lambda s, c: s.score(None, (np.full(8_000, 300, dtype=np.int16), RATE)), "float samples"),  # not up to 1.0
        (lambda s, c: s.score(None, ("a.wav", "b.wav")), "a path, bytes of an audio file"),
    ],
)
def test_wrong_calls_are_one_line(call, message, scorer, make_tone):
    with pytest.raises(UserError, match=message):
        call(scorer, Clip(make_tone(0.6, 150, 0.3), RATE))


def test_one_clip_that_cannot_be_used_does_not_end_a_ranking_and_is_named_in_lists(scorer, make_tone):
    good, bad = Clip(make_tone(0.6, 150, 0.3), RATE), (np.full(8_000, 300, dtype=np.int16), RATE)
    ranked = scorer.rank(None, [bad, good])
    assert [own.index for own in ranked] == [1, 0]
    assert isinstance(ranked[1].found, AudioError)
    assert (ranked[1].found.kind, str(ranked[1].found)[:8]) == ("not supported", "pair 0: ")
    with pytest.raises(AudioError, match=r"^pair 1: .* is nan") as caught:
        scorer.score(None, [good, (np.full(8_000, np.nan, dtype=np.float32), RATE)])
    assert caught.value.kind == "not finite or not scaled"


def test_a_judge_without_a_finite_score_has_none(judge_folder, make_tone):
    scorer = Scorer.from_pretrained(judge_folder, device="cpu")
    with torch.no_grad():
        scorer.judge.head.get_parameter("linear.bias")[0] = math.nan
    clip = Clip(make_tone(0.6, 150, 0.3), RATE)
    (found,) = scorer.assess_each([(None, clip)])
    assert isinstance(found, AudioError)
    assert found.kind == "no finite score"
    assert str(found) == "empathy: the judge's score is nan; expected a finite number"
    assert [own.found.kind for own in scorer.rank(None, [clip])] == ["no finite score"]
