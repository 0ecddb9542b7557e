"""Ensembles: scores, spread, what is shared, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from empathy_judge.cli import main
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Dimension, PairDataset
from empathy_judge.models.heads import Prediction, ScaleSteps, combine
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import LoraSettings
from empathy_judge.models.weight_files import weights_hash
from empathy_judge.scoring.artifact import LoadedJudge, load_any, save_judge
from empathy_judge.scoring.ensemble import _merged, write_ensemble
from empathy_judge.scoring.judge_calibration import calibrate_judge, store_calibration
from empathy_judge.scoring.predictor import Predictor
from empathy_judge.scoring.reward import EmpathyReward
from empathy_judge.scoring.scorer import Scorer

from ..models.conftest import described, edit, saved

LORA = LoraSettings(rank=2, alpha=4.0)


def predicted(judge: EmpathyJudge, pairs) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scores and deviations `(pairs, dimensions)`."""
    found = [prediction for _, prediction in Predictor(judge, 4).predict(pairs)]
    deviations = [prediction.deviation for prediction in found]
    return torch.stack([p.score for p in found]), None if deviations[0] is None else torch.stack(deviations)


@pytest.fixture(scope="module")
def folders(make_judge, tmp_path_factory) -> list[Path]:
    """Two judges that differ in what was trained and where."""
    root = tmp_path_factory.mktemp("members")
    for seed, splits in ((1, ["fold1"]), (2, ["fold3", "fold1"])):
        saved(make_judge(LORA, seed), root / f"{seed}", train_splits=splits)
    return [root / "1", root / "2"]


@pytest.fixture(scope="module")
def ensemble(folders, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("ensemble") / "judge"
    assert main(["ensemble", *map(str, folders), "--out", str(out)]) == 0
    return out


# ---------------------------------------------------------------- arithmetic


def test_an_ensemble_is_the_mean_and_its_variance_that_of_its_members_and_between_them():
    scores = [torch.tensor([[1.0, 4.0]]), torch.tensor([[2.0, 4.0]]), torch.tensor([[6.0, 4.0]])]
    plain = combine([Prediction(score) for score in scores])
    assert torch.equal(plain.score, torch.tensor([[3.0, 4.0]]))
    assert plain.deviation[0, 0].item() == pytest.approx(7**0.5)  # (4 + 1 + 9) / 2
    assert 0 < plain.deviation[0, 1].item() < 1e-5  # members agree, and a deviation is above 0
    assert plain.log_probabilities is None
    own = combine([Prediction(score, torch.full((1, 2), float(n))) for n, score in enumerate(scores, start=1)])
    assert own.deviation[0].tolist() == pytest.approx([(7 + 14 / 3) ** 0.5, (14 / 3) ** 0.5])


def test_the_distribution_of_an_ensemble_is_the_mean_of_its_members_probabilities():
    scales = [Dimension("a", 1, 5, 1), Dimension("b", 0, 2, 1)]
    steps = ScaleSteps("histogram", scales)
    shares = [[[0.5, 0, 0, 0, 0.5], [1.0, 0, 0, 0, 0]], [[0, 0.25, 0.5, 0.25, 0], [0, 0.5, 0.5, 0, 0]]]
    members = [steps.predict(torch.tensor([own]).log()) for own in shares]
    found = combine(members)
    levels = found.each()[0].levels(scales)
    assert levels["a"] == pytest.approx([0.25, 0.125, 0.25, 0.125, 0.25], abs=1e-6)
    assert levels["b"] == pytest.approx([0.5, 0.25, 0.25], abs=1e-6)
    assert found.score[0].tolist() == pytest.approx([3.0, 0.75])


# ---------------------------------------------------------------- ensembles


def test_an_ensemble_scores_the_mean_of_its_members(folders, ensemble, pairs):
    each = torch.stack([predicted(load_any(folder).judge, pairs)[0] for folder in folders])
    assert (each[0] - each[1]).abs().min() > 1e-4  # else the mean would say nothing
    judge = load_any(ensemble).judge
    scores, deviations = predicted(judge, pairs)
    assert (scores - each.mean(0)).abs().max() < 1e-6
    assert (deviations - (each[0] - each[1]).abs() / 2**0.5).abs().max() < 1e-6
    assert torch.equal(predicted(judge, pairs[3:4])[0], predicted(judge, pairs[3:4])[0])  # whoever went last
    found = Scorer.from_pretrained(ensemble).score(pairs[0].context[0].audio, pairs[0].response)
    assert set(found) == {"empathy", "warmth"}


def test_the_backbone_is_loaded_once_and_clips_are_encoded_once(ensemble, pairs, monkeypatch):
    from empathy_judge.models import judge as judges

    loads, encoded = [], []
    load, encode = judges.load_backbone, EmpathyJudge.encode_prepared
    monkeypatch.setattr(judges, "load_backbone", lambda checkpoint: loads.append(checkpoint) or load(checkpoint))
    monkeypatch.setattr(
        EmpathyJudge, "encode_prepared", lambda self, *own: encoded.extend(own[0]) or encode(self, *own)
    )
    predicted(load_any(ensemble).judge, pairs)
    assert len(loads) == 1
    assert len(encoded) == len({id(turn.audio) for pair in pairs for turn in pair.context}) + len(pairs)


@pytest.mark.parametrize("depth", [None, 2])
def test_members_with_trained_towers_hear_for_themselves(depth, make_judge, pairs, tmp_path):
    lora = LoraSettings(parts=["audio_tower"], rank=2, alpha=4.0)
    each = []
    for seed in (1, 2):
        judge = make_judge(lora, seed, head="gaussian", depth=depth)
        saved(judge, tmp_path / f"{seed}")
        each.append(predicted(judge, pairs[:2]))
    write_ensemble([tmp_path / "1", tmp_path / "2"], tmp_path / "both")
    ensemble = load_any(tmp_path / "both").judge
    assert len(ensemble.backbone.layers) == (depth or 4)
    scores, deviations = predicted(ensemble, pairs[:2])
    own = torch.stack([score for score, _ in each])
    assert (scores - own.mean(0)).abs().max() < 1e-6
    variance = own.var(0) + torch.stack([deviation for _, deviation in each]).square().mean(0)
    assert (deviations.square() - variance).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["linear kernel", "linear kernel"], "linear kernel"),
        (["linear kernel", "gaussian kernel"], "linear kernel; gaussian kernel"),
        (["linear kernel", ""], ""),  # trained by gradients
    ],
)
def test_an_ensemble_is_a_probe_where_all_its_members_are(words, expected):
    origins = [{"name": "a", "probe": own} for own in words]
    merged = _merged([{"provenance": origin} for origin in origins])
    assert merged["provenance"]["probe"] == expected


