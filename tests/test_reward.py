"""The judge as a reward, and the order of several responses."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import threading
from collections import OrderedDict
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import soundfile
import torch
from empathy_judge import Scorer
from empathy_judge.cli import main
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.errors import AudioError, UserError
from empathy_judge.models.assessment import Assessment, Scale, Score
from empathy_judge.reward import EmpathyReward

RATE = 16_000
EXAMPLE = Path(__file__).parents[1] / "examples" / "grpo.py"


@pytest.fixture(scope="module")
def scorer(judge_folder: Path) -> Scorer:
    return Scorer.from_pretrained(judge_folder, device="cpu", batch_size=4)


@pytest.fixture
def voices(make_tone) -> list[Clip]:
    return [Clip(make_tone(0.6 + 0.1 * n, 150 + 60 * n, 0.1 + 0.1 * n, 0.1), RATE) for n in range(4)]


def silence() -> Clip:
    return Clip(np.zeros(RATE, np.float32), RATE)


def reward_of(scorer, clips, **options) -> EmpathyReward:
    """Completions are numbers of clips."""
    return EmpathyReward(scorer, lambda completions, **_: [clips[int(text)] for text in completions], **options)


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
    monkeypatch.setattr("empathy_judge.reward._KEPT", 1)
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
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF")
    clips = [voices[0], silence(), broken, tmp_path / "missing.wav"]
    plain = reward_of(scorer, clips)(["p"] * 4, ["0", "1", "2", "3"])
    assert plain[1:] == [0.0, 0.0, 0.0]
    assert 0 < plain[0] < 1
    low, high = plain[0] + 0.1, plain[0] - 0.1
    assert reward_of(scorer, clips, limits=(low, 1.0))(["p"] * 2, ["0", "1"]) == [low, low]
    assert reward_of(scorer, clips, limits=(0.0, high))(["p"], ["0"]) == [high]
    with pytest.raises(AudioError, match=r"missing\.wav"):  # the policy is not to blame for the context
        reward_of(scorer, clips)(["p"], ["0"], context_audio=[tmp_path / "missing.wav"])
    for options, reason in (
        ({"limits": (0.5, 0.5)}, "two rising numbers"),
        ({"deviations": math.nan}, "from 0 on"),
        ({"deviations": 1.0}, "not calibrated"),
        ({"by": ["kindness"]}, "dimension 'kindness'; expected empathy, warmth"),
    ):
        with pytest.raises(UserError, match=reason):
            reward_of(scorer, clips, **options)
    with pytest.raises(UserError, match="speak returned 1 clips for 2 completions"):
        EmpathyReward(scorer, lambda completions, **_: clips[:1])(["p"] * 2, ["0", "0"])


def test_what_is_no_clip_gets_the_lowest_reward_or_an_error(scorer, voices, make_tone):
    samples = make_tone(0.6, 150, 0.3)
    plain = reward_of(scorer, [voices[0], (torch.tensor(samples).bfloat16(), RATE)])(["p"] * 2, ["0", "1"])
    assert min(plain) > 0
    bad = [
        None, math.nan, 5, samples, "x" * 5_000, "a\0b", b"", "", [[1, 2], [3]], (samples, 0), (samples, math.nan),
        ([[1, 2], [3]], RATE),
        ((samples * 32_767).astype(np.int16), RATE), (np.stack([samples, samples]), RATE), {}, {"array": None},
    ]  # fmt: skip
    completions = [str(n) for n in range(len(bad) + 1)]
    found = reward_of(scorer, [*bad, voices[0]])(["p"] * len(completions), completions)
    assert found[:-1] == [0.0] * len(bad)
    assert found[-1] == pytest.approx(plain[0], abs=1e-6)
    for clip in bad:
        with pytest.raises(UserError):
            reward_of(scorer, [clip], on_error="raise")(["p"], ["0"])
    with pytest.raises(AudioError, match="completion 0: its response: samples have shape"):
        reward_of(scorer, [(np.zeros((2, 9)), RATE)], on_error="raise")(["p"], ["0"])
    with pytest.raises(UserError, match="on_error 'stop'; expected lowest, raise"):
        reward_of(scorer, voices, on_error="stop")


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
        ({"context_audio": [None]}, "context_audio holds 1 values for 2 completions"),
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


def test_a_tiny_policy_takes_three_steps(scorer, voices):
    """Group-relative policy optimisation (Shao et al., 2024), by hand: answers are clips, the policy their logits."""
    torch.manual_seed(0)
    logits = torch.nn.Parameter(torch.zeros(len(voices)))
    optimizer = torch.optim.Adam([logits], lr=0.3)
    reward = reward_of(scorer, voices)
    best = int(np.argmax(reward([""] * 4, ["0", "1", "2", "3"], context_audio=[voices[3]] * 4)))
    for _ in range(3):
        drawn = torch.multinomial(logits.softmax(-1), 16, replacement=True)
        rewards = torch.tensor(reward([""] * 16, [str(int(n)) for n in drawn], context_audio=[voices[3]] * 16))
        assert rewards.isfinite().all()
        assert ((rewards >= 0) & (rewards <= 1)).all()
        assert rewards.std() > 0
        advantage = (rewards - rewards.mean()) / rewards.std()
        loss = -(advantage * logits.log_softmax(-1)[drawn]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert logits.softmax(-1)[best] > 0.3  # of four


@pytest.mark.long
def test_the_example_trains_a_policy_with_trl(judge_folder, dataset_folder, tmp_path):
    pytest.importorskip("trl")
    spec = importlib.util.spec_from_file_location("grpo_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    wav = example.speak([[0, 5, 35]])[0]
    samples, rate = soundfile.read(io.BytesIO(wav))
    assert (len(samples), rate) == (3 * int(0.08 * RATE), RATE)
    before, after = example.train(judge_folder, dataset_folder, 3, tmp_path / "grpo", contexts=2, answers=4)
    assert 0 < before < 1
    assert 0 < after < 1
    assert before != after


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
    assert by_warmth[0].merit == max(scorer.score(None, clip)["warmth"] / 10 for clip in voices)
    assert scorer.dimension_names(None) == ("empathy", "warmth")
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
    bad = Path("bad.wav")
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
    assert main([*of_two, "--json"]) == 0
    assert {row["response"]: row["windows"] for row in json.loads(capsys.readouterr().out)} == {
        paths[1]: 1,
        "long.wav": 3,
    }
    assert main(of_two) == 0
    assert "heard in 3 windows, 25.0 s of response" in " ".join(capsys.readouterr().out.split())
    assert main([*of_two, "--no-windows"]) == 1  # one has no score
    assert "lasts 25.0 s; expected at most 10 s" in " ".join(capsys.readouterr().out.split())
    assert main([*command[:-3], "--by", "warmth", "--device", "cpu"]) == 0
    assert main(["rank", str(judge_folder), str(bad), paths[0], "--device", "cpu"]) == 2
