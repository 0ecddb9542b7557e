"""How words become a command; whatever they are, it ends with one line at most and a documented exit code."""

from __future__ import annotations

import argparse
import logging
import shlex
import shutil
from pathlib import Path

import pytest
from empathy_judge.cli import COMMANDS, main, options_of
from empathy_judge.commands.data import source_parser
from empathy_judge.commands.judges import Score
from empathy_judge.commands.measuring import Compare
from empathy_judge.commands.options import parser_of
from empathy_judge.commands.tables import Plan
from empathy_judge.commands.training import Recipes
from empathy_judge.core import option_values as kinds
from empathy_judge.data_modules import importers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..conftest import failed, output_of

LONG = "x" * 300
BAD_ENDS: dict[str, tuple[str, ...]] = {
    # names that no file can have, folders for files, files for folders
    "inspect": (LONG, "{bad}/text.wav", "{deep_data}"),
    "split {data} --overwrite": (
        "--folds 0", "--folds 1000000", "--fractions 0.5 0.5 nan", "--fractions -1 1 1", "--by nothing",
        "--hold-out system_id", "--leave-out nothing", "--folds 5 --leave-out system_id",
        "--folds 0 --leave-out system_id",
    ),
    "import": ("", "table", "huggingface no/such-data-set --out {tmp}/out"),
    "import table --dimension warmth=1:5 --out {tmp}/out": ("{bad}", "{bad}/text.wav", "{bad}/wide_cell.csv"),
    "import table {bad}/pairs.csv --out {tmp}/out --dimension": (
        "warmth=1:5:1 --max-skipped nan", "warmth=1:5:1 --max-skipped -1", "warmth=1:5:1 --shard-rows -1 --embed-audio",
        "warmth=5:1", "warmth=nan:inf", "warmth",
    ),
    "evaluate {judge} --data {data} --resamples 20 --out {tmp}/r": (
        "--split nothing", "--checks nothing", "--slices nothing", "--device nothing", "--cache {bad}/text.wav",
    ),
    "evaluate --data {data} --out {tmp}/r": (
        "{bad}/text.wav", "scores:{bad}/text.wav", "human:", "openai:gpt,samples=abc --dry-run",
    ),
    "compare --table {bad}/scores.csv": ("nobody", "ann --out {tmp}/r", "ann --data {data}"),
    "compare ann --table": ("{bad}/text.wav",),
    "stress": ("constant --data {data}", "{judge} --data {bad}"),
    "agreement": ("{bad}", "{bad}/scores.csv --column item", "{bad}/wide_cell.csv"),
    "plan": (
        "", "{bad}", "{bad}/scores.csv --judges nobody", "{bad}/wide_cell.csv", "{data} --judges ann",
        "--variance item=nan residual=1", "--variance item=1 residual=1 --agreement nan",
    ),
    "score": ("", "{deep_judge} - {bad}/r.wav", f"{LONG} - {{bad}}/r.wav"),
    "score {judge} --device cpu": (
        f"- {LONG}", "- {bad}", "- {bad}/text.wav", "- {bad}/empty.wav", "{bad}/text.wav {bad}/r.wav",
        "- {bad}/r.wav --situation '<|audio_bos|>'", f"- {{bad}}/r.wav --backbone {LONG}", f"--manifest {LONG}.csv",
        "--manifest {bad} --out {tmp}/scores.csv", "--manifest {bad}/text.csv --out {tmp}/scores.csv",
    ),
    "score {judge} - {bad}/r.wav --device": ("cuda:99",),
    "score {judge} --device cpu --manifest {bad}/manifest.csv --out": (
        f"{{tmp}}/{LONG}.csv", "{bad}/folder.csv", "{bad}/text.wav/scores.csv", "{bad}/manifest.csv", "{bad}/other.csv",
        "{tmp}/scores.txt", "{bad}/filed.csv", f"{{tmp}}/scores.csv --audio-root {LONG}",
        "{tmp}/scores.csv --engine spark",
    ),
    "rank {judge} --device cpu": ("{bad}/text.wav {bad}/r.wav", "- {bad}/r.wav --by nothing", "-"),
    "explain {judge} --device cpu": ("- {bad}/text.wav", "{bad}/empty.wav {bad}/r.wav", "- {bad}/r.wav --window nan"),
    "serve {judge}": ("--max-seconds 0", "--host nowhere.invalid --device cpu"),
    "calibrate {judge} --data {data} --split": ("nothing",),
    "export {run} --out {tmp}/j": (
        "--report {bad}", "--report {bad}/deep.json", "--quantization int8", "--push-to-hub 'a b c'",
        "--form merged --check-data {bad}",
    ),
    "ensemble {run} --out {tmp}/e": ("", "{bad}/text.wav"),
    "train --config": (LONG, "{bad}/latin1.yaml", "{bad}"),
}  # fmt: skip
"""What a command cannot do with, put behind it."""
INTO = "score {judge} --device cpu --manifest {bad}/manifest.csv --out {tmp}/scores.csv"
BAD_VARIABLES = [
    f"WORLD_SIZE=abc {INTO}", f"WORLD_SIZE=2 RANK= {INTO}", f"WORLD_SIZE=2 RANK=5 {INTO}",
    f"WORLD_SIZE=2 RANK=-1 {INTO}", f"WORLD_SIZE=2 RANK=0 LOCAL_RANK=x {INTO}",
    f"WORLD_SIZE=-3 {INTO} --restart --workers -1",
    "EMPATHY_JUDGE_TOKEN='   ' serve {judge}", "EMPATHY_JUDGE_TOKEN=ü serve {judge}",
]  # fmt: skip
BY_HAND = [*(f"{command} {end}" for command, ends in BAD_ENDS.items() for end in ends), *BAD_VARIABLES]


