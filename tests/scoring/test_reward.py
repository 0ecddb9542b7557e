"""The judge as a reward, and the order of several responses."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections import Counter, OrderedDict
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import soundfile
from empathy_judge.audio.decode import Clip, is_clipped
from empathy_judge.cli import main
from empathy_judge.core.errors import AudioError, UserError
from empathy_judge.scoring.assessment import Assessment, Caution, Reward, Scale, Score
from empathy_judge.scoring.assessment import reward_of as worth
from empathy_judge.scoring.reward import EmpathyReward

from ..conftest import encoded, output_of
from .conftest import RATE, reward_of, silence


def share(scores: dict[str, float]) -> float:
    return ((scores["empathy"] - 1) / 4 + scores["warmth"] / 10) / 2


def test_rewards_are_places_on_the_scales_whatever_the_batch(scorer, voices):
    reward = reward_of(scorer, voices)
    contexts = [voices[3], voices[3], None, voices[0]]
    expected = [share(scorer.score(context, clip)) for context, clip in zip(contexts, voices, strict=True)]
    found = reward(["p"] * 4, ["0", "1", "2", "3"], context_audio=contexts)
    assert found == pytest.approx(expected, abs=1e-6)
    assert np.std(found) > 1e-3
    alone = [reward_of(scorer, voices)(["p"], [str(n)], context_audio=[contexts[n]])[0] for n in range(4)]
    assert alone == pytest.approx(found, abs=1e-6)
    infos = [{"context_audio": context} for context in contexts]
    assert reward_of(scorer, voices).verl(["d"] * 4, ["0", "1", "2", "3"], [None] * 4, infos) == pytest.approx(found)
    one = reward_of(scorer, voices, by=["warmth"])
    assert one(["p"], ["1"]) == pytest.approx([scorer.score(None, voices[1])["warmth"] / 10], abs=1e-6)
    assert (reward.__name__, one.__name__) == ("empathy_warmth", "warmth")


def test_what_was_heard_is_not_heard_again(scorer, voices):
    reward = reward_of(scorer, voices)
    with mock.patch.object(scorer, "assess_pairs", wraps=scorer.assess_pairs) as asked:
        first = reward(["p"] * 4, ["0", "1", "0", "0"], situation=["Late.", None, "Late.", None])
        again = reward(["p"] * 2, ["0", "2"], situation=["Late.", None])
    assert [len(call.args[0]) for call in asked.call_args_list] == [3, 1]
    assert first[0] == first[2] == again[0] != first[3]


def test_another_thread_may_forget_what_is_being_looked_up(scorer, voices, monkeypatch):
    """Between the question whether a reward is known and the answer, a second thread has a full memory make room."""
    monkeypatch.setattr("empathy_judge.scoring.reward._KEPT", 1)
    reward = reward_of(scorer, voices)
    others: list[threading.Thread] = []

    class Interrupted(OrderedDict):
        def __contains__(self, key: object) -> bool:
            known = super().__contains__(key)
            if known and not others:
                others.append(threading.Thread(target=reward, args=(["p"], ["1"])))
                others[0].start()
                others[0].join(timeout=2)  # longer than a pair takes, if it can be stored
            return known

    first = reward(["p"], ["0"])
    reward._known = Interrupted(reward._known)
    assert reward(["p"], ["0"]) == first
    (other,) = others
    other.join(timeout=30)
    assert not other.is_alive()
    assert len(reward._known) == 1


def test_rewards_are_clipped_and_what_is_no_voice_gets_the_lowest(scorer, voices, tmp_path):
    clips = [voices[0], silence()]
    plain = reward_of(scorer, clips)(["p"] * 2, ["0", "1"])
    assert plain[1] == 0.0
    assert 0 < plain[0] < 1
    low, high = plain[0] + 0.1, plain[0] - 0.1
    assert reward_of(scorer, clips, limits=(low, 1.0))(["p"] * 2, ["0", "1"]) == [low, low]
    assert reward_of(scorer, clips, limits=(0.0, high))(["p"], ["0"]) == [high]
    for on_error in ("none", "raise", "lowest"):  # the policy is not to blame for the context
        reward = reward_of(scorer, clips, on_error=on_error)
        with pytest.raises(AudioError, match=r"completion 1: context_audio: .*missing\.wav: no such file"):
            reward(["p"] * 2, ["0", "0"], context_audio=[voices[1], tmp_path / "missing.wav"])
    for options, reason in (
        ({"limits": (0.5, 0.5)}, "two rising numbers"),
        ({"limits": (0.5,)}, r"limits \(0\.5,\); expected two rising numbers"),
        ({"limits": ("0", "1")}, r"limits \('0', '1'\); expected two rising numbers"),
        ({"deviations": math.nan}, "from 0 on"),
        ({"deviations": "1"}, "deviations '1'; expected a number from 0 on"),
        ({"deviations": 1.0}, "not calibrated"),
        ({"by": ["kindness"]}, "dimension 'kindness'; expected empathy, warmth"),
    ):
        with pytest.raises(UserError, match=reason):
            reward_of(scorer, clips, **options)
    with pytest.raises(UserError, match="speak returned 1 clip for 2 completions"):
        EmpathyReward(scorer, lambda completions, **_: clips[:1])(["p"] * 2, ["0", "0"])


def test_whose_fault_it_is_decides(scorer, voices, make_tone, tmp_path, caplog):
    """Each kind of clip with what becomes of it: None = nobody heard it, 0 = the policy broke it."""
    samples = make_tone(0.6, 150, 0.3)
    loud = np.clip(20 * samples, -1, 1)
    assert not is_clipped(Clip(samples, RATE))
    (tmp_path / "unwritten.wav").touch()
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    cases = [
        (Clip(samples[:0], RATE), 0.0, "the file is empty"),
        (encoded(samples[:0]), 0.0, "the file is empty"),
        (Clip(samples[:100], RATE), 0.0, "too short"),
        (silence(), 0.0, "no_speech"),
        (Clip(loud, RATE), 0.0, "clipped"),
        (encoded(loud), 0.0, "clipped"),
        *((encoded(loud, RATE, "WAV", codec), 0.0, "clipped") for codec in ("ULAW", "ALAW", "PCM_U8")),
        (b"", None, "not a clip"),
        (tmp_path / "unwritten.wav", None, "not a clip"),
        (tmp_path / "missing.wav", None, "no such file"),
        (tmp_path / "broken.wav", None, "not a sound file"),
        (encoded(samples)[:500], None, "the file is cut off"),
        (Clip(np.append(samples, np.nan), RATE), None, "not finite or not scaled"),
        *((Clip(np.rint(samples * scale), RATE), None, "not finite or not scaled") for scale in (32_767, 500, 127, 20)),
        ("x" * 5_000, None, "cannot be read"),
        ("a\0b", None, "no such file"),
        ("", None, "cannot be read"),
        *((value, None, "not a clip") for value in (
            None, math.nan, 5, samples, [[1, 2], [3]], (samples, 0 + math.nan), ([[1, 2], [3]], RATE), {},
            {"array": None},
        )),
        *((value, None, "not supported") for value in (
            (samples, 0), ((samples * 32_767).astype(np.int16), RATE), (np.stack([samples, samples]), RATE),
        )),
    ]  # fmt: skip
    clips, expected, codes = zip(*cases, strict=True)
    numbers = [str(n) for n in range(len(clips) + 1)]
    reward = reward_of(scorer, [*clips, voices[0]])
    found = reward(["p"] * len(numbers), numbers)
    assert dict(zip(map(str, cases), found, strict=False)) == dict(zip(map(str, cases), expected, strict=True))
    assert found[-1] == pytest.approx(reward_of(scorer, voices)(["p"], ["0"])[0], abs=1e-6)
    assert reward.counts == Counter(codes)
    unheard = len(cases)
    assert f"the judge has no word for {unheard} of {unheard + 1} responses: not a clip (11)" in caplog.text
    lowest = reward_of(scorer, [*clips, voices[0]], on_error="lowest")(["p"] * len(numbers), numbers)
    assert lowest == [0.0] * len(cases) + found[-1:]
    caplog.clear()  # that nothing was written is told wherever it is the only fault
    assert reward_of(scorer, [tmp_path / "unwritten.wav"])(["p"], ["0"]) == [None]
    assert "no word for 1 of 1 responses: not a clip (1); first: " in caplog.text
    for clip, value, code in cases:
        strict = reward_of(scorer, [clip], on_error="raise")
        if code in ("no_speech", "clipped"):
            assert strict(["p"], ["0"]) == [value]
        else:
            with pytest.raises(UserError, match="completion 0: its response: "):
                strict(["p"], ["0"])
    with pytest.raises(UserError, match="on_error 'stop'; expected none, raise, lowest"):
        reward_of(scorer, voices, on_error="stop")


def test_a_file_that_comes_back_is_heard(scorer, voices, tmp_path):
    late = tmp_path / "late.wav"
    reward, logged = reward_of(scorer, [late, voices[1]]), []
    first = reward(["p"] * 2, ["0", "1"], log_metric=lambda *own: logged.append(own))
    assert first[0] is None
    assert logged == [("empathy_warmth/without_reward", 0.5)]
    soundfile.write(late, voices[0].samples, RATE, subtype="FLOAT")
    assert reward(["p"], ["0"])[0] == pytest.approx(reward_of(scorer, voices)(["p"], ["0"])[0], abs=1e-6)


def test_another_clip_of_the_same_name_size_and_time_is_heard(scorer, voices, make_tone, tmp_path):
    file, other = tmp_path / "response.wav", tmp_path / "other.wav"
    for path, tone in ((file, voices[0].samples), (other, make_tone(0.6, 330, 0.4, 0.1))):
        soundfile.write(path, tone, RATE)
        os.utime(path, ns=(1, 1))
    reward = EmpathyReward(scorer, lambda **_: [str(file)])
    before = reward(["p"], [""])
    other.replace(file)
    after = reward(["p"], [""])
    expected = reward_of(scorer, [file.read_bytes()])(["p"], ["0"])
    assert after == pytest.approx(expected, abs=1e-6) != before


def test_a_trl_that_takes_nothing_for_the_worst_is_refused(scorer, voices, monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", mock.Mock(__version__="1.5.0"))
    reward = reward_of(scorer, [voices[0], None])
    assert reward(["p"], ["0"])[0] > 0
    with pytest.raises(UserError, match=r"trl 1\.5\.0 takes a missing reward for 0, the lowest; expected trl >= 1\.6"):
        reward(["p"], ["1"])


def test_a_judge_outside_its_domain_or_without_a_number_has_no_reward(scorer, voices):
    scale = Scale(1, 5)
    strange = Caution("unlike_training", "level of the response: -60 dBFS", "pair")
    voiceless = Caution("no_speech", "response: no voice", "response")
    known = Assessment({"empathy": Score(4.0, scale, 0.5), "warmth": Score(2.0, scale, 0.25)})
    cases = [
        (known, Reward(0.5, 0.09375)),
        (replace(known, warnings=(strange,)), Reward(None, None, "unlike_training", strange.text)),
        (replace(known, warnings=(strange, voiceless)), Reward(0.0, None, "no_speech", voiceless.text)),
        (replace(known, warnings=(replace(voiceless, about="context"),)), Reward(0.5, 0.09375)),
        (Assessment({"empathy": Score(math.nan, scale), "warmth": Score(2.0, scale)}), "no finite score"),
    ]
    for found, expected in cases:
        own = worth(found, ["empathy", "warmth"])
        assert (own if isinstance(expected, Reward) else own.code) == expected
        with mock.patch.object(scorer, "assess_pairs", return_value=iter([found])):
            assert reward_of(scorer, voices)(["p"], ["0"]) == [own.reward]
    assert worth(known, ["empathy"], 2.0) == Reward(0.5, 0.125)
    with (
        mock.patch.object(scorer, "assess_pairs", return_value=iter([cases[1][0]])),
        pytest.raises(AudioError, match="completion 0: its response: level of the response: -60 dBFS"),
    ):
        reward_of(scorer, voices, on_error="raise")(["p"], ["0"])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"situation": ["Late.", 5]}, "completion 1: situation 5; expected text"),
        ({"situation": ["Late.", "\ud800"]}, "completion 1: situation '.*half of a surrogate pair"),
        ({"situation": ["Late.", "<|audio_bos|>"]}, r"completion 1: situation text may not contain <\|audio_bos\|>"),
        ({"situation": ["Late."] * 3}, "situation holds 3 values for 2 completions; expected one for each"),
        ({"situation": "Late."}, "situation holds 0 values for 2 completions"),
        ({"context_audio": [None, 5]}, "completion 1: context_audio: clip of type int"),
        ({"context_audio": ["a\0b", None]}, "completion 0: context_audio: path 'a.*holds a zero byte"),
        ({"context_audio": [None]}, "context_audio holds 1 value for 2 completions"),
    ],
)
def test_a_column_that_cannot_be_used_is_named_before_anything_is_heard(columns, message, scorer, voices):
    reward = reward_of(scorer, voices)
    with mock.patch.object(scorer, "assess_pairs") as asked, pytest.raises(UserError, match=message):
        reward(["p"] * 2, ["0", "1"], **columns)
    assert not asked.called


def test_columns_may_be_arrays_with_gaps(scorer, voices):
    contexts, situations = [voices[3], None], ["Late.", None]
    expected = reward_of(scorer, voices)(["p"] * 2, ["0", "1"], context_audio=contexts, situation=situations)
    array = np.empty(2, object)
    array[:] = contexts
    columns = {"context_audio": array, "situation": pd.Series(["Late.", np.nan])}
    assert reward_of(scorer, voices)(np.array(["p"] * 2), np.array(["0", "1"]), **columns) == expected
    infos = np.array([{"context_audio": voices[3], "situation": "Late."}, None])
    assert reward_of(scorer, voices).verl([], ["0", "1"], [], infos) == expected


def test_a_long_clip_is_heard_in_windows(scorer, voices, make_tone):
    """What the backbone cannot hear at once is heard all the same, its end too."""
    long = Clip(np.concatenate([make_tone(12, 150, 0.3), make_tone(13, 420, 0.1)]), RATE)
    reward = reward_of(scorer, [*voices[:2], long])
    found = reward(["p"] * 3, ["0", "1", "2"], context_audio=[None, voices[3], voices[3]])
    assert found[2] == pytest.approx(share(scorer.score(voices[3], long)), abs=1e-6)
    assert scorer.assess(voices[3], long).windows == 3
    start = share(scorer.score(voices[3], Clip(long.samples[: 10 * RATE], RATE)))
    assert abs(found[2] - start) > 1e-3


def test_merit_is_the_normalised_score_and_unsure_scores_count_less():
    scores = {"empathy": Score(4.0, Scale(1, 5), 0.5), "hostility": Score(2.0, Scale(0, 10, higher_is_better=False))}
    found = Assessment(scores)
    assert found.merit(["empathy"]) == 0.75
    assert found.merit(["hostility"]) == 0.8
    assert found.merit(["empathy", "hostility"]) == pytest.approx(0.775)
    assert found.merit(["empathy", "hostility"], deviations=2.0) == pytest.approx((0.75 - 0.25 + 0.8) / 2)


def test_responses_are_put_in_order(scorer, voices, tmp_path):
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"no sound")
    ranked = scorer.rank(voices[3], [*voices[:3], broken, silence()], situation="Late.")
    merits = [own.merit for own in ranked[:-1]]
    assert ranked[-1].index == 3
    assert ranked[-1].merit is None
    assert isinstance(ranked[-1].found, AudioError)
    assert merits == sorted(merits, reverse=True)
    for own in ranked[:-1]:
        response = [*voices[:3], broken, silence()][own.index]
        assert own.merit == pytest.approx(share(scorer.score(voices[3], response, situation="Late.")), abs=1e-6)
    by_warmth = scorer.rank(None, voices, by=["warmth"])
    best = max(scorer.score(None, clip)["warmth"] / 10 for clip in voices)  # each alone, so in another batch
    assert by_warmth[0].merit == pytest.approx(best, abs=1e-5)
    assert scorer.dimension_names(None) == ("empathy", "warmth")
    assert scorer.dimension_names("warmth") == ("warmth",)
    with pytest.raises(UserError, match="best of 0 responses"):
        scorer.rank(None, [])
    with pytest.raises(AudioError, match=r"broken\.wav: not a sound file"):
        scorer.rank(broken, voices)


def test_the_command_names_the_best(judge_folder, voices, make_tone, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)  # short names, which the table does not fold
    paths = []
    for number, voice in enumerate(voices):
        paths.append(f"r{number}.wav")
        soundfile.write(paths[-1], voice.samples, RATE, subtype="FLOAT")
    bad = Path("[bad]:cat:.wav")
    bad.write_bytes(b"no sound")
    command = ["rank", str(judge_folder), paths[0], *paths[1:], str(bad), "--device", "cpu"]
    assert main(command) == 1  # one has no score
    table = capsys.readouterr().out
    assert main([*command, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [row["response"] for row in found][-1] == str(bad)
    assert "not a sound file" in found[-1]["status"]
    assert [row["place"] for row in found] == [1, 2, 3, None]
    order = [Path(row["response"]).name for row in found]
    assert [table.index(name) for name in order] == sorted(table.index(name) for name in order)
    soundfile.write("long.wav", make_tone(25, 150, 0.3), RATE, subtype="FLOAT")
    of_two = ["rank", str(judge_folder), paths[0], paths[1], "long.wav", "--device", "cpu"]
    assert {row["response"]: row["windows"] for row in json.loads(output_of(capsys, *of_two, "--json"))} == {
        paths[1]: 1,
        "long.wav": 3,
    }
    assert "heard in 3 windows, 25.0 s of response" in " ".join(output_of(capsys, *of_two).split())
    assert main([*of_two, "--no-windows"]) == 1  # one has no score
    assert "lasts 25.0 s; expected at most 10 s" in " ".join(capsys.readouterr().out.split())
    assert main([*command[:-3], "--by", "warmth", "--device", "cpu"]) == 0
    assert main(["rank", str(judge_folder), str(bad), paths[0], "--device", "cpu"]) == 2