def test_an_ensemble_says_where_its_members_come_from(ensemble, folders):
    description = load_any(ensemble).description
    assert description["members"] == ["members/01", "members/02"]
    merged = description["provenance"]
    assert merged["train_splits"] == ["fold1", "fold3"]
    assert merged["validation"] == {"empathy": None, "warmth": None}
    assert merged["content_hash"] == "c" * 64
    assert [own["train_splits"] for own in description["member_provenance"]] == [["fold1"], ["fold3", "fold1"]]
    assert "ensemble of 2 judges" in (ensemble / "README.md").read_text()
    members = [load_any(ensemble / name).judge for name in description["members"]]
    assert weights_hash(load_any(ensemble).judge) not in {weights_hash(judge) for judge in members}
    assert weights_hash(members[0]) == weights_hash(load_any(folders[0]).judge)


@pytest.fixture(scope="module")
def calibrated(ensemble, dataset_folder, tmp_path_factory) -> Path:
    copy = shutil.copytree(ensemble, tmp_path_factory.mktemp("calibrated") / "copy")
    store_calibration(calibrate_judge(load_any(copy), PairDataset.load(dataset_folder), ["validation"]), copy)
    return copy


def factors_of(folder: Path) -> torch.Tensor:
    calibration = load_any(folder).calibration
    return torch.tensor([calibration.dimensions[name].factor for name in ("empathy", "warmth")])


def test_an_ensemble_is_calibrated_by_how_far_its_members_lie_apart(calibrated, pairs):
    loaded = load_any(calibrated)
    _, deviations = predicted(loaded.judge, pairs)
    scored = list(Scorer(loaded, "ensemble", Predictor(loaded.judge, 4)).assess_pairs(pairs))
    errors = torch.tensor([[own.standard_error for own in found.scores.values()] for found in scored])
    assert (errors / (deviations * factors_of(calibrated)) - 1).abs().max() < 1e-5


