"""`judge.json`, edited by a program: keys dropped, renamed, of another type, exaggerated. A judge loads as it was, or
is refused in one line."""

from __future__ import annotations

import copy
import itertools
import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models import judge
from empathy_judge.models.settings import HeadInputSettings
from empathy_judge.models.weight_files import weights_hash
from empathy_judge.scoring import artifact
from empathy_judge.scoring.assessment import Domain
from empathy_judge.scoring.calibration import Calibration, no_calibration
from empathy_judge.scoring.ensemble import write_ensemble
from empathy_judge.scoring.export.check import synthetic_set
from empathy_judge.scoring.export.write import write_whole
from empathy_judge.scoring.judge_calibration import store_calibration

from .conftest import edit, saved

VALUES: list[Any] = [
    None, True, -1, 0, 1.5, 10**9, 10**30, 10**400, 1e308, math.nan, math.inf, "", "1", "x", "\ud800", "a" * 100_000,
    "../..", "a\0b", [], [1], ["x", "x"], {}, {"a": 1}, [[1]],
]  # fmt: skip
EACH = 4  # of the values for each key, by turns
TRIED = 150  # one of so many edits; the test marked `long` tries them all
KINDS = ["plain", "histogram", "ensemble", "merged"]


@pytest.fixture(scope="module", params=KINDS)
def of_each_kind(request, judge_folder, make_judge, tmp_path_factory) -> Path:
    """A judge of each kind."""
    out = tmp_path_factory.mktemp("judges") / request.param
    if request.param == "plain":
        shutil.copytree(judge_folder, out)
        loaded = artifact.load_any(out)
        none = dict.fromkeys(["empathy", "warmth"], no_calibration(False))
        store_calibration(
            Calibration(
                weights_hash(loaded.judge), "tones", True, "c", "s", None, 0, "none", None, none, Domain(0, {})
            ),
            out,
        )
    elif request.param == "histogram":
        saved(make_judge(head_input=HeadInputSettings(functionals=True), head="gaussian"), out)
    elif request.param == "ensemble":
        write_ensemble([judge_folder, shutil.copytree(judge_folder, out.with_name("member"))], out)
    else:
        loaded = artifact.load_any(judge_folder)
        write_whole(loaded, out, "none", synthetic_set(loaded), device="cpu")
    return out


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Of everything in nested values."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, own in inside:
        yield (*path, key)
        yield from places(own, (*path, key))


