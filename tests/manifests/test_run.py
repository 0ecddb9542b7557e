"""A manifest scored into a file: rows and columns, what is kept when it ends early, and who may go on."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from empathy_judge.data_modules.errors import ASKED_TO_STOP, UserError
from empathy_judge.manifests.parts import Parts
from empathy_judge.manifests.places import Place, find_place, worker_devices
from empathy_judge.manifests.run import score_manifest, stopped_by_signals
from empathy_judge.manifests.work import Worker
from filelock import FileLock

from .conftest import read, row

NAMES = ["pair_id", "empathy", "warmth", "empathy_label", "warmth_label", "warnings", "status"]
BAD = {
    5: ("cut.wav", "the file is cut off"),
    70: ("text.wav", "not a sound file"),
    100: ("empty.wav", "the file is empty"),
    101: ("absent.wav", "no such file"),
    149: ("../outside.wav", "leaves the folder"),
}


def rows_with_bad_ones():
    rows = [row(number, context_audio="c.wav" if number % 3 else None) for number in range(150)]
    for number, (name, _) in BAD.items():
        rows[number]["response_audio"] = name
    return rows


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_each_row_comes_back_in_its_place(suffix, write, make_job, in_process, scorer, clips):
    job = make_job(write(rows_with_bad_ones(), f"m.{suffix}"), f"deep/scores.{suffix}")
    summary = score_manifest(job, in_process)
    assert (summary.rows, summary.scored, summary.done_before) == (150, 145, 0)
    assert summary.failed == {kind: 1 for _, kind in BAD.values()}
    assert summary.pairs_per_second == pytest.approx(150 / summary.seconds, rel=1e-2)
    found = read(job.out)
    assert list(found[0]) == NAMES
    assert [one["pair_id"] for one in found] == [f"p{number}" for number in range(150)]
    for number, one in enumerate(found):
        if number in BAD:
            name, kind = BAD[number]
            assert name in one["status"]
            assert kind in one["status"]
            assert all(one[column] in ("", None) for column in NAMES[1:-1])
        else:
            assert one["status"] == "ok"
    for number in (0, 1, 77):
        context = clips / "c.wav" if number % 3 else None
        expected = scorer.assess(context, clips / f"r{number % 4}.wav")
        for name, own in expected.scores.items():
            assert float(found[number][name]) == pytest.approx(own.score, abs=1e-5)
            assert found[number][f"{name}_label"] == own.label
    assert sorted(path.name for path in job.out.parent.iterdir()) == [job.out.name, f"{job.out.name}.summary.json"]
    assert json.loads((job.out.parent / f"{job.out.name}.summary.json").read_text()) == dataclasses.asdict(summary)


def test_clips_may_stand_in_the_table(write, make_job, in_process, clips):
    def inside(name):
        return {"bytes": (clips / name).read_bytes(), "path": name}

    rows = [row(number, situation="Late.") for number in range(70)]
    embedded = [
        {**one, "context_audio": inside("c.wav"), "response_audio": inside(one["response_audio"])} for one in rows
    ]
    embedded[3]["response_audio"] = inside("text.wav")
    found = []
    for name, own in (("plain", rows), ("embedded", embedded)):
        job = make_job(write(own, f"{name}.parquet"), f"{name}.jsonl")
        score_manifest(job, in_process)
        found.append(read(job.out))
    assert found[1][3]["status"].endswith("bytes of audio>: not a sound file; accepted: wav, flac, ogg, mp3, aiff, au")
    for plain, inner in zip(*found, strict=True):
        if inner["pair_id"] != "p3":
            assert inner["status"] == "ok"
            assert inner["warmth"] == pytest.approx(plain["warmth"], abs=1e-5)


class Killed(BaseException):
    """As if the process were no more."""


def stopping_after(scorer, chunks, error=Killed):
    """An engine that ends in the middle of a chunk, after so many whole ones."""

    def run(parts, meter):
        worker, done = Worker(parts, scorer, meter.tell), []
        plain = worker._scored

        def scored(rows):
            for number, one in enumerate(plain(rows)):
                if len(done) == chunks and number == 10:
                    raise error
                yield one
            done.append(1)

        worker._scored = scored
        worker.run()

    return run


def test_what_was_done_is_kept_and_the_end_is_the_same(write, make_job, in_process, scorer):
    manifest = write(rows_with_bad_ones())
    whole, job = make_job(manifest, "whole.csv"), make_job(manifest, "scores.csv")
    score_manifest(whole, in_process)
    for chunks in (1, 1):
        with pytest.raises(Killed):
            score_manifest(job, stopping_after(scorer, chunks))
        assert not job.out.exists()
    parts = Parts(job)
    assert [chunk.number for chunk in parts.left()] == [2]
    (parts.folder / ".part-000002.0123.tmp").write_text("half")  # of a process that was killed while it wrote
    scored = []

    def counted(parts, meter):
        worker = Worker(parts, scorer, lambda progress: scored.append(progress.rows))
        worker.run()

    summary = score_manifest(job, counted)
    assert (sum(scored), summary.done_before, summary.rows, summary.scored) == (22, 128, 150, 145)
    assert job.out.read_bytes() == whole.out.read_bytes()
    assert not parts.folder.exists()


def test_another_judge_manifest_or_level_is_refused_and_restart_begins_anew(
    write, make_job, in_process, scorer, tmp_path
):
    rows = rows_with_bad_ones()
    job = make_job(write(rows))
    with pytest.raises(Killed):
        score_manifest(job, stopping_after(scorer, 1))
    other = tmp_path / "other"
    other.mkdir()
    (other / "judge.json").write_text("{}")
    write([*rows, row(150)], "longer.csv")
    for changed, text in (
        ({"level": 0.5}, r"begun with another level of intervals \(usual, now 0\.5\)"),
        ({"judge": other}, r"begun with another judge \(SHA-256 [0-9a-f]{12}, now [0-9a-f]{12}\)"),
        ({"backbone": "org/model"}, r"another backbone \(as in traini, now org/model\)"),
        ({"checksums": True}, r"another way to tell files apart \(by size and , now by content\)"),
        ({"quantization": "nf4"}, r"another quantization \(as in traini, now nf4\)"),
        ({"manifest": job.manifest.with_name("longer.csv")}, r"another manifest \(SHA-256"),
    ):
        with pytest.raises(UserError, match=text) as found:
            score_manifest(dataclasses.replace(job, **changed), in_process)
        assert "accepted: the same command as before, or --restart" in str(found.value)
        assert "\n" not in str(found.value)
    assert len(Parts(job).left()) == 2
    changed = dataclasses.replace(job, manifest=job.manifest.with_name("longer.csv"))
    assert score_manifest(changed, in_process, restart=True).rows == 151


def test_a_backbone_with_other_files_is_another(write, make_job, in_process, scorer, backbone_folder, tmp_path):
    own = Path(shutil.copytree(backbone_folder, tmp_path / "own"))
    job = make_job(write(rows_with_bad_ones()), backbone=str(own))
    with pytest.raises(Killed):
        score_manifest(job, stopping_after(scorer, 1))
    elsewhere = tmp_path / "elsewhere"
    own.rename(elsewhere)
    moved = dataclasses.replace(job, backbone=str(elsewhere))
    with pytest.raises(Killed):  # the same files in another place
        score_manifest(moved, stopping_after(scorer, 1))
    (elsewhere / "processor_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"begun with another backbone \([0-9a-f]{12}, now [0-9a-f]{12}\)"):
        score_manifest(moved, _fail)


@pytest.mark.parametrize("checksums", [False, True])
def test_what_was_made_of_audio_that_changed_is_scored_again(checksums, write, make_job, in_process, scorer, clips):
    rows = [row(number, response_audio=f"r{number // 64}.wav") for number in range(192)]
    rows[70]["response_audio"] = "late.wav"
    manifest = write(rows)
    job = make_job(manifest, checksums=checksums)
    with pytest.raises(Killed):
        score_manifest(job, stopping_after(scorer, 2))
    for name in ("r0.wav", "r1.wav"):  # their times alone
        os.utime(clips / name, ns=(1, 1))
    if checksums:
        score_done(job, in_process, [128])
        with pytest.raises(Killed):
            score_manifest(job, stopping_after(scorer, 2))
        shutil.copyfile(clips / "r3.wav", clips / "r0.wav")
        os.utime(clips / "r0.wav", ns=(1, 1))
        score_done(job, in_process, [64])
    else:
        score_done(job, in_process, [0])
    with pytest.raises(Killed):
        score_manifest(job, stopping_after(scorer, 2))
    shutil.copyfile(clips / "r3.wav", clips / "late.wav")  # its row can be scored now, and is in the second part
    score_done(job, in_process, [64])
    whole = make_job(manifest, "whole.csv")
    score_manifest(whole, in_process)
    assert job.out.read_bytes() == whole.out.read_bytes()


def score_done(job, engine, before: list[int]) -> None:
    """Score a job that was begun, of which so many rows are taken as done."""
    assert [score_manifest(job, engine).done_before] == before


def test_who_comes_while_others_are_at_work_does_not_look_again(write, make_job, scorer, clips):
    job = make_job(write(rows_with_bad_ones()))
    with pytest.raises(Killed):
        score_manifest(job, stopping_after(scorer, 2))
    os.utime(clips / "c.wav", ns=(1, 1))
    left = []

    def second(parts, meter):
        left.append(len(parts.left()))
        raise Killed

    def first(parts, meter):
        left.append(len(parts.left()))
        parts.path(parts.chunks()[0]).write_bytes(b"{}\n")  # as if it were done again
        with pytest.raises(Killed):
            score_manifest(job, second)
        raise Killed

    with pytest.raises(Killed):
        score_manifest(job, first)
    assert left == [3, 2]


def test_a_file_that_is_complete_is_scored_anew_by_one_process_and_left_by_several(write, make_job, in_process, clips):
    job = make_job(write([row(0), row(1, response_audio="text.wav")]))
    assert score_manifest(job, in_process).failed == {"not a sound file": 1}
    (clips / "text.wav").write_bytes((clips / "r1.wav").read_bytes())

    def never(parts, meter):
        raise AssertionError

    late = score_manifest(job, never, Place(1, 2, 1))
    assert late.failed == {"not a sound file": 1}
    assert not Parts(job).folder.exists()
    assert score_manifest(job, in_process).failed == {}
    job.out.write_text("something else")
    assert score_manifest(job, in_process, Place(1, 2, 1)).scored == 2
    with pytest.raises(UserError, match=r"--restart in several processes; accepted: delete .*scores\.csv\.parts"):
        score_manifest(job, in_process, Place(0, 2, 0), restart=True)


def test_a_failure_before_anything_is_done_leaves_nothing_and_the_old_scores(write, make_job, clips):
    job = make_job(write([row(0)]), "scores.csv")
    job.out.write_text("old")
    before = sorted(clips.iterdir())
    with pytest.raises(Killed):
        score_manifest(job, _fail)
    assert job.out.read_text() == "old"
    assert sorted(clips.iterdir()) == before


def test_a_manifest_that_cannot_be_scored_leaves_nothing(write, make_job, clips):
    job = make_job(write([row(0), row(0)]), "scores.csv")
    before = sorted(clips.iterdir())
    with pytest.raises(UserError, match="stands there twice"):
        score_manifest(job, _fail)
    assert sorted(clips.iterdir()) == before


def test_a_full_disk_is_one_line_and_nothing_is_lost(write, make_job, in_process, scorer, monkeypatch):
    job = make_job(write(rows_with_bad_ones()))

    def full(self, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def run(parts, meter):
        worker = Worker(parts, scorer, meter.tell)
        worker.score(parts.chunks()[0])
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            parts.write(parts.chunks()[1], worker._columns, [], {}, "")

    with pytest.raises(UserError, match=r"part-000001: cannot be written \(No space left on device\)"):
        score_manifest(job, run)
    assert score_manifest(job, in_process).done_before == 64


def test_what_others_work_on_is_not_deleted(write, make_job):
    job = make_job(write([row(0)]), "scores.csv")

    def run(parts, meter):
        with FileLock(parts.path(parts.chunks()[0], "lock")):
            for changed, restart, text in (
                (dataclasses.replace(job, level=0.5), False, "begun with another level"),
                (job, True, "other processes are at work; accepted: stop them first"),
            ):
                with pytest.raises(UserError, match=text):
                    score_manifest(changed, _fail, restart=restart)
            with pytest.raises(Killed):
                score_manifest(job, _fail)
            assert parts.exist()
        raise Killed

    with pytest.raises(Killed):
        score_manifest(job, run)
    assert not Parts(job).folder.exists()


def _fail(parts, meter):
    raise Killed


def test_what_cannot_be_written_or_would_be_overwritten_is_refused(write, make_job, clips):
    manifest = write([row(0)])
    with pytest.raises(UserError, match=r"suffix '\.txt'; accepted: \.csv, \.tsv, \.jsonl, \.parquet"):
        make_job(manifest, "scores.txt")
    with pytest.raises(UserError, match=r"manifest\.csv: is the manifest; accepted: another file"):
        make_job(manifest, "manifest.csv")
    job = dataclasses.replace(make_job(manifest), judge=clips / "absent")
    with pytest.raises(UserError, match=r"absent: expected a judge folder \(with judge\.json\)"):
        score_manifest(job, _fail)


def test_rows_that_kill_are_passed_over_after_a_few_tries(write, make_job, scorer, clips, monkeypatch):
    """An error in this process stands for the death of a worker: both leave the same notes."""
    (clips / "killer.wav").write_bytes((clips / "r1.wav").read_bytes())
    rows = [row(number) for number in range(70)]
    rows[9]["response_audio"] = rows[66]["response_audio"] = "killer.wav"
    job = make_job(write(rows), "scores.jsonl")
    plain = type(scorer).assess_pairs

    def deadly(self, pairs, level):
        def passed():
            for pair in pairs:
                if str(pair.response).endswith("killer.wav"):
                    raise MemoryError
                yield pair

        yield from plain(self, passed(), level)

    monkeypatch.setattr(type(scorer), "assess_pairs", deadly)

    def run(parts, meter):
        Worker(parts, scorer, meter.tell).run()

    deaths = 0
    while True:
        try:
            summary = score_manifest(job, run, Place(0, 2, 0))
        except MemoryError:
            deaths += 1
            assert deaths < 20
        else:
            break
    assert deaths == 2 * (3 + 2)  # per chunk: a start and two retries, then the row twice
    assert summary.failed == {"process died": 2}
    found = read(job.out)
    assert [number for number, one in enumerate(found) if one["status"] != "ok"] == [9, 66]
    assert found[9]["status"] == "the process that scored this row died each time"
    expected = plain(scorer, [pair_of(clips, rows[0])], 0.9)
    assert found[0]["warmth"] == pytest.approx(next(iter(expected))[1].points["warmth"], abs=1e-5)


def pair_of(clips, one):
    from empathy_judge.audio_inputs import make_pair

    return make_pair("x", clips / one["context_audio"], clips / one["response_audio"])


def test_a_chunk_full_of_rows_that_kill_fails_as_a_whole(tmp_path):
    from empathy_judge.manifests.attempts import Attempts

    path = tmp_path / "starts-000000"
    deaths = 0
    while True:
        attempts = Attempts(path)
        attempts.begin()
        if attempts.hopeless:
            break
        deaths += 1
        if attempts.careful:
            attempts.at(min({*range(64)} - attempts.culprits))
    assert deaths == 3 + 2 * 4
    assert attempts.culprits == {0, 1, 2, 3}
    attempts.withdraw()
    assert Attempts(path)._notes["starts"] == deaths
    attempts.end()
    assert not Attempts(path).careful


def test_two_workers_share_the_chunks(write, make_job, scorer):
    """One stops in the middle of its first chunk, which the other then takes."""
    job = make_job(write(rows_with_bad_ones()))
    numbers = []

    def run(parts, meter):
        for chunks, error in ((1, Killed), (5, Killed)):
            try:
                stopping_after(scorer, chunks, error)(parts, meter)
            except Killed:
                numbers.append([chunk.number for chunk in parts.left()])

    assert score_manifest(job, run).rows == 150
    assert numbers == [[1, 2]]


def test_a_signal_ends_with_a_word_how_to_go_on(write, make_job, in_process, scorer, capsys):
    job = make_job(write(rows_with_bad_ones()))
    before = signal.getsignal(signal.SIGTERM)

    def run(parts, meter):
        def asked(progress):
            meter.tell(progress)
            if progress.chunks:
                os.kill(os.getpid(), signal.SIGTERM)

        Worker(parts, scorer, asked).run()

    with pytest.raises(SystemExit) as stopped, stopped_by_signals(job):
        score_manifest(job, run)
    assert stopped.value.code == ASKED_TO_STOP
    assert signal.getsignal(signal.SIGTERM) is before
    assert "asked to stop: 1 of 3 parts are done; the same command goes on from there" in capsys.readouterr().err
    assert score_manifest(job, in_process).done_before == 64


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, Place()),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, Place(3, 4, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, Place()),
        (
            {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16"},
            Place(9, 16, 1),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0"}, Place()),
    ],
    ids=["alone", "torchrun", "torchrun of one", "srun", "a batch script that starts one process"],
)
def test_who_is_who(environment, place):
    assert find_place(environment) == place


@pytest.mark.parametrize(
    ("gpus", "place", "device", "workers", "devices"),
    [
        (0, Place(), None, None, [None]),
        (0, Place(), "cpu", 2, ["cpu", "cpu"]),
        (4, Place(), "cpu", None, ["cpu"]),
        (2, Place(), None, None, ["cuda:0", "cuda:1"]),
        (2, Place(), "cuda", 3, ["cuda:0", "cuda:1", "cuda:0"]),
        (2, Place(), "cuda:1", None, ["cuda:1"]),
        (8, Place(), "auto", None, ["auto"]),
        (8, Place(11, 16, 3), None, None, ["cuda:3"]),
        (1, Place(3, 4, 3), None, None, ["cuda:0"]),
        (0, Place(1, 2, 1), None, None, [None]),
    ],
)
def test_each_worker_has_a_device(gpus, place, device, workers, devices, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert worker_devices(place, device, workers) == devices


@pytest.mark.parametrize(
    ("place", "device", "workers", "text"),
    [
        (Place(0, 2, 0), "cuda:0", None, "--device cuda:0 for several workers.*accepted: no --device, cuda, or cpu"),
        (Place(), "auto", 2, "--device auto for several workers"),
        (Place(), None, 0, "--workers 0; accepted: at least 1"),
    ],
)
def test_workers_that_would_be_in_each_others_way_are_refused(place, device, workers, text):
    with pytest.raises(UserError, match=text):
        worker_devices(place, device, workers)
