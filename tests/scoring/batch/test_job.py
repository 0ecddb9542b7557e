"""Jobs: what they depend on, and their parts on disk."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.scoring.batch.job import Parts
from empathy_judge.scoring.batch.run import score_manifest
from empathy_judge.scoring.batch.workers import Worker

from .conftest import Killed, fail, row, rows_with_bad_ones

pytestmark = pytest.mark.usefixtures("small_chunks")


def test_parts_that_were_swapped_are_made_again(write, make_job, in_process, undisturbed, begin):
    """Of the same audio, beside other texts."""
    rows = [row(number, situation="The child is ill." if 8 <= number < 16 else None) for number in range(20)]
    job = make_job(write(rows), "scores.csv")
    begin(job, 2)
    first, second = sorted(Parts(job).folder.glob("part-*"))
    assert first.read_bytes() != second.read_bytes()
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])
    score_manifest(job, in_process)
    assert job.out.read_bytes() == undisturbed(job.manifest).read_bytes()


def test_a_file_is_on_the_disk_before_it_has_its_name(write, make_job, in_process, monkeypatch):
    job, events = make_job(write([row(0)]), "scores.csv"), []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda number: (events.append("sync"), sync(number)))
    monkeypatch.setattr(os, "replace", lambda old, new: (events.append(Path(new).name[:11]), replace(old, new)))
    score_manifest(job, in_process)
    plan, part = ["sync", "plan.json"], ["sync", "part-000000"]
    # before the scores take their place, the plan says what they are
    assert events == [*plan, *part, "sync", *plan, "scores.csv", "scores.csv."]


def test_a_backbone_with_other_files_is_another(write, make_job, backbone_folder, tmp_path, begin):
    own = Path(shutil.copytree(backbone_folder, tmp_path / "own"))
    job = make_job(write(rows_with_bad_ones()), settings={"backbone": str(own)})
    begin(job, 1)
    elsewhere = tmp_path / "elsewhere"
    own.rename(elsewhere)
    moved = dataclasses.replace(job, settings={"backbone": str(elsewhere)})
    begin(moved, 1)  # the same files in another place
    (elsewhere / "processor_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"begun with another backbone \([0-9a-f]{16}, now [0-9a-f]{16}\)"):
        score_manifest(moved, fail)


@pytest.mark.parametrize("checksums", [False, True])
def test_what_was_made_of_audio_that_changed_is_scored_again(
    checksums, write, make_job, in_process, undisturbed, clips, begin
):
    def score_done(before: int) -> None:
        """Score the job, of which so many rows are taken as done."""
        assert score_manifest(job, in_process).done_before == before

    rows = [row(number, response_audio=f"r{number // 8}.wav") for number in range(24)]
    rows[9]["response_audio"] = "late.wav"
    job = make_job(write(rows), checksums=checksums)
    begin(job, 2)
    for name in ("r0.wav", "r1.wav"):  # their times alone
        os.utime(clips / name, ns=(1, 1))
    if checksums:
        score_done(16)
        begin(job, 2)
        shutil.copyfile(clips / "r3.wav", clips / "r0.wav")
        os.utime(clips / "r0.wav", ns=(1, 1))
        score_done(8)
    else:
        score_done(0)
    begin(job, 2)
    shutil.copyfile(clips / "r3.wav", clips / "late.wav")  # its row can be scored now, and is in the second part
    score_done(8)
    assert job.out.read_bytes() == undisturbed(job.manifest).read_bytes()


def once(engine):
    """An engine that is killed when it is asked again."""
    calls = []

    def run(parts, look):
        calls.append(1)
        if len(calls) > 1:
            raise Killed
        engine(parts, look)

    return run


def test_another_job_that_is_begun_in_the_folder_is_not_mixed_with_this_one(
    write, make_job, in_process, undisturbed, scorer
):
    job = make_job(write(rows_with_bad_ones()))
    other = make_job(write([row(number) for number in range(12)], "other.csv"))

    def disturbed(parts, look):
        def disturbing(others, look):
            Worker(parts, scorer)._parts.write(parts.chunks()[1], (), [], "")  # has not noticed yet
            in_process(others, look)

        Worker(parts, scorer).score(parts.chunks()[0])
        with pytest.raises(UserError, match="begun with another manifest"):
            score_manifest(other, in_process)
        score_manifest(other, disturbing, restart=True)
        Worker(parts, scorer).run()

    with pytest.raises(Killed):  # begins anew, since its folder is gone
        score_manifest(job, once(disturbed))
    assert other.out.read_bytes() == undisturbed(other.manifest).read_bytes()


def test_what_cannot_be_written_or_would_be_overwritten_is_refused(write, make_job, clips):
    manifest = write([row(0)])
    with pytest.raises(UserError, match=r"suffix '\.txt'; expected \.csv, \.tsv, \.jsonl, \.parquet"):
        make_job(manifest, "scores.txt")
    with pytest.raises(UserError, match=r"manifest\.csv: is the manifest; expected another file"):
        make_job(manifest, "manifest.csv")
    job = dataclasses.replace(make_job(manifest), judge=clips / "absent")
    with pytest.raises(UserError, match=r"absent: expected a judge folder \(with judge\.json\)"):
        score_manifest(job, fail)


@pytest.mark.parametrize(("rows", "sizes"), [(1, {1}), (1_024, {8}), (1_025, {16, 1}), (10**7 + 1, {128, 1})])
def test_chunks_grow_with_the_manifest_up_to_a_limit(rows, sizes, write, make_job):
    parts = Parts(make_job(write([row(0)])))
    parts.rows = rows
    assert {chunk.rows for chunk in parts.chunks()} == sizes
    assert sum(chunk.rows for chunk in parts.chunks()) == rows
