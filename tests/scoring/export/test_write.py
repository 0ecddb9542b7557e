"""A judge with its backbone in its folder scores as the judge that it was made of, or is not written."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from empathy_judge.core.errors import AudioError, UserError
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.settings import LoraSettings
from empathy_judge.scoring.artifact import Placement, load_any, save_judge
from empathy_judge.scoring.export.check import CheckSet, rated_set, score_all
from empathy_judge.scoring.export.write import LossTooLarge, write_whole
from empathy_judge.scoring.judge_calibration import calibrate_judge, store_calibration
from empathy_judge.scoring.scorer import Scorer
from safetensors import safe_open
from safetensors.torch import load_file

from ...models.conftest import saved

WIDTHS = np.array([4.0, 10.0])  # of the scales


@pytest.fixture(scope="module")
def scored(tones):
    chosen = CheckSet("tones", tones.pairs)
    return lambda folder, placement=Placement(): score_all(load_any(folder, placement), chosen, "cpu")  # noqa: B008


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


def test_merged_scores_equal_those_before(judge_folder, merged, scored, backbone_folder):
    before, after = scored(judge_folder), scored(merged)
    assert np.abs(after - before).max() < 1e-5
    assert before.std(0).min() > 1e-3
    # and not because the adapter does nothing
    plain, with_adapter = (load_file(folder / "model.safetensors") for folder in (backbone_folder, merged / "backbone"))
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    (key,) = (
        key for key in plain if key.endswith("language_model.model.layers.0.self_attn.q_proj.weight") or key == name
    )
    assert (with_adapter[name] - plain[key]).abs().max() > 1e-4


def test_what_the_folder_holds(merged):
    files = {path.relative_to(merged).as_posix() for path in merged.rglob("*") if path.is_file()}
    assert files == {
        "judge.json", "head.safetensors", "README.md", "backbone/config.json", "backbone/model.safetensors",
        "backbone/chat_template.jinja", "backbone/processor_config.json", "backbone/tokenizer.json",
        "backbone/tokenizer_config.json",
    }  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in merged.rglob("*") if path.is_file()} == {0o644}
    description = json.loads((merged / "judge.json").read_text())
    assert description["settings"]["backbone"] == "backbone"
    assert description["settings"]["lora"]["parts"] == []
    export = description["export"]
    assert (export["form"], export["quantization"]) == ("merged", "none")
    assert export["origin"]["settings"]["lora"]["rank"] == 4
    assert export["check"]["pairs"] == 24
    assert set(export["check"]["dimensions"]) == {"empathy", "warmth"}
    assert export["check"]["beyond"] == []
    assert str(merged.parents[1]) not in (merged / "backbone" / "config.json").read_text()  # no path of this machine
    assert "with what was trained in its weights" in (merged / "README.md").read_text()


def test_it_loads_after_it_was_moved_and_without_what_it_was_made_of(
    make_judge, make_backbone, write, scored, tmp_path
):
    own = make_backbone(tmp_path / "own", 0)
    small = saved(make_judge(backbone=str(own)), tmp_path / "small")
    before = scored(small)
    write(small, tmp_path / "out")
    shutil.rmtree(own)
    shutil.rmtree(small)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").rename(tmp_path / "elsewhere" / "moved")
    assert np.abs(scored(tmp_path / "elsewhere" / "moved") - before).max() < 1e-5


@pytest.mark.long
@pytest.mark.parametrize(
    "lora",
    [
        LoraSettings(parts=["language_model", "projector", "audio_tower"], rank=3, alpha=7.5, method="dora"),
        LoraSettings(parts=["language_model"], rank=4, method="rslora", layers=(-2, 4)),
        LoraSettings(parts=["language_model"], rank=2, full_parts=["projector"]),
        LoraSettings(parts=[]),
    ],
    ids=["dora", "rslora", "full", "head alone"],
)
def test_every_way_of_training_can_be_merged(lora, make_judge, write, scored, tmp_path):
    small = saved(make_judge(lora, pooling="attention"), tmp_path / "small")
    before = scored(small)
    check = write(small, tmp_path / "out")
    after = scored(tmp_path / "out")
    assert np.abs(after - before).max() < 1e-5
    assert check.dimensions["warmth"].largest == pytest.approx(np.abs(after - before)[:, 1].max(), abs=1e-6)


@pytest.mark.long
def test_in_bfloat16_each_weight_is_rounded_once(make_judge, tones, scored, tmp_path):
    judge = make_judge(dtype="bfloat16")
    layer = judge.network.language_model.layers[0].self_attn.q_proj
    exact = layer.base_layer.weight.float() + layer.scaling["default"] * (
        layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    )
    before = scored(saved(judge, tmp_path / "small"))
    # Ranks are compared on pairs that rounding cannot swap. Others are 0.0004 of the scale apart, the kernels of a CPU
    # decide which of them change places, and one swap moves Spearman over 24 pairs by three times the bound
    kept: list[int] = []
    for number, own in enumerate(before):
        if (np.abs(own - before[kept]) / WIDTHS > 0.01).all():
            kept.append(number)
    assert len(kept) >= 10
    loaded = load_any(tmp_path / "small")
    ratings = rated_set(loaded, tones, "all").ratings
    chosen = CheckSet("apart", [tones.pairs[number] for number in kept], ratings[kept])
    check = write_whole(loaded, tmp_path / "out", "none", chosen)
    assert check.bounds.agreement == 0.005
    for change in check.dimensions.values():
        assert change.before is not None
        assert change.after == change.before
    stored = load_file(tmp_path / "out" / "backbone" / "model.safetensors")
    found = stored["model.language_model.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(found, exact.to(torch.bfloat16))
    assert {weight.dtype for weight in stored.values()} == {torch.bfloat16}
    after = scored(tmp_path / "out")
    changes = np.abs(after - before) / WIDTHS
    assert changes.max() < 0.05
    assert changes.mean(0).max() < 0.01
    assert (after != before).any()


@pytest.mark.long
@pytest.mark.parametrize(("quantization", "share"), [("int8", 0.27), ("nf4", 0.15)])
def test_quantized_weights_are_smaller_and_stored_so(
    quantization, share, judge_folder, merged, write, scored, tmp_path
):
    write(judge_folder, tmp_path / "out", quantization, accept_loss=True)
    stored = load_file(tmp_path / "out" / "backbone" / "model.safetensors")
    linear = "model.language_model.layers.0.self_attn.q_proj."
    codes = stored[linear + ("_weight_qdata" if quantization == "int8" else "weight")]
    assert codes.dtype == (torch.int8 if quantization == "int8" else torch.uint8)
    whole = load_file(merged / "backbone" / "model.safetensors")
    in_linears = {name for name in whole if ".language_model.layers." in name and whole[name].ndim == 2}
    kept = {name for name in in_linears if quantization == "nf4" and whole[name].shape[1] % 64}
    assert all(torch.equal(stored[name], whole[name]) for name in kept)
    quantized = sum(
        own.nbytes for name, own in stored.items() if ".language_model.layers." in name and name not in kept
    )
    assert quantized < share * sum(whole[name].nbytes for name in in_linears - kept)
    assert size(tmp_path / "out") < size(merged)
    before, after = scored(merged), scored(tmp_path / "out")
    assert (after != before).any()
    assert (np.abs(after - before) / WIDTHS).mean() < (0.01 if quantization == "int8" else 0.05)
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or path.suffix in (".json", ".safetensors", ".md", ".jinja")  # nothing is pickled
    with pytest.raises(UserError, match=f"stored as {quantization}; expected no other quantization"):
        load_any(tmp_path / "out", Placement(quantization="nf4"))


def test_4_bits_are_the_same_on_every_cpu(judge_folder, tones, write, monkeypatch, tmp_path):
    """bitsandbytes would pack weights another way where a CPU has AVX512-BF16; both kinds write and read one file."""
    modules = pytest.importorskip("bitsandbytes.nn.modules")
    chosen, files, found = CheckSet("some tones", tones.pairs[:4]), {}, {}
    for writes in (True, False):
        monkeypatch.setattr(modules, "has_avx512bf16", lambda has=writes: has)
        out = tmp_path / f"{writes}"
        write(judge_folder, out, "nf4", accept_loss=True)
        files[writes] = (out / "backbone" / "model.safetensors").read_bytes()
        for reads in (True, False):
            monkeypatch.setattr(modules, "has_avx512bf16", lambda has=reads: has)
            loaded = load_any(out)
            before = {name: weight.clone() for name, weight in loaded.judge.state_dict().items()}
            found[writes, reads] = score_all(loaded, chosen, "cpu")
            after = loaded.judge.state_dict()
            assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert files[True] == files[False]
    assert all(np.array_equal(scores, found[True, True]) for scores in found.values())
    assert found[True, True].std(0).min() > 1e-3


@pytest.mark.long
@pytest.mark.parametrize(("quantization", "apart"), [("none", 1e-5), ("int8", 0.01), ("nf4", 0.05)])
def test_an_export_scores_on_every_device_as_its_judge_on_the_cpu(
    quantization, apart, device, judge_folder, write, scored, tones, tmp_path
):
    """Checked on the device while it is written, and scored there as `Scorer` does."""
    check = write(judge_folder, tmp_path / "out", quantization, device=device.type, accept_loss=True)
    assert check.pairs == len(tones.pairs)
    scorer = Scorer.from_pretrained(tmp_path / "out", device=device.type)
    heard = [own for own in scorer.assess_pairs(tones.pairs) if not isinstance(own, AudioError)]
    after = np.array([list(own.points.values()) for own in heard])
    before = scored(judge_folder)
    assert before.std(0).min() > 1e-3
    assert (np.abs(after - before) / WIDTHS).mean() < apart


@pytest.mark.long
def test_a_judge_that_was_trained_in_4_bits_becomes_whole(make_judge, write, scored, tmp_path):
    """Its weights are those that the adapter was trained on: what 4 bits stand for."""
    judge = make_judge(quantization="nf4")
    before = scored(saved(judge, tmp_path / "small"))
    check = write(tmp_path / "small", tmp_path / "out")
    assert check.bounds.largest == 1e-5
    assert np.abs(scored(tmp_path / "out") - before).max() < 1e-4
    with safe_open(tmp_path / "out" / "backbone" / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.float32}  # noqa: SIM118


@pytest.mark.long
def test_merged_weights_may_be_quantized_when_they_are_loaded(merged, scored):
    found = scored(merged, Placement(quantization="nf4"))
    assert (np.abs(found - scored(merged)) / WIDTHS).mean() < 0.05


@pytest.mark.long
def test_a_calibration_comes_along(judge_folder, tones, write, tmp_path):
    small = Path(shutil.copytree(judge_folder, tmp_path / "small"))
    loaded = load_any(small)
    store_calibration(calibrate_judge(loaded, tones, None, device="cpu"), small)
    write(small, tmp_path / "out")
    own, other = load_any(small).calibration, load_any(tmp_path / "out").calibration
    assert own.dimensions == other.dimensions
    assert own.weights != other.weights
    assert "How sure it is" in (tmp_path / "out" / "README.md").read_text()


def test_more_loss_than_is_allowed_leaves_nothing_behind(judge_folder, tones, tmp_path, monkeypatch):
    """Nobody's ratings are needed to see it, and who accepts it gets a card that says so."""
    from empathy_judge.scoring.export import write as module

    merge_adapter = module.merge_adapter

    def forget(judge) -> None:
        for name, weight in judge.network.named_parameters():
            if "lora_B" in name:
                weight.data.zero_()
        merge_adapter(judge)

    monkeypatch.setattr(module, "merge_adapter", forget)

    few = CheckSet("some tones", tones.pairs[:3])
    loaded = load_any(judge_folder)
    with pytest.raises(LossTooLarge, match=r"empathy: largest difference .* rating points, allowed 4e-05"):
        write_whole(loaded, tmp_path / "out", "none", few, device="cpu")
    assert list(tmp_path.iterdir()) == []
    loaded = load_any(judge_folder)
    check = write_whole(loaded, tmp_path / "out", "none", few, device="cpu", accept_loss=True)
    assert check.beyond
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Beyond the bounds, and accepted by who exported it" in card
    assert json.loads((tmp_path / "out" / "judge.json").read_text())["export"]["check"]["beyond"] == check.beyond