@pytest.fixture(scope="module")
def places(tmp_path_factory, judge_folder, trained_run, dataset_folder, make_tone) -> dict[str, str]:
    """What `{...}` in calls stands for."""
    import soundfile

    bad = tmp_path_factory.mktemp("bad")
    soundfile.write(bad / "r.wav", make_tone(0.6, 300, 0.3), 16_000)
    (bad / "text.wav").write_text("not audio")
    (bad / "text.csv").write_text("not,a\ntable")
    (bad / "empty.wav").write_bytes(b"")
    (bad / "latin1.yaml").write_bytes("name: für\n".encode("latin-1"))
    (bad / "manifest.csv").write_text("response_audio\nr.wav\nr.wav\n")
    (bad / "pairs.csv").write_text("pair_id,response_audio,rater_id,warmth\na,r.wav,ann,3\nb,r.wav,ann,4\n")
    wide = "y" * 200_000
    (bad / "wide_cell.csv").write_text(f"pair_id,response_audio,rater_id,warmth\na,{wide},ann,3\n")
    (bad / "scores.csv").write_text("item,annotator,dimension,score\na,ann,warmth,1\na,bob,warmth,2\nb,ann,warmth,3\n")
    (bad / "other.csv").write_text("mine\n")
    (bad / "folder.csv").mkdir()
    (bad / "filed.csv.parts").write_text("mine\n")
    deep = '{"a":' * 3_000 + "1" + "}" * 3_000
    (bad / "deep.json").write_text(deep)
    for kind, source, name in (("judge", judge_folder, "judge.json"), ("data", dataset_folder, "dataset.yaml")):
        shutil.copytree(source, bad / f"deep_{kind}")
        (bad / f"deep_{kind}" / name).write_text(deep)
    data = tmp_path_factory.mktemp("copy") / "data"  # in case that a call is none too bad
    shutil.copytree(dataset_folder, data)
    judge = data.with_name("judge")
    shutil.copytree(judge_folder, judge)
    folders = {"judge": judge, "run": trained_run, "data": data, "bad": bad}
    deeps = {f"deep_{kind}": bad / f"deep_{kind}" for kind in ("judge", "data")}
    return {name: str(path) for name, path in (folders | deeps).items()}


