"""Files that a user gets are replaced only where the same command wrote them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.core.staging import staged_folder
from empathy_judge.core.written import FILES, RECORDS, changing, check_replaceable, making, write_files, writing

OWN = {"making": making, "changing": changing}
ADVICE = "; expected another place, or that this file is moved away"


def listed(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def refused(found: str, path: Path, command: str = "plan") -> None:
    before = None if path.is_symlink() or not path.is_file() else path.read_bytes()
    for act in (
        lambda: check_replaceable(command, [path]),
        lambda: write_files(command, path.parent, {"other.csv": b"new", path.name: b"new"}),
    ):
        with pytest.raises(UserError) as error:
            act()
        assert str(error.value) == f"{path}: {found}{ADVICE}"
    assert before is None or path.read_bytes() == before
    assert not (path.parent / "other.csv").exists()


def test_what_a_command_wrote_it_replaces(tmp_path):
    out = tmp_path / "new" / "out"
    assert not (out / "plan.csv").exists()
    write_files("plan", out, {"plan.csv": b"1", "plan.json": b"2"})
    write_files("plan", out, {"plan.csv": b"3", "plan.json": b"2"})
    assert listed(out) == [f"{RECORDS}/plan.csv.json", f"{RECORDS}/plan.json.json", "plan.csv", "plan.json"]
    assert (out / "plan.csv").read_bytes() == b"3"
    check_replaceable("plan", [out / "plan.csv"])
    with pytest.raises(UserError, match="was written by `plan`"):
        check_replaceable("stress", [out / "plan.csv"])
    record = json.loads((out / RECORDS / "plan.csv.json").read_text())
    assert record["command"] == "plan"
    (out / "plan.csv").unlink()  # nothing is lost
    write_files("plan", out, {"plan.csv": b"4"})
    copied = shutil.copytree(out, tmp_path / "copied")
    write_files("plan", copied, {"plan.csv": b"5"})
    assert (copied / "plan.csv").read_bytes() == b"5"


@pytest.mark.parametrize("content", [b"mine", b""])
def test_a_file_of_somebody_else_stays(content, tmp_path):
    (tmp_path / "plan.csv").write_bytes(content)
    refused("exists, and `plan` did not write it", tmp_path / "plan.csv")
    assert listed(tmp_path) == ["plan.csv"]


def test_a_file_that_was_changed_belongs_to_the_user(tmp_path):
    write_files("plan", tmp_path, {"plan.csv": b"1"})
    (tmp_path / "plan.csv").write_bytes(b"1, and notes")
    refused("was changed since `plan` wrote it", tmp_path / "plan.csv")
    (tmp_path / "plan.csv").rename(tmp_path / "mine.csv")
    write_files("plan", tmp_path, {"plan.csv": b"2"})
    assert (tmp_path / "mine.csv").read_bytes() == b"1, and notes"


def test_a_file_of_another_command_stays(tmp_path):
    write_files("evaluate", tmp_path, {"results.csv": b"1"})
    refused("was written by `evaluate`", tmp_path / "results.csv", "stress")


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"command": "plan", "sha256": 1}'])
def test_a_record_that_says_nothing_is_none(record, tmp_path):
    write_files("plan", tmp_path, {"plan.csv": b"1"})
    (tmp_path / RECORDS / "plan.csv.json").write_text(record)
    refused("exists, and `plan` did not write it", tmp_path / "plan.csv")


def test_links_and_folders_stay(tmp_path):
    out, mine = tmp_path / "out", tmp_path / "mine.csv"
    write_files("plan", out, {"plan.csv": b"1"})
    (out / "plan.csv").rename(mine)
    (out / "plan.csv").symlink_to(mine)  # to what the command wrote: the link itself would be lost
    refused("is no plain file", out / "plan.csv")
    mine.unlink()  # a link that leads nowhere
    refused("is no plain file", out / "plan.csv")
    (out / "plan.csv").unlink()
    (out / "plan.csv").mkdir()
    refused("is no plain file", out / "plan.csv")
    (out / "plan.csv").rmdir()
    os.mkfifo(out / "plan.csv")
    refused("is no plain file", out / "plan.csv")


def test_a_folder_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    for content in (b"1", b"2"):
        write_files("plan", tmp_path / "out", {"plan.csv": content})
    assert (tmp_path / "disk" / "plan.csv").read_bytes() == b"2"


def test_after_a_kill_between_record_and_file_either_is_known(tmp_path, monkeypatch):
    write_files("plan", tmp_path, {"a.csv": b"1", "b.csv": b"1"})
    replace = os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(target).name == "b.csv":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write_files("plan", tmp_path, {"a.csv": b"2", "b.csv": b"2"})
    assert [(tmp_path / name).read_bytes() for name in ("a.csv", "b.csv")] == [b"2", b"1"]
    write_files("plan", tmp_path, {"a.csv": b"3", "b.csv": b"3"})
    assert [(tmp_path / name).read_bytes() for name in ("a.csv", "b.csv")] == [b"3", b"3"]


# ---------------------------------------------------------------- work that will be written

HOLD = """
import sys
from pathlib import Path
from empathy_judge.core.written import writing
with writing(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]):
    print(flush=True)
    sys.stdin.read()
