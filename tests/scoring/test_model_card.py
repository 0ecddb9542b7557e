"""The model card: what people read, and what programs read out of its head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from empathy_judge.scoring.model_card import backbone_on_hub, render_card
from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results


@pytest.fixture
def description(judge_folder) -> dict[str, Any]:
    return json.loads((judge_folder / "judge.json").read_text())


def statistic(value: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "n": 9, "reason": None}


@pytest.fixture
def report() -> dict[str, Any]:
    def dimension(spearman: dict) -> dict[str, Any]:
        return {
            "n_items": 9, "n_groups": 3, "n_raters": 4, "spearman": spearman, "pearson": statistic(0.5), "mae": None,
            "ceiling": {"spearman": statistic(0.8, 0.7, 0.9)}, "uncertainty": None,
            "like_for_like": {"rater": statistic(0.8), "difference": statistic(-0.08, -0.2, 0.04)},
        }  # fmt: skip

    return {
        "judge": "judge",
        "command": "empathy-judge evaluate judge --data tones",
        "dataset": {"name": "tones", "licence": "CC0-1.0", "synthetic": True},
        "split": "test",
        "dimensions": {"empathy": dimension(statistic(0.72, 0.61, 0.83)), "warmth": dimension(statistic(None))},
        "checks": {"silent": {"empathy": {"spearman": statistic(0.04, -0.06, 0.14)}, "warmth": {}}},
    }


def read(text: str, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    found = metadata_load(tmp_path / "README.md")
    assert found is not None
    return found


def test_programs_find_what_was_measured(description, report, tmp_path):
    found = read(render_card(description, report), tmp_path)
    assert found["pipeline_tag"] == "audio-classification"
    assert found["library_name"] == "empathy-judge"
    assert (found["license"], found["license_name"]) == ("other", "that-of-backbone-and-data")
    assert found["datasets"] == ["tones"]
    assert {"synthetic-ratings", "lora", "speech"} <= set(found["tags"])
    assert "base_model" not in found  # it came out of a folder of this machine
    _, results = model_index_to_eval_results(found["model-index"])
    (spearman,) = [result for result in results if result.metric_type == "spearmanr"]  # warmth is undefined
    assert spearman.metric_value == 0.72
    assert spearman.dataset_split == "test"
    assert spearman.metric_args == {
        "dimension": "empathy", "level": "item", "low": 0.61, "high": 0.83, "n_items": 9, "n_groups": 3, "n_raters": 4,
        "one_rater": {"value": 0.8, "low": 0.7, "high": 0.9},
    }  # fmt: skip
    ModelCard.load(tmp_path / "README.md")


def test_people_read_first_whose_ratings_these_are(description, report):
    text = render_card(description, report).split("---\n", 2)[2]
    assert text.splitlines()[3].startswith("> **Synthetic.**")
    description["provenance"]["synthetic"] = False
    other = render_card(description, report).split("---\n", 2)[2]
    assert other.splitlines()[3] == "> **Human ratings.** Trained on ratings that people gave (tones)."
    for words in ("## What it is for, and what not", "## Limits", "## Licence", "training data: tones, CC0-1.0"):
        assert words in other
    assert "| empathy | 9 | 0.72 (0.61 to 0.83) | 0.80 | -0.08 (-0.20 to 0.04) |" in other
    assert "| empathy | silence in place of every clip (`silent`) | 0.04 (-0.06 to 0.14) |" in other
    assert "| warmth | as they are | - |" in other


def test_without_a_report_nothing_is_claimed(description, tmp_path):
    text = render_card(description, None)
    found = read(text, tmp_path)
    assert "model-index" not in found
    assert "Not measured yet" in text
    assert "Does it listen?" not in text


@pytest.mark.parametrize(
    ("backbone", "expected"),
    [("Qwen/Qwen2-Audio-7B", "Qwen/Qwen2-Audio-7B"), ("nano", None), ("/srv/models/qwen", None), ("../a/b", None)],
)
def test_the_backbone_is_named_where_the_hub_knows_it(backbone, expected, description, tmp_path):
    description["settings"]["backbone"] = backbone
    assert backbone_on_hub(description) == expected
    found = read(render_card(description, None), tmp_path)
    assert (found.get("base_model"), found.get("base_model_relation")) == (expected, "adapter" if expected else None)


def test_where_training_began_and_what_it_added_is_said(description):
    own = {"probe": 0.6834, "added": 0.0123, "low": -0.0101, "high": 0.0352}
    certain, unknown = {**own, "low": 0.001}, dict.fromkeys(own)
    description["provenance"]["start"] = {"empathy": own, "warmth": certain, "pace": unknown}
    (first, second) = (line for line in render_card(description, None).splitlines() if "training began" in line)
    assert first == (
        "- On the validation split, empathy: training began at a probe with Spearman 0.683 and added +0.012 "
        "(90 % interval -0.010 to +0.035); this is not told apart from the probe."
    )
    assert second.endswith("(90 % interval +0.001 to +0.035).")
    description["provenance"]["start"] = {}
    assert "training began" not in render_card(description, None)


def test_a_judge_by_the_probe_has_no_adapter_and_says_what_its_head_reads(description, tmp_path):
    before = render_card(description, None)
    assert "- trained of it: LoRA of rank 4 on language_model; the rest is frozen\n- pooling" in before
    assert "- adapter and head: the backbone is loaded from" in before
    description["settings"]["lora"] |= {"parts": [], "full_parts": []}
    text = render_card(description, None)
    assert "- it is frozen as a whole: only what reads its states was fitted\n- pooling" in text
    assert "- the head alone: the backbone is loaded from" in text
    assert "the head also reads" not in before + text
    description["settings"]["head_input"] = {"audio": "all_layers", "functionals": True}
    text = render_card(description, None)
    assert "every layer of the audio encoder\n- the head also reads: measures of pitch" in text
    assert "lora" not in read(text, tmp_path)["tags"]
    description["provenance"]["losses"] = {"mse": 1.0}
    assert "- losses: mse 1\n" in render_card(description, None)
    words = "linear kernel on 24 pairs, explains 0.41 of the variance of ratings of groups left out; penalty empathy 3"
    description["provenance"]["probe"] = words
    text = render_card(description, None)
    assert f"- method: probe, a regression on states of the frozen backbone: {words}\n- data hash" in text
    assert "losses" not in text


def test_forms(description, tmp_path):
    settings = {**description["settings"], "backbone": "Qwen/Qwen2-Audio-7B"}
    change = {"largest": 0.0123, "mean": 0.004, "between": 0.9991, "before": 0.72, "after": None}
    check = {"data": "tones, test", "pairs": 9, "dimensions": {"empathy": change}, "beyond": []}
    description["settings"]["backbone"] = "backbone"
    description["export"] = {
        "form": "merged",
        "quantization": "int8",
        "origin": {"settings": settings, "trained_in_full": ["projector"]},
        "check": check,
    }
    text = render_card(description, None)
    found = read(text, tmp_path)
    assert (found["base_model"], found["base_model_relation"]) == ("Qwen/Qwen2-Audio-7B", "quantized")
    assert found["library_name"] == "empathy-judge"
    assert "8-bit" in found["tags"]
    assert "custom_code" not in found["tags"]
    assert "| empathy | 0.012 | 0.004 | 0.9991 | 0.7200 | - |" in text
    assert "LoRA of rank 4 on language_model; projector in full; the rest is frozen" in text
    assert 'Scorer.from_pretrained("this folder")' in text
    assert "as https://huggingface.co/Qwen/Qwen2-Audio-7B states it" in text


@pytest.mark.parametrize("name", ["my data: 'quoted' & \"more\"", "# nothing", "---", "日本語"])
def test_any_name_of_a_dataset_can_be_read_again(name, description, report, tmp_path):
    description["provenance"]["dataset"] = report["dataset"]["name"] = name
    found = read(render_card(description, report), tmp_path)
    assert len(found["datasets"]) == 1
    assert found["model-index"][0]["results"][0]["dataset"]["name"] == name
