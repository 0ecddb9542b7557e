"""A manifest scored into a file: rows and columns, what is kept when it ends early, and who may go on."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest
import soundfile
from empathy_judge.core.errors import UserError
from empathy_judge.core.processes import Launch
from empathy_judge.scoring.batch import run
from empathy_judge.scoring.batch.job import Parts
from empathy_judge.scoring.batch.run import score_manifest
from empathy_judge.scoring.batch.workers import Worker

from .conftest import BAD, Killed, fail, never, read, row, rows_with_bad_ones

pytestmark = pytest.mark.usefixtures("small_chunks")
NAMES = ["pair_id", "empathy", "warmth", "empathy_label", "warmth_label", "warnings", "windows", "seconds", "status"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_each_row_comes_back_in_its_place(suffix, write, make_job, in_process, scorer, clips):
    job = make_job(write(rows_with_bad_ones(), f"m.{suffix}"), f"deep/scores.{suffix}")
    summary = score_manifest(job, in_process)
    assert (summary.rows, summary.scored, summary.done_before) == (20, 15, 0)
    assert summary.failed == {kind: 1 for _, kind in BAD.values()}
    assert summary.pairs_per_second == pytest.approx(20 / summary.seconds, rel=1e-2)
    found = read(job.out)
    assert list(found[0]) == NAMES
    assert [one["pair_id"] for one in found] == [f"p{number}" for number in range(20)]
    for number, one in enumerate(found):
        if number in BAD:
            name, kind = BAD[number]
            assert name in one["status"]
            assert kind in one["status"]
            assert all(one[column] in ("", None) for column in NAMES[1:-1])
        else:
            assert one["status"] == "ok"
    for number in (0, 2, 18):
        context = clips / "c.wav" if number % 3 else None
        expected = scorer.assess(context, clips / f"r{number % 4}.wav")
        for name, own in expected.scores.items():
            assert float(found[number][name]) == pytest.approx(own.score, abs=1e-5)
            assert found[number][f"{name}_label"] == own.label
    assert sorted(path.name for path in job.out.parent.iterdir()) == [job.out.name, f"{job.out.name}.summary.json"]
    assert json.loads((job.out.parent / f"{job.out.name}.summary.json").read_text()) == dataclasses.asdict(summary)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_all_columns_of_the_manifest_come_back(suffix, write, make_job, in_process, judge_folder):
    more = {"group_id": 7, "other": " x ", "seconds": 2.5, "mark": True}
    rows = [{**row(number), **more, "system_id": f"v{number % 2}"} for number in range(4)]
    rows[3]["response_audio"] = "absent.wav"
    job = make_job(write(rows, f"systems.{suffix}"), f"systems-scores.{suffix}")
    summary = score_manifest(job, in_process)
    found = read(job.out)
    assert list(found[0]) == [NAMES[0], "group_id", "other", "manifest_seconds", "mark", "system_id", *NAMES[1:]]
    assert {(one["other"], one["manifest_seconds"], one["mark"]) for one in found} == {(" x ", "2.5", "True")}
    assert [(one["group_id"], one["system_id"]) for one in found] == [
        ("7", "v0"),
        ("7", "v1"),
        ("7", "v0"),
        ("7", "v1"),
    ]
    assert "no such file" in found[3]["status"]
    assert summary.warnings == {}
    assert summary.minutes == pytest.approx(sum(float(one["seconds"]) for one in found[:3]) / 60, abs=1e-3)
    name = next(iter(summary.systems["v0"]))
    assert summary.systems["v0"][name]["rows"] == 2
    scores = [float(one[name]) for one in found[:3]]
    assert summary.systems["v0"][name]["mean"] == pytest.approx((scores[0] + scores[2]) / 2, abs=1e-5)
    assert f"{name}, v1: mean {scores[1]:.2f}, from {scores[1]:.2f} to {scores[1]:.2f} (1 row)" in summary.in_words()
    dimensions = json.loads((judge_folder / "judge.json").read_text())["dimensions"]
    assert summary.judge == {"dimensions": dimensions, "weights": None, "three_way": {}}


def test_long_clips_are_heard_in_windows_and_counted(write, make_job, in_process, clips, make_tone):
    soundfile.write(clips / "long.wav", make_tone(25, 150, 0.3), 16_000)
    rows = [row(number, situation="Late.") for number in range(4)]
    rows[2] |= {"response_audio": "long.wav"}
    job = make_job(write(rows, "long.jsonl"), "long-scores.jsonl")
    summary = score_manifest(job, in_process)
    assert (summary.windowed, summary.scored) == (1, 4)
    assert "heard in windows: 1 (a clip is longer than the judge hears at once; --no-windows" in summary.in_words()
    found = read(job.out)
    assert [one["windows"] for one in found] == [1, 1, 3, 1]
    assert found[2]["seconds"] == 25.0


def test_clips_may_stand_in_the_table(write, make_job, in_process, clips):
    def inside(name):
        return {"bytes": (clips / name).read_bytes(), "path": name}

    rows = [row(number, situation="Late.") for number in range(9)]
    embedded = [
        {**one, "context_audio": inside("c.wav"), "response_audio": inside(one["response_audio"])} for one in rows
    ]
    embedded[3]["response_audio"] = inside("text.wav")
    found = []
    for name, own in (("plain", rows), ("embedded", embedded)):
        job = make_job(write(own, f"{name}.parquet"), f"{name}.jsonl")
        score_manifest(job, in_process)
        found.append(read(job.out))
    assert "bytes of audio>: not a sound file" in found[1][3]["status"]
    for plain, inner in zip(*found, strict=True):
        if inner["pair_id"] != "p3":
            assert inner["status"] == "ok"
            assert inner["warmth"] == pytest.approx(plain["warmth"], abs=1e-5)


def test_what_was_done_is_kept_and_the_end_is_the_same(write, make_job, undisturbed, scorer, begin):
    job = make_job(write(rows_with_bad_ones()), "scores.csv")
    for chunks in (1, 1):
        begin(job, chunks)
        assert not job.out.exists()
    folder = Parts(job).folder
    assert sorted(path.name[:11] for path in folder.glob("part-*")) == ["part-000000", "part-000001"]
    (folder / ".part-000002.0123.tmp").write_text("half")  # of a process that was killed while it wrote
    missing = []

    def last(parts, look):
        missing.extend(parts.missing())
        Worker(parts, scorer).run()

    summary = score_manifest(job, last)
    assert [chunk.number for chunk in missing] == [2]
    assert (summary.done_before, summary.rows, summary.scored) == (16, 20, 15)
    assert job.out.read_bytes() == undisturbed(job.manifest).read_bytes()
    assert not folder.exists()


def test_a_process_that_ends_before_its_summary_is_gone_on_with(write, make_job, in_process, undisturbed, monkeypatch):
    """The scores were there, and the same command took them for those of somebody else."""
    job = make_job(write(rows_with_bad_ones()), "scores.csv")
    with monkeypatch.context() as patch:
        patch.setattr(run, "replace_text", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            score_manifest(job, in_process)
    assert job.out.exists()
    summary = score_manifest(job, in_process)
    assert (summary.done_before, summary.scored) == (20, 15)
    assert job.out.read_bytes() == undisturbed(job.manifest).read_bytes()
    assert not Parts(job).folder.exists()


def test_scores_that_were_changed_after_such_an_end_stay(write, make_job, in_process, monkeypatch):
    job = make_job(write(rows_with_bad_ones()), "scores.csv")
    with monkeypatch.context() as patch:
        patch.setattr(run, "replace_text", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            score_manifest(job, in_process)
    job.out.write_text("mine")
    with pytest.raises(UserError, match="is not what this command wrote there"):
        score_manifest(job, in_process)
    assert job.out.read_text() == "mine"


DAMAGES = {
    "cut": lambda content: content[:-40],
    "a line more": lambda content: content + content.splitlines(keepends=True)[-1],
    "another digit": lambda content: content[:-60] + content[-60:].replace(b"0.", b"1.", 1).replace(b"3", b"4"),
    "another head": lambda content: content.replace(b'"rows": ', b'"rows": 1', 1),
    "nested": lambda _: b"[" * 100_000,
    "gone": lambda _: None,
}


@pytest.mark.parametrize("name", ["part-000001-*", "plan.json"])
@pytest.mark.parametrize("kind", DAMAGES)
def test_what_was_damaged_meanwhile_is_made_again(kind, name, write, make_job, in_process, undisturbed, begin):
    """Between two commands, and, of parts, while one is at work."""
    job = make_job(write(rows_with_bad_ones()), "scores.csv")
    begin(job, 2)
    (path,) = Parts(job).folder.glob(name)
    missing = []

    def damage() -> None:
        content = DAMAGES[kind](path.read_bytes())
        path.unlink() if content is None else path.write_bytes(content)

    damage()

    def disturbed(parts, look):
        missing.append([chunk.number for chunk in parts.missing()])
        in_process(parts, look)
        if name != "plan.json" and len(missing) == 1:
            damage()

    summary = score_manifest(job, disturbed)
    assert missing == ([[2]] if name == "plan.json" else [[1, 2], [1]])
    assert summary.done_before == (16 if name == "plan.json" else 8)
    assert job.out.read_bytes() == undisturbed(job.manifest).read_bytes()
    assert not path.parent.exists()


def test_another_judge_manifest_or_level_is_refused_and_restart_begins_anew(
    write, make_job, in_process, tmp_path, begin
):
    rows = rows_with_bad_ones()
    job = make_job(write(rows))
    begin(job, 1)
    other = tmp_path / "other"
    other.mkdir()
    (other / "judge.json").write_text("{}")
    write([*rows, row(20)], "longer.csv")
    for changed, text in (
        ({"level": 0.5}, r"begun with another level \(usual, now 0\.5\)"),
        ({"judge": other}, r"begun with another judge \([0-9a-f]{16}, now [0-9a-f]{16}\)"),
        ({"settings": {"backbone": "org/model"}}, r"another backbone \(as in training, now org/model\)"),
        ({"checksums": True}, r"another files \(by size and time, now by content\)"),
        ({"audio_root": Path("/")}, r"another audio root \(none, now /\)"),
        ({"settings": {"quantization": "nf4"}}, r"another quantization \(as in training, now nf4\)"),
        ({"manifest": job.manifest.with_name("longer.csv")}, r"another manifest \([0-9a-f]{16}"),
    ):
        with pytest.raises(UserError, match=text) as found:
            score_manifest(dataclasses.replace(job, **changed), in_process)
        assert "expected the same command as before, or --restart" in str(found.value)
        assert "\n" not in str(found.value)
    assert len(Parts(job).entries()) == 2  # a part, and notes of a start
    changed = dataclasses.replace(job, manifest=job.manifest.with_name("longer.csv"))
    assert score_manifest(changed, in_process, restart=True).rows == 21


def test_who_comes_while_another_is_at_work_finishes_the_job_for_both(write, make_job, in_process, scorer):
    job = make_job(write(rows_with_bad_ones()))

    def slow(parts, look):
        worker = Worker(parts, scorer)
        worker.score(parts.chunks()[0])
        found.append(score_manifest(job, in_process))
        worker.score(parts.chunks()[1])
        worker.run()

    found = []
    found.append(score_manifest(job, slow))
    assert found[0] == found[1]
    assert (found[0].done_before, found[0].rows) == (8, 20)
    assert not Parts(job).folder.exists()


def test_a_file_that_is_complete_is_scored_anew_by_one_process_and_left_by_several(write, make_job, in_process, clips):
    job = make_job(write([row(0), row(1, response_audio="text.wav")]))
    assert score_manifest(job, in_process).failed == {"not a sound file": 1}
    late = score_manifest(job, never, Launch(1, 2, 1))
    assert late.failed == {"not a sound file": 1}
    assert not Parts(job).folder.exists()
    assert score_manifest(job, in_process).done_before == 0

    (clips / "text.wav").write_bytes((clips / "r1.wav").read_bytes())
    changed = score_manifest(job, in_process, Launch(0, 2, 0))  # what was made of other audio files is not left
    assert changed.failed == {}
    assert score_manifest(job, never, Launch(1, 2, 1)) == changed
    with pytest.raises(UserError, match=r"--restart in several processes; expected .*scores\.csv\.parts to be deleted"):
        score_manifest(job, in_process, Launch(0, 2, 0), restart=True)


@pytest.mark.parametrize("launch", [Launch(), Launch(0, 2, 0)])
def test_a_file_that_this_command_did_not_write_is_not_replaced(launch, write, make_job, in_process, begin):
    job = make_job(write(rows_with_bad_ones()), "scores.csv")
    job.out.write_text("mine")
    with pytest.raises(UserError, match=r"scores\.csv: exists, and is not what .* wrote there; .*or --overwrite"):
        score_manifest(job, fail, launch)
    assert job.out.read_text() == "mine"
    assert not Parts(job).folder.exists()
    begin(job, 1, launch, overwrite=True)
    assert job.out.read_text() == "mine"
    assert score_manifest(job, in_process, launch).done_before == 8  # its own job goes on
    other = dataclasses.replace(job, checksums=True)
    assert score_manifest(other, in_process, launch).rows == 20  # what it wrote it may replace
    job.out.write_text(job.out.read_text().replace("p7,", "p8,"))
    with pytest.raises(UserError, match="exists, and is not what"):
        score_manifest(job, fail, launch)


def test_afailure_before_anything_is_done_leaves_nothing_and_the_old_scores(write, make_job, clips):
    job, twice = make_job(write([row(0)]), "scores.csv"), make_job(write([row(0), row(0)], "twice.csv"))
    job.out.write_text("old")
    before = sorted(clips.iterdir())
    with pytest.raises(Killed):
        score_manifest(job, fail, overwrite=True)
    with pytest.raises(UserError, match="stands there twice"):
        score_manifest(twice, fail)
    assert job.out.read_text() == "old"
    assert sorted(clips.iterdir()) == before


def test_a_full_disk_is_one_line_and_nothing_is_lost(write, make_job, in_process, scorer, monkeypatch):
    job = make_job(write(rows_with_bad_ones()))

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def run(parts, look):
        worker = Worker(parts, scorer)
        worker.score(parts.chunks()[0])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            worker.score(parts.chunks()[1])

    with pytest.raises(UserError, match=r"part-000001-\w+: cannot be written \(No space left on device\)"):
        score_manifest(job, run)
    assert score_manifest(job, in_process).done_before == 8


def test_afailure_leaves_the_folder_of_another_process(write, make_job):
    job = make_job(write([row(0)]), "scores.csv")

    def run(parts, look):
        with pytest.raises(Killed):
            score_manifest(job, fail)
        assert parts.under_way()
        raise Killed

    with pytest.raises(Killed):
        score_manifest(job, run)
    assert not Parts(job).folder.exists()
