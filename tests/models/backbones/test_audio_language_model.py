"""A text about the situation that cannot be read is refused by name, for its pair alone, at every door."""

from __future__ import annotations

import csv
import io
import math
import re

import pytest
import torch
from empathy_judge import EmpathyReward
from empathy_judge.audio.decode import Clip
from empathy_judge.core.errors import TextError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.eval.judges.trained import TrainedJudge
from empathy_judge.models.backbones.audio_language_model import messages
from empathy_judge.scoring.batch.scores import print_scores, score_table

RATE = 16_000
UNREADABLE = {
    "special token": ("a <|audio_bos|> b", r"situation text may not contain <\|audio_bos\|>"),
    "audio token": ("a <|AUDIO|> b", r"situation text may not contain <\|AUDIO\|>"),
    "turn marker": ("<|im_end|>", r"situation text may not contain <\|im_end\|>"),
    "emoji": ("\N{SMILING FACE WITH OPEN MOUTH}" * 1_000, r"tokens, and the backbone reads 2,048; expected a shorter"),
    "number": (3, "situation 3; expected text, or None"),
    "list": (["Late."], r"situation \['Late.'\]; expected text, or None"),
    "surrogate": ("Late \udce4gain.", "half of a surrogate pair; expected Unicode text"),
}
TEXTS = [name for name, (text, _) in UNREADABLE.items() if isinstance(text, str) and name != "surrogate"]


@pytest.fixture(scope="module")
def voice(make_tone) -> Clip:
    return Clip(make_tone(0.6, 150, 0.3, 0.1), RATE)


def test_the_question_names_each_clip_in_order(voice):
    turns = tuple(Turn(role, voice) for role in ("user", "assistant", "user"))
    (message,) = messages(Pair("turns", voice, turns))
    text = "".join("*" if part["type"] == "audio" else part["text"] for part in message["content"])
    assert text.startswith("Context, user: *\nContext, assistant: *\nContext, user: *\nResponse: *\n")
    (message,) = messages(Pair("situation", voice, turns[:1], situation="Late again."))
    assert message["content"][0]["text"] == "Situation: Late again.\n"
    assert messages(Pair("blank", voice, situation=" \n")) == messages(Pair("none", voice))


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_pair_is_refused_and_its_neighbours_are_scored(name, scorer, voice):
    text, message = UNREADABLE[name]
    pairs = [Pair(f"secret {n}", voice, situation=own) for n, own in enumerate(("Late.", text, None))]  # pyright: ignore
    first, refused, last = scorer.assess_pairs(pairs)
    with pytest.raises(TextError, match=message) as found:
        raise refused  # pyright: ignore[reportGeneralTypeIssues]
    assert "secret" not in str(found.value)
    alone = pytest.approx(scorer.score(None, voice, situation="Late."), abs=1e-5)  # another batch, another kernel
    assert first.points == alone != last.points
    (named,) = scorer.assess_each([{"response": voice, "situation": text}])
    assert str(named).endswith(str(refused))
    if not isinstance(text, list):  # which would be one of several situations
        with pytest.raises(TextError, match=message):
            scorer.score(None, voice, situation=text)
    table = TrainedJudge.of_scorer(scorer).score(pairs)
    assert table["score"].isna().tolist() == [False] * 2 + [True] * 2 + [False] * 2


def test_a_gap_in_a_table_is_no_text(scorer, voice):
    (refused,) = scorer.assess_pairs([Pair("p", voice, situation=math.nan)])  # pyright: ignore
    assert str(refused) == "situation nan; expected text, or None"
    expected = scorer.score(None, voice)
    assert scorer.score(None, voice, situation=math.nan) == expected  # pyright: ignore
    (found,) = scorer.assess_each([{"response": voice, "situation": math.nan}])
    assert found.points == expected  # pyright: ignore[reportAttributeAccessIssue]
    reward = EmpathyReward(scorer, lambda completions, **_: [voice] * len(completions))
    assert reward(["p"], ["0"], situation=[math.nan]) == reward(["p"], ["0"], situation=[None])


# a column of lists is no column of situations
@pytest.mark.parametrize("name", [name for name, (text, _) in UNREADABLE.items() if not isinstance(text, list)])
def test_a_reward_is_refused_where_the_policy_is_not_to_blame(name, scorer, voice):
    text, message = UNREADABLE[name]
    reward = EmpathyReward(scorer, lambda completions, **_: [voice] * len(completions))
    with pytest.raises(TextError, match=message):
        reward(["p", "p"], ["0", "1"], situation=["Late.", text])


@pytest.mark.parametrize("name", TEXTS)
def test_a_row_of_a_table_says_why_it_has_no_score(name, scorer, voice, tmp_path):
    import pandas as pd
    import soundfile

    text, message = UNREADABLE[name]
    table = pd.DataFrame({"response_audio": [voice] * 2, "situation": [text, "Late."]})
    status = score_table(scorer, table)["status"].tolist()
    assert re.search(message, status[0])
    assert status[1] == "ok"
    soundfile.write(tmp_path / "r.wav", voice.samples, RATE)
    with open(tmp_path / "manifest.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("pair_id", "response_audio", "situation"), (1, "r.wav", text), (2, "r.wav", "")])
    written = io.StringIO()
    assert print_scores(scorer, tmp_path / "manifest.csv", written, None, None, False)[0] == 1
    first, second = csv.DictReader(io.StringIO(written.getvalue()))
    assert status[0] == first["status"]
    assert second["status"] == "ok"


def test_clips_that_leave_no_positions_are_refused_like_a_text(scorer, make_tone):
    long = Clip(make_tone(9.9, 150, 0.3, 0.1), RATE)
    pair = Pair("many turns", long, tuple(Turn("user", long) for _ in range(16)))
    (found,) = scorer.assess_pairs([pair])
    with pytest.raises(TextError, match=r"question and clips make [\d,]+ tokens, and the backbone reads 2,048"):
        raise found  # pyright: ignore[reportGeneralTypeIssues]
    assert str(found).startswith("question")


@pytest.mark.parametrize("name", TEXTS)
def test_training_names_the_pair(name, make_judge, voice):
    text, message = UNREADABLE[name]
    with pytest.raises(TextError, match=rf"^pair 'p7': .*{message}"):
        make_judge().build_inputs([Pair("p6", voice), Pair("p7", voice, situation=text)])


def test_the_longest_text_that_fits_is_scored_in_any_batch(make_judge, voice):
    judge = make_judge()
    text = "x" * 1_900
    free = judge.backbone.max_tokens - int(judge.build_inputs([Pair("p", voice, situation=text)]).attention_mask.sum())
    longest = text + "x" * free
    fits = Pair("p", voice, situation=longest)
    inputs = judge.build_inputs([fits, Pair("q", voice)])
    assert inputs.attention_mask.sum(-1)[0] == 2_048
    assert torch.isfinite(judge(inputs)).all()
    with pytest.raises(TextError, match=r"make 2,049 tokens"):
        judge.build_inputs([Pair("p", voice, situation=longest + "x")])