def test_judges_that_disagree_pay_less(calibrated, folders, dataset_folder):
    """The reward of an ensemble is the mean of its members less k standard errors, which grow with how far apart they
    are on this response."""
    pairs = PairDataset.load(dataset_folder).subset("validation").pairs
    each = torch.stack([predicted(load_any(folder).judge, pairs)[0] for folder in folders])
    start, span = torch.tensor([1.0, 0.0]), torch.tensor([4.0, 10.0])
    plain = ((each.mean(0) - start) / span).mean(-1)
    apart = ((each[0] - each[1]).abs() / 2**0.5 * factors_of(calibrated) / span).mean(-1)
    columns = {
        "context_audio": [pair.context[0].audio for pair in pairs], "situation": [pair.situation for pair in pairs]
    }  # fmt: skip
    for k in (0.0, 0.25, 1.0):
        reward = EmpathyReward(
            Scorer.from_pretrained(calibrated), lambda **_: [pair.response for pair in pairs], deviations=k
        )
        found = torch.tensor(reward([""] * len(pairs), [""] * len(pairs), **columns))
        torch.testing.assert_close(found, (plain - k * apart).clamp(0, 1), atol=1e-5, rtol=0)
    assert apart.std() > 0.01 * apart.mean()


def test_a_changed_member_is_refused(ensemble, tmp_path):
    copy = shutil.copytree(ensemble, tmp_path / "copy")
    member = copy / "members" / "02" / "judge.json"
    member.write_text(member.read_text().replace('"tones"', '"songs"'))
    with pytest.raises(UserError, match=r"members/02/judge\.json: not the file that was exported"):
        load_any(copy)
    member.unlink()
    with pytest.raises(UserError, match=r"members/02/judge\.json: missing"):
        load_any(copy)
    for names in (["members/01"], ["members/01", "../1"], "members/01"):
        edit(copy / "judge.json", lambda values, names=names: values.update(members=names))
        with pytest.raises(UserError, match=r"judge\.json: members"):
            load_any(copy)


def test_checkpoints_can_be_members(folders, make_judge, tmp_path):
    judge = make_judge(LORA, 1)  # as in the first folder, then trained a little further
    judge.use({name: weight + 0.001 for name, weight in judge.trained().items()})
    state = {f"judge.{name}": weight.detach() for name, weight in judge.trained().items()}
    run = tmp_path / "run" / "checkpoints"
    run.mkdir(parents=True)
    torch.save({"state_dict": state, "description": described(judge).description}, run / "best.ckpt")
    write_ensemble([run.parent, folders[0]], tmp_path / "both")
    members = load_any(tmp_path / "both").judge.members
    for member, other in ((0, judge), (1, load_any(folders[0]).judge)):
        weights = other.trained()
        assert all(torch.equal(weight, weights[name]) for name, weight in members[member].items())


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lora": LoraSettings(rank=3, alpha=4.0)}, "lora rank 3, of the first judge 2"),
        ({"lora": LoraSettings(rank=2, alpha=5.0)}, "lora alpha 5.0, of the first judge 4.0"),
        ({"pooling": "attention"}, "pooling 'attention', of the first judge 'response_mean'"),
        ({"head": "gaussian"}, "head 'gaussian', of the first judge 'regression'"),
        ({"depth": 2}, "depth 2, of the first judge None"),
    ],
)
def test_judges_that_were_built_otherwise_are_refused(folders, make_judge, tmp_path, changes, text):
    other = saved(make_judge(**{"lora": LORA, **changes}), tmp_path / "other")
    with pytest.raises(UserError) as found:
        write_ensemble([folders[0], other], tmp_path / "out")
    assert text in str(found.value)
    assert not (tmp_path / "out").exists()


def test_judges_of_other_dimensions_or_backbones_are_refused(folders, make_judge, tmp_path):
    judge = make_judge(LORA)
    description = {**described(judge).description, "backbone_fingerprint": "f" * 64}
    save_judge(LoadedJudge(judge, description), tmp_path / "backbone")
    with pytest.raises(UserError, match="fingerprint ffffffffffff, of the first judge"):
        write_ensemble([folders[0], tmp_path / "backbone"], tmp_path / "out")
    judge.dimensions = (Dimension("empathy", 1, 7, 1), judge.dimensions[1])
    saved(judge, tmp_path / "scale")
    with pytest.raises(UserError, match=r'scores \[\["empathy", 1.*, 7'):
        write_ensemble([folders[0], tmp_path / "scale"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fewer_than_two_judges_and_ensembles_of_ensembles_are_refused(folders, ensemble, tmp_path, capsys):
    for words in ([folders[0]], [folders[0], folders[0]]):
        assert main(["ensemble", *map(str, words), "--out", str(tmp_path / "out")]) == 2
        assert "expected two or more, each once" in capsys.readouterr().err
    for paths in ([ensemble, folders[0]], [folders[0], ensemble]):
        with pytest.raises(UserError, match="an ensemble itself"):
            write_ensemble(paths, tmp_path / "out")
    with pytest.raises(UserError, match="exists"):
        write_ensemble(folders, ensemble)