"""


def held(*words: object) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_second_command_in_a_folder_is_refused_until_the_first_ends_or_is_killed(tmp_path):
    out = tmp_path / "new" / "out"
    with held("evaluate", out) as first:
        for command in ("evaluate", "stress"):
            with pytest.raises(UserError) as error, writing(command, out):
                pass
            assert str(error.value).startswith(f"{out}: another process is writing it; wait for it")
        first.kill()
    with writing("stress", out):
        write_files("stress", out, {"stress.json": b"{}"})
    assert listed(out) == [f"{RECORDS}/stress.json.json", "stress.json"]


def test_files_beside_each_other_are_written_at_once_and_one_is_not(tmp_path):
    with held("explain", tmp_path, "a.html") as first:
        with writing("explain", tmp_path, "b.html"):
            write_files("explain", tmp_path, {"b.html": b"b"})
        with (
            pytest.raises(UserError, match=r"a\.html: another process is writing it"),
            writing("explain", tmp_path, "a.html"),
        ):
            pass
        first.communicate(timeout=60)
    assert listed(tmp_path) == [f"{RECORDS}/b.html.json", "b.html"]


@pytest.mark.parametrize("command", FILES)
def test_a_file_that_would_be_refused_is_refused_before_the_work(command, tmp_path):
    for name in FILES[command]:
        (tmp_path / name).write_bytes(b"mine")
        reason = f"{name}: exists, and `{command}` did not write it"
        with pytest.raises(UserError, match=reason), writing(command, tmp_path):
            raise AssertionError
        assert listed(tmp_path) == [name]
        (tmp_path / name).unlink()


def test_where_nothing_was_written_nothing_is_left(tmp_path):
    with pytest.raises(ZeroDivisionError), writing("plan", tmp_path / "new" / "out"):
        raise ZeroDivisionError
    with writing("plan", None):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with writing("plan", tmp_path / "mine"):
        pass
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]  # an empty folder of the user stays


# ---------------------------------------------------------------- folders that are made or changed as a whole


def test_a_folder_that_is_taken_is_refused_before_the_work(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for overwrite, reason in ((None, "exists; expected a folder that does not"), (True, "is not a pair dataset")):
        with pytest.raises(UserError, match=reason), making(tmp_path, overwrite):
            raise AssertionError
    (tmp_path / "dataset.yaml").touch()
    with pytest.raises(UserError, match="or --overwrite"), making(tmp_path, False):
        raise AssertionError
    with making(tmp_path, True), making(tmp_path.parent / "new"):
        pass
    assert listed(tmp_path) == ["dataset.yaml", "mine.txt"]


@pytest.mark.parametrize("name", ["making", "changing"])
def test_a_second_process_is_refused_while_a_folder_is_made_or_changed(name, tmp_path):
    out = tmp_path / "deep" / "out"
    program = HOLD.replace("writing", name).replace("sys.argv[1], ", "").replace("sys.argv[2]", "sys.argv[1]")
    program = program.replace(", *sys.argv[3:]", "")
    words = [sys.executable, "-c", program, str(out)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"\n"
        for _ in range(2):
            with pytest.raises(UserError, match="out: another process is writing it"), OWN[name](out):
                raise AssertionError
        first.kill()
    with OWN[name](out):
        pass
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_is_staged_in_a_folder_that_is_made_takes_its_place(tmp_path):
    out = tmp_path / "out"
    with making(out), staged_folder(out) as stage:
        (stage / "judge.json").write_text("{}")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["out", "out/judge.json"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_came_into_the_place_meanwhile_stays(overwrite, tmp_path):
    """An import may take hours; what a run, or a person, put there since was deleted."""
    out = tmp_path / "out"

    def write() -> None:
        with making(out, overwrite), staged_folder(out, overwrite) as stage:
            (stage / "dataset.yaml").write_text("")
            out.mkdir()
            (out / "best.ckpt").write_text("weights")

    with pytest.raises(UserError, match="out: exists and is not a pair dataset; expected a folder that does not exist"):
        write()
    assert (out / "best.ckpt").read_text() == "weights"
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["out", "out/best.ckpt"]


def test_an_empty_folder_that_came_meanwhile_is_replaced(tmp_path):
    out = tmp_path / "out"
    with making(out), staged_folder(out) as stage:
        (stage / "judge.json").write_text("{}")
        out.mkdir()
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["out", "out/judge.json"]