def check(words: list[str], capsys: pytest.CaptureFixture[str], codes: tuple[int, ...]) -> str:
    """Run a call; what it must not do is asserted. What it said on standard error."""
    capsys.readouterr()
    try:
        code = main(words)
    except SystemExit as stopped:
        code = stopped.code
    said = capsys.readouterr()
    assert code in codes, (words, code, said.err[-1000:])
    assert "Traceback" not in said.err, words
    assert "usage:" not in said.err, words
    lines = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == (code == 2), (words, code, said.err[-1000:])
    return said.err


@pytest.mark.parametrize("call", BY_HAND, ids=[str(number) for number in range(len(BY_HAND))])
def test_a_bad_call_is_one_line_and_leaves_nothing(call, places, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging, "raiseExceptions", False)  # `serve` logs to the standard error of its first call
    words = [word.format(tmp=tmp_path, **places) for word in shlex.split(call)]
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    before = {path.name for path in Path(places["bad"]).iterdir()}
    assert "unrecognized arguments" not in check(words, capsys, (1, 2))  # else it was refused for another reason
    assert [path.name for path in tmp_path.iterdir()] == []
    assert {path.name for path in Path(places["bad"]).iterdir()} == before


GOOD = {
    "inspect": "{data}", "split": "{data} --overwrite", "recipes": "",
    "evaluate": "constant --data {data} --out {tmp}/out --resamples 5",
    "compare": "constant random --data {data} --resamples 5",
    "challenge": "echomind constant --data {data} --resamples 5",
    "stress": "{judge} --data {data} --device cpu --resamples 5 --checks louder",
    "agreement": "{bad}/scores.csv --resamples 5", "score": "{judge} --device cpu - {bad}/r.wav",
    "rank": "{judge} --device cpu - {bad}/r.wav", "explain": "{judge} --device cpu - {bad}/r.wav",
    "calibrate": "{judge} --data {data} --device cpu", "export": "{run} --out {tmp}/out",
    "ensemble": "{run} {judge} --out {tmp}/out", "serve": "{bad}/text.wav",
    "plan": "{data} --resamples 5", "doctor": "",
    **{f"import {name}": "{bad}/pairs.csv --out {tmp}/out" for name in importers.SOURCES},
}  # fmt: skip
HOSTILE = [
    "", "-", "--", "nan", "-1", "1e400", "9" * 40, LONG, "ü🙂", "\ud800", "\n", "[]", "a=b", "a=1:5", "*",
    "/dev/null", "/dev/full", "/proc/self/mem", "{bad}/text.wav", "{bad}/empty.wav", "{bad}/latin1.yaml", "{bad}",
]  # fmt: skip


def actions(name: str) -> list[argparse.Action]:
    """What a command takes, but what ends at once or never."""
    if name.startswith("import "):
        source = name.removeprefix("import ")
        parser = source_parser(source, importers.load(source))
    else:
        parser = parser_of(name, COMMANDS[name])
    return [action for action in parser._actions if action.dest not in ("help", "push_to_hub")]


BAD_VALUES = {
    kinds.output_folder: (LONG, "{bad}/text.wav", "{bad}/text.wav/out"), kinds.random_seed: ("-1", "two", "010"),
    kinds.resamples: ("-5", "1000001"), kinds.whole_number: ("0", "-1", "1_0"), kinds.device_name: ("", "meta"),
    kinds.seconds: ("nan", "-1"), kinds.dollars: ("nan",), kinds.share: ("2", "nan"), kinds.port_number: ("-1",),
    kinds.process_count: ("0", "1000000000"), kinds.any_number: ("1_0", "nan", "1:30"),
    kinds.any_whole: ("012", "1_0", "1.5"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*GOOD, "demo"])