def edits(description: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What was done, and the description after it."""
    turns = itertools.cycle(VALUES)
    for path in places(description):
        for change in ("drop", "rename", *itertools.islice(turns, EACH)):
            edited = copy.deepcopy(description)
            inside: Any = edited
            for key in path[:-1]:
                inside = inside[key]
            if change == "drop":
                del inside[path[-1]]
            elif change == "rename" and isinstance(inside, dict):
                inside[f"{path[-1]}x"] = inside.pop(path[-1])
            else:
                inside[path[-1]] = change
            yield f"{path} {change!r}"[:100], edited


@pytest.mark.parametrize("every", [TRIED, pytest.param(1, marks=pytest.mark.long)])
def test_an_edited_description_is_refused_in_one_line_or_changes_no_score(
    every, of_each_kind, dataset_folder, monkeypatch
):
    pairs = PairDataset.load(dataset_folder).pairs[:1]
    kept: dict[str, Any] = {}
    load = judge.load_backbone

    def quickly(checkpoint: Any) -> Any:
        if repr(checkpoint) not in kept:
            kept.clear()
            kept[repr(checkpoint)] = load(checkpoint)
        return copy.deepcopy(kept[repr(checkpoint)])

    @torch.no_grad()
    def scores() -> torch.Tensor:
        loaded = artifact.load_any(of_each_kind).judge
        return loaded(loaded.build_inputs(pairs))

    monkeypatch.setattr(judge, "load_backbone", quickly)
    path, whole = of_each_kind / "judge.json", (of_each_kind / "judge.json").read_text()
    expected, moved, wrong, count = scores(), [], [], 0
    for what, edited in itertools.islice(edits(json.loads(whole)), 0, None, every):
        path.write_text(json.dumps(edited))
        count += 1
        try:
            if (scores() - expected).abs().max() > 1e-5:
                moved.append(what)
        except UserError:
            continue
        except Exception as error:
            wrong.append(f"{what}: {error!r}")
    path.write_text(whole)
    assert (moved, wrong) == ([], [])
    assert count > 300 / every


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ('"minimum": 1,', '"minimum": "1",', "dimensions.0.minimum '1'; expected a number"),
        ('"minimum": 1,', '"minimum": true,', "dimensions.0.minimum True; expected a number"),
        ('"step": 1,', '"step": "1",', "dimensions.0.step '1'; expected a number"),
        ('"minimum": 1,', f'"minimum": 1{"0" * 400},', "dimensions.0.minimum 1000000"),
        ('"minimum": 1,', f'"minimum": 1{"0" * 5_000},', "Exceeds the limit (4300 digits) for integer string"),
        ('"minimum": 1,', f'"minimum": 1{"0" * 200},', "dimension empathy: scale 10000000000000000000000000000000000"),
        ('"step": 1,', '"step": 1e400,', "dimensions.0.step inf; expected a finite number"),
        ('"step": 1,', '"step": NaN,', "dimensions.0.step nan; expected a finite number"),
        ('"alpha": 8.0,', '"alpha": Infinity,', "settings.lora.alpha inf; expected a finite number"),
        ('"alpha": 8.0,', '"alpha": "8.0",', "settings.lora.alpha '8.0'; expected a valid number"),
        ('"max_seconds": ', '"max_seconds": 0.1, "max_seconds": ', "the name 'max_seconds' stands twice in an object"),
        ('"rank": 4,', '"rank": 4, "rank": 8,', "the name 'rank' stands twice in an object"),
        ('"versions": {', '"versions": {"torch": 2, ', "the name 'torch' stands twice in an object"),
        ('"reads_text": true', '"reads_text": 1', "reads_text 1; expected a valid boolean"),
        ('"trained_in_full": []', '"trained_in_full": [1]', "trained_in_full.0 1; expected a valid string"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_belong_there_is_named(before, after, problem, folder):
    path = folder / "judge.json"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(UserError) as found:
        artifact.load_any(folder)
    assert str(found.value).startswith(f"{path}: ")
    assert problem in str(found.value)
    assert len(str(found.value)) < 400 + len(str(path))


@pytest.mark.parametrize("depth", [100, 990, 100_000])
@pytest.mark.parametrize(("opening", "closing"), ["[]", ('{"a":', "}")])
@pytest.mark.parametrize("key", ["settings", "calibration", "note"])
def test_a_description_that_is_nested_too_deep_is_refused_in_one_line(depth, opening, closing, key, folder):
    deep = opening * depth + ("1" if opening != "[" else "") + closing * depth
    edit(folder / "judge.json", lambda values: values.update({key: "DEEP"}))
    (folder / "judge.json").write_text((folder / "judge.json").read_text().replace('"DEEP"', deep))
    if key == "note" and depth < (100_000 if sys.version_info >= (3, 12) else 990):
        artifact.read_settings(folder)  # what is for people is not read
        return
    with pytest.raises(UserError, match=r"judge.json: ") as found:
        artifact.load_any(folder)
    assert len(str(found.value)) < 400


@pytest.mark.parametrize(
    "template", ["{{ 1 / 0 }}", "{{ messages[9].content }}", "{% for", "{{ raise_exception('no') }}", "no clips at all"]
)
def test_a_hostile_chat_template_is_refused_in_one_line(
    template, judge_folder, backbone_folder, dataset_folder, tmp_path
):
    backbone = Path(shutil.copytree(backbone_folder, tmp_path / "backbone"))
    (backbone / "chat_template.jinja").write_text(template)
    loaded = artifact.load_any(judge_folder, artifact.Placement(str(backbone)))
    with pytest.raises(UserError, match=r"its chat template (fails|shows)"):
        loaded.judge.build_inputs(PairDataset.load(dataset_folder).pairs[:1])
