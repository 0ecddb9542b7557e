"""Ray Data on this machine: the file of the other engine, and a step for other pipelines."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest
from empathy_judge.scoring.batch.job import Job, Parts
from empathy_judge.scoring.batch.run import score_manifest

from .conftest import read, row

pytestmark = pytest.mark.long
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two processors; what Ray writes vanishes with it."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        environment = {"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}}
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder, runtime_env=environment)
        yield
        ray.shutdown()


def test_two_actors_write_the_same_bytes(cluster, write, make_job, in_process):
    from empathy_judge.scoring.batch.ray_data import run_ray

    rows = [row(number, context_audio="c.wav" if number % 3 else None) for number in range(2_000)]
    for number, name in ((5, "cut.wav"), (700, "absent.wav"), (1_999, "../outside.wav")):
        rows[number]["response_audio"] = name
    manifest = write(rows, "m.jsonl")
    one, two = (make_job(manifest, name, settings={"batch_size": 8}) for name in ("one.parquet", "two.parquet"))
    first = score_manifest(one, in_process)
    second = score_manifest(two, lambda parts, look: run_ray(parts, look, workers=2, device="cpu"))
    assert (second.rows, second.failed) == (first.rows, first.failed) == (2_000, second.failed)
    assert second.failed == {"the file is cut off": 1, "no such file": 1, "leaves the folder": 1}
    assert one.out.read_bytes() == two.out.read_bytes()
    assert not Parts(two).folder.exists()


def test_a_step_of_a_pipeline_adds_columns(cluster, judge_folder, clips, scorer):
    from empathy_judge.scoring.batch.ray_data import ScoreBatch

    rows = [
        {"name": f"n{number}", "response_audio": (clips / f"r{number % 4}.wav").read_bytes()} for number in range(20)
    ]
    rows[7]["response_audio"] = b"no audio"
    scored = ray.data.from_items(rows).map_batches(
        ScoreBatch, fn_constructor_args=(str(judge_folder),), fn_constructor_kwargs={"device": "cpu"}, batch_size=64,
        compute=ray.data.ActorPoolStrategy(size=1),
    )  # fmt: skip
    found = {one["name"]: one for one in scored.take_all()}
    assert len(found) == 20
    assert "not a sound file" in found["n7"]["status"]
    assert np.isnan(found["n7"]["warmth"])
    for number in (0, 3, 18):
        one = found[f"n{number}"]
        expected = scorer.assess(None, clips / f"r{number % 4}.wav").scores["warmth"]
        assert one["status"] == "ok"
        assert one["warmth"] == pytest.approx(expected.score, abs=1e-5)
        assert one["warmth_label"] == expected.label


def test_paths_need_a_folder(judge_folder, clips, scorer):
    from empathy_judge.scoring.batch.ray_data import ScoreBatch

    batch = {"response_audio": np.array(["r0.wav", "../outside.wav"], dtype=object)}
    without, within = (ScoreBatch(judge_folder, folder, device="cpu")(batch) for folder in (None, clips))
    assert [text.split(";")[0] for text in without["status"]] == [
        "row 1, column 'response_audio': value 'r0.wav' is a path",
        "row 2, column 'response_audio': value '../outside.wav' is a path",
    ]
    assert within["status"][0] == "ok"
    assert "leaves the folder" in within["status"][1]
    assert within["warmth"][0] == pytest.approx(scorer.score(None, clips / "r0.wav")["warmth"], abs=1e-5)


def test_a_job_of_one_engine_is_finished_by_the_other(cluster, write, make_job, in_process):
    from empathy_judge.scoring.batch.ray_data import run_ray

    job: Job = make_job(write([row(number) for number in range(150)]), settings={"batch_size": 8})

    def begun(parts, look):
        run_ray(parts, look, workers=1, device="cpu")
        parts.path(parts.chunks()[1]).unlink()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_manifest(job, begun)
    summary = score_manifest(job, in_process)
    assert summary.done_before == 150 - 64
    assert {one["status"] for one in read(job.out)} == {"ok"}