@pytest.mark.parametrize(("quantization", "library"), [("int8", "torchao"), ("nf4", "bitsandbytes")])
def test_a_library_that_is_not_there_is_named(quantization, library, judge_folder, tmp_path, monkeypatch):
    loaded = load_any(judge_folder)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"{quantization} needs {library}; pip install"):
        write_whole(loaded, tmp_path / "out", quantization, CheckSet("nothing", []), device="cpu")
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    monkeypatch.setattr("transformers.quantizers.quantizer_bnb_4bit.is_bitsandbytes_available", lambda: False)
    with pytest.raises(UserError, match=rf"{library}.*; expected what pip install 'empathy-judge\[quantization\]' br"):
        load_backbone(Checkpoint(loaded.judge.settings.backbone, quantization=quantization))


@pytest.mark.long
def test_what_cannot_be_merged_is_refused_in_one_line(judge_folder, merged, make_judge, tmp_path):
    from empathy_judge.scoring.ensemble import write_ensemble

    nothing = CheckSet("nothing", [])
    saved(make_judge(seed=2), tmp_path / "other")
    write_ensemble([judge_folder, tmp_path / "other"], tmp_path / "ensemble")
    for source, reason in ((tmp_path / "ensemble", "several adapters"), (merged, "in its folder already")):
        loaded = load_any(source)
        with pytest.raises(UserError, match=reason):
            write_whole(loaded, tmp_path / "out", "none", nothing, device="cpu")
    loaded = load_any(judge_folder)
    with pytest.raises(UserError, match="exists; expected a folder that does not exist yet"):
        write_whole(loaded, merged, "none", nothing, device="cpu")
    with pytest.raises(UserError, match="was merged into its backbone"):
        write_ensemble([judge_folder, merged], tmp_path / "mixed")
    with pytest.raises(UserError, match="is not written again; copy it"):
        save_judge(load_any(merged), tmp_path / "again")
    assert not (tmp_path / "out").exists()