def test_a_value_out_of_the_range_of_its_kind_is_refused_wherever_it_stands(name, places, tmp_path, capsys):
    for action in actions(name):
        assert action.help, action.dest
        assert action.type is kinds.output_folder or action.dest not in ("out", "page") or name in ("score", "explain")
        for value in BAD_VALUES.get(action.type, ()):
            words = shlex.split(GOOD.get(name, ""))
            words = [*words, action.option_strings[0], value] if action.option_strings else [value, *words[1:]]
            check([*name.split(), *(word.format(tmp=tmp_path, **places) for word in words)], capsys, (2,))
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.long
@settings(max_examples=150, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_generated_call_is_answered_or_refused_in_one_line(places, tmp_path_factory, capsys, data):
    name = data.draw(st.sampled_from(sorted(GOOD)))
    chosen = data.draw(st.lists(st.sampled_from(actions(name)), min_size=1, max_size=2, unique_by=lambda one: one.dest))
    tmp = tmp_path_factory.mktemp("call")
    words = shlex.split(GOOD[name])
    for action in chosen:
        value = data.draw(st.sampled_from(HOSTILE))
        if action.option_strings and action.nargs == 0:
            words.append(action.option_strings[0])
        elif action.option_strings:
            words += [action.option_strings[0], value]
        elif words:
            words[0] = value
    words = [word.format(tmp=tmp, **places) if word[:1] == "{" else word for word in words]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp)
        patch.setattr(logging, "raiseExceptions", False)  # as above
        check([*name.split(), *words], capsys, (0, 1, 2))
    shutil.rmtree(tmp)


# ---------------------------------------------------------------- words, and the same object in Python


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND; see empathy-judge --help"),
        (["frobnicate"], "frobnicate: no such command; see empathy-judge --help"),
        (["evalute", "j"], "evalute: no such command (did you mean evaluate?); see empathy-judge --help"),
        (["split"], "the following arguments are required: data; see empathy-judge split --help"),
        (["train"], "no --data.path; expected it here or in a recipe; see empathy-judge train --help"),
        (["evaluate", "j", "--dta", "d"], "--dta: no such option (did you mean --data?)"),
        (["inspect", "d", "--page", ""], "argument --page: '': expected a folder; . is the current one"),
        (["score", "j", "--workers", "0"], "argument --workers: '0': expected a number of processes, 1 to 1024"),
        (["import", "tabel", "x"], "argument source: invalid choice: 'tabel'"),
        (["import", "table", "x", "--dimensoin", "a=1:5:1"], "--dimensoin: no such option (did you mean --dimension?)"),
        (["import", "table", "pairs.csv"], "the following arguments are required: --out"),
    ],
)
def test_bad_words_are_one_line_that_helps(words, message, capsys):
    assert failed(capsys, *words).startswith(f"error: {message}")


@pytest.mark.parametrize("words", ["J --device cpu - a.wav", "--level 0.9 J - --json a.wav", "J - a.wav --device cpu"])
def test_options_may_stand_anywhere(words):
    read = options_of(["score", *words.split()])
    assert isinstance(read, Score)
    assert (read.judge, read.context, read.response) == ("J", "-", "a.wav")


def test_a_command_is_the_same_object_in_python(capsys):
    words = ["plan", "--variance", "item=0.6", "residual=0.5", "--items", "40", "80", "--price", "0.2", "--json"]
    same = Plan(variance=["item=0.6", "residual=0.5"], items=[40, 80], price=0.2, json=True)
    assert options_of(words) == same
    printed = output_of(capsys, *words)
    assert same.run() == 0
    assert capsys.readouterr().out == printed
    assert options_of(["plan", "pilot.csv"]) == Plan("pilot.csv")  # defaults are those of the class
    assert options_of(["recipes"]) == Recipes()
    compared = options_of(["compare", "constant", "random", "--data", "d", "--split", "all", "--no-windows"])
    command = "empathy-judge compare constant random --data d --split all --no-windows"
    assert compared == Compare(["constant", "random"], data="d", split=None, windows=False, command=command)
