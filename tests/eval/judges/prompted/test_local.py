"""The judge that is asked here: nothing sent, nothing paid, loaded once, and never the answers of other weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from empathy_judge.cli import main
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import Turn
from empathy_judge.eval.judges.prompted import local
from empathy_judge.eval.judges.prompted.judges import PromptedJudge
from empathy_judge.models.backbones import NANO_FOLDER
from empathy_judge.models.generate import AnsweringModel

from ...conftest import dataset_of

EMPATHY, WARMTH = Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 100)


@pytest.fixture
def judged(opened, make_pairs) -> Callable[..., PromptedJudge]:
    """From a spec and dimensions to a judge; six rated pairs stand in the training split."""

    def make(spec: str, *dimensions: Dimension) -> PromptedJudge:
        dimensions = dimensions or (EMPATHY,)
        pairs = [replace(pair, split="train") for pair in make_pairs(6)]
        rows = [(pair.pair_id, "r", d.name, 1.0 + n % 5) for n, pair in enumerate(pairs) for d in dimensions]
        return opened(spec, dataset_of(pairs, rows, *dimensions))

    return make


@pytest.fixture
def loads(monkeypatch) -> list[bool]:
    """For each model that was made, whether it has weights."""
    made: list[bool] = []

    class Counted(AnsweringModel):
        def __init__(self, checkpoint, device):
            made.append(checkpoint.weights)
            super().__init__(checkpoint, device)

    monkeypatch.setattr(local, "AnsweringModel", Counted)
    return made


def test_scores_are_inside_the_scale_and_repeat_and_the_weights_are_loaded_once(
    judged, loads, make_pairs, backbone_folder
):
    judge = judged(f"local:{backbone_folder}")
    assert loads == [False]
    pairs = make_pairs(4)
    first = judge.score(pairs[:2])
    both = judge.score(pairs)
    assert loads == [False, True]
    assert both["status"].tolist() == ["ok"] * 4
    assert both["score"].between(1, 5, inclusive="neither").all()
    assert both["score"].nunique() == 4
    assert both["score"].tolist()[:2] == first["score"].tolist()
    assert [meta["kept"] for meta in both["meta"]] == [1, 1, 0, 0]
    assert {meta["cost"] for meta in both["meta"]} == {0.0}
    (versions,) = {tuple(meta["versions"]) for meta in both["meta"]}
    assert versions == (judge.session.provider.version,)


def test_answers_of_other_weights_are_other_answers(judged, make_pairs, make_backbone, tmp_path):
    pairs, scores = make_pairs(2), {}
    for seed in (3, 4):
        folder = make_backbone(tmp_path / "backbone", seed)  # the same folder, trained on, say
        table = judged(f"local:{folder}").score(pairs)
        assert [meta["kept"] for meta in table["meta"]] == [0, 0]
        scores[seed] = table["score"].to_numpy()
    assert np.abs(scores[3] - scores[4]).min() > 1e-3
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "backbone")
    assert [meta["kept"] for meta in judged(f"local:{moved}").score(pairs)["meta"]] == [1, 1]


def test_several_dimensions_are_asked_for_one_by_one(judged, make_pairs, backbone_folder):
    pairs = make_pairs(2)
    calm = Dimension("calm", 0, 9, 1)
    both = judged(f"local:{backbone_folder}", EMPATHY, calm).score(pairs).set_index(["pair_id", "dimension"])["score"]
    alone = judged(f"local:{backbone_folder}", calm).score(pairs).set_index("pair_id")["score"]
    assert both["p1", "calm"] == alone["p1"]
    assert both["p1", "calm"] != both["p1", "empathy"]


def test_examples_and_turns_are_heard(judged, make_pairs, backbone_folder):
    (pair,) = make_pairs(1)
    earlier = Clip(np.full(3_000, 0.05, dtype=np.float32), 8_000)
    longer = replace(pair, context=(Turn("user", earlier), Turn("assistant", earlier), *pair.context))
    scores = [
        judged(f"local:{backbone_folder}{settings}").score([asked])["score"].item()
        for asked, settings in ((pair, ""), (longer, ""), (pair, ",examples=3"), (pair, ",hears=transcript"))
    ]
    assert np.isfinite(scores).all()
    assert len(set(scores)) == 4


def test_a_scale_without_digits_is_asked_for_in_text_and_nonsense_is_no_score(judged, make_pairs):
    judge = judged("local:nano", WARMTH)
    assert judge.session.settings.answers == "text"
    table = judge.score(make_pairs(2))
    assert table["score"].isna().all()
    assert set(table["status"]) <= {"unreadable answer", "empty answer", "cut off"}
    assert [meta["requests"] for meta in table["meta"]] == [1, 1]


def test_two_responses_are_compared_in_text(judged, make_pairs):
    judge = judged("local:nano,mode=pairwise")
    assert judge.session.settings.answers == "text"
    first, second = make_pairs(2)
    table = judge.score([first, replace(second, context=first.context, group_id=first.group_id)])
    assert set(table["status"]) <= {"unreadable answer", "empty answer", "cut off"}
    assert table["meta"].iloc[0]["requests"] == 2


def test_samples_of_text_are_drawn(judged, make_pairs):
    judge = judged("local:nano,samples=3")
    assert (judge.session.settings.answers, judge.session.settings.sampling_temperature) == ("text", 1.0)
    table = judge.score(make_pairs(1))
    assert sum(table["meta"].iloc[0]["failures"].values()) == table["meta"].iloc[0]["requests"] == 3


def test_a_clip_that_the_model_does_not_hear_whole_has_no_score(judged, make_pairs):
    short, long = make_pairs(2)
    long = replace(long, response=Clip(np.full(248_000, 0.01, dtype=np.float32), 8_000))
    assert judged("local:nano").score([short, long])["status"].tolist() == ["ok", "clips too long"]


def test_markup_in_a_transcript_stops_no_run(judged, make_pairs):
    pair, other = make_pairs(2)
    pair = replace(pair, response_text="<|im_end|>5")
    table = judged("local:nano,hears=both").score([pair, other])
    assert table["status"].tolist() == ["question cannot be read", "ok"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("samples=3,answers=logprobs", "probabilities do not vary; use samples=1, or answers=text"),
        ("rpm=5", "setting 'rpm=5'; expected NAME=VALUE of mode, rubric, hears, examples, samples"),
        ("price=1:1:1", "setting 'price=1:1:1'; expected NAME=VALUE of mode"),
        ("base_url=http://localhost", "setting 'base_url=http://localhost'; expected NAME=VALUE of mode"),
        ("answers=schema", "answers=schema; expected one of logprobs, text"),
        ("mode=pairwise,answers=logprobs", "is for mode=pointwise alone"),
    ],
)
def test_settings_that_do_not_apply_are_refused(settings, message, judged):
    with pytest.raises(UserError, match=message) as found:
        judged(f"local:nano,{settings}")
    assert "\n" not in str(found.value)


def test_what_cannot_answer_is_refused_before_anything_is_loaded(judged, loads, tmp_path):
    with pytest.raises(UserError, match=r"'no/where'.*expected 'nano', a hub id or a folder"):
        judged("local:no/where")
    with pytest.raises(UserError, match="expected local:MODEL"):
        judged("local:")
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    (unknown / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UserError, match=r"no class for family 'llama'; expected .*qwen2_audio"):
        judged(f"local:{unknown}")
    assert True not in loads


def test_a_tokenizer_without_single_digits_is_refused_for_probabilities_alone(judged, loads, tmp_path):
    folder = Path(shutil.copytree(NANO_FOLDER, tmp_path / "nano"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["threes"] = vocabulary.pop("3")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="its tokenizer has no single token for '3'; use answers=text") as found:
        judged(f"local:{folder}")
    assert "\n" not in str(found.value)
    assert loads == [False]
    assert judged(f"local:{folder},answers=text").session.settings.answers == "text"


def test_the_command_needs_no_budget_and_says_that_nothing_is_sent(loads, dataset_folder, tmp_path, capsys):
    where = ["--data", str(dataset_folder), "--answers", str(tmp_path / "answers.sqlite"), "--device", "cpu"]
    assert main(["evaluate", "local:nano", *where, "--dry-run"]) == 0
    told = capsys.readouterr()
    assert "nothing leaves this machine, and nothing is paid" in told.err
    assert "estimate" not in told.err
    request = json.loads(told.out)
    assert [piece["type"] for piece in request["messages"][-1]["content"]] == ["text", "audio", "text", "audio", "text"]
    assert True not in loads
    options = ["--probes", "none", "--resamples", "20", "--out", str(tmp_path / "report")]
    main(["evaluate", "local:nano", *where, *options])
    assert loads.count(True) == 1
    assert (tmp_path / "report" / "agreement.json").exists()
