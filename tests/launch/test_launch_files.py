"""The launch files, with stand-ins for what only a cluster has. `torchrun.sh` trains in train/test_strategies.py."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from empathy_judge.cli import options_of
from empathy_judge.commands.judges import Score
from empathy_judge.train.recipe import RecipeParser

from ..conftest import until

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
WORDS = ["--config", str(ROOT / "configs/nano.yaml"), "--data.path", "my data", "--run", "runs/first"]
SCORED = ["judge", "--manifest", "my pairs.csv", "--out", "scores.csv"]


def stand_in(folder: Path, name: str, body: str) -> None:
    """An executable of that name that also writes down its arguments."""
    path = folder / name
    path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > "{folder}/{name}.arguments"\n{body}\n')
    path.chmod(0o755)


def arguments(folder: Path, name: str) -> list[str] | None:
    path = folder / f"{name}.arguments"
    return path.read_text().splitlines() if path.is_file() else None


def given(words: list[str], *options: str) -> list[str]:
    """The values of these options."""
    return [words[words.index(option) + 1] for option in options]


def run(name: str, folder: Path, words: Sequence[str] = WORDS, **variables: str) -> int:
    """Exit status of a launch file that finds its programs in a folder first."""
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **variables}
    return subprocess.run([str(LAUNCH / name), *words], env=environment, capture_output=True, timeout=60).returncode


def check_train(words: list[str], nodes: int, gpus: int) -> None:
    """What follows `train` is what the user said, and as many machines and GPUs as there are processes for."""
    assert given(words, "--resume") == ["auto"]
    config = RecipeParser().parse(words[: words.index("--resume")])
    assert (config.trainer.num_nodes, int(config.trainer.devices)) == (nodes, gpus)
    assert (config.data.path, config.run) == ("my data", "runs/first")


@pytest.mark.parametrize("name", ["slurm.sbatch", "torchrun.sh", "score_slurm.sbatch", "score_torchrun.sh"])
def test_scripts_are_valid_and_can_be_executed(name):
    assert os.access(LAUNCH / name, os.X_OK)
    assert subprocess.run(["bash", "-n", str(LAUNCH / name)]).returncode == 0


@pytest.mark.parametrize("name", ["slurm.sbatch", "torchrun.sh", "score_slurm.sbatch", "score_torchrun.sh"])
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": ""}, ""),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": "backend:native"},
            "max_split_size_mb:64",
        ),
        ({"PYTORCH_ALLOC_CONF": "backend:native"}, "backend:native"),
        ({"PYTORCH_HIP_ALLOC_CONF": "backend:native"}, "backend:native"),
    ],
)
def test_memory_of_a_gpu_may_grow_in_place_unless_the_user_says_otherwise(
    name, variables, expected, tmp_path, monkeypatch
):
    for known in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(known, raising=False)
    for program in ("srun", "our-python"):
        stand_in(tmp_path, program, f'printf %s "$PYTORCH_CUDA_ALLOC_CONF" > "{tmp_path}/memory"')
    stand_in(tmp_path, "scontrol", "echo node3")
    slurm = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS_PER_NODE": "1"}
    assert run(name, tmp_path, PYTHON="our-python", GPUS="1", **slurm, **variables) == 0
    assert (tmp_path / "memory").read_text() == expected


def scored(words: list[str]) -> None:
    """What follows is `score` with what the user said; its own parser takes it."""
    command = words[words.index("empathy_judge.cli") + 1 :]
    assert command[0] == "score"
    parsed = options_of(command)
    assert isinstance(parsed, Score)
    assert (parsed.judge, parsed.manifest, parsed.out) == ("judge", "my pairs.csv", "scores.csv")


@pytest.mark.parametrize(("status", "requeued"), [(75, True), (0, False), (1, False), (2, False), (137, False)])
def test_slurm_queues_a_job_again_that_was_asked_to_stop_scoring(status, requeued, tmp_path):
    stand_in(tmp_path, "srun", f'echo "$SRUN_CPUS_PER_TASK" > "{tmp_path}/cpus"; exit {status}')
    stand_in(tmp_path, "scontrol", "")
    variables = {"PYTHON": "our-python", "SLURM_JOB_ID": "123", "SLURM_CPUS_PER_TASK": "8"}
    assert run("score_slurm.sbatch", tmp_path, SCORED, **variables) == status
    assert (tmp_path / "cpus").read_text() == "8\n"  # srun itself no longer reads what sbatch was told
    words = arguments(tmp_path, "srun")
    assert words[:5] == ["--kill-on-bad-exit=0", "--wait=0", "our-python", "-m", "empathy_judge.cli"]
    scored(words)
    assert arguments(tmp_path, "scontrol") == (["requeue", "123"] if requeued else None)


def test_torchrun_scores_with_a_process_for_each_gpu(tmp_path):
    stand_in(tmp_path, "our-python", "exit 0")
    variables = {"PYTHON": "our-python", "NODES": "4", "GPUS": "8", "MASTER": "first:29400"}
    assert run("score_torchrun.sh", tmp_path, SCORED, **variables) == 0
    words = arguments(tmp_path, "our-python")
    assert given(words, "--nnodes", "--rdzv-endpoint", "--nproc-per-node") == ["4", "first:29400", "8"]
    assert given(words, "--rdzv-conf") == ["join_timeout=1800,read_timeout=900"]
    scored(words)


@pytest.mark.parametrize(
    ("statuses", "status"),
    [((75, 75), 75), ((0, 0), 0), ((0, 75), 75), ((0, 1), 1), ((2, 0), 2), ((75, 2), 2), ((75, 137), 137)],
)
def test_slurm_queues_a_job_again_that_has_saved_and_no_other(statuses, status, tmp_path):
    """Two tasks that end one after the other; like `srun`, their stand-in ends with the highest exit status."""
    stand_in(
        tmp_path,
        "srun",
        f"""echo "$MASTER_ADDR $SRUN_CPUS_PER_TASK" > "{tmp_path}/main"
while [[ $1 == --* ]]; do shift; done
highest=0
for rank in 0 1; do
    SLURM_PROCID=$rank "$@"
    code=$?
    ((code > highest)) && highest=$code
done
exit "$highest\"""",
    )
    ends = " ".join(map(str, statuses))
    stand_in(tmp_path, "our-python", f'ends=({ends}); exit "${{ends[$SLURM_PROCID]}}"')
    stand_in(tmp_path, "scontrol", 'if [ "$1" = show ]; then echo node3; echo node4; fi')
    (tmp_path / "temporary").mkdir()
    variables = {"SLURM_JOB_ID": "123", "SLURM_JOB_NODELIST": "node[3-4]", "SLURM_JOB_NUM_NODES": "2"}
    variables |= {"SLURM_NTASKS_PER_NODE": "8", "PYTHON": "our-python", "TMPDIR": str(tmp_path / "temporary")}
    variables["SLURM_CPUS_PER_TASK"] = "8"
    assert run("slurm.sbatch", tmp_path, **variables) == status
    assert (tmp_path / "main").read_text() == "node3 8\n"
    words = arguments(tmp_path, "srun")
    # a failure ends all at once; what ends well waits for the others without limit
    assert words[:2] == ["--kill-on-bad-exit=1", "--wait=0"]
    words = arguments(tmp_path, "our-python")
    assert words[:3] == ["-m", "empathy_judge.cli", "train"]
    check_train(words[3:], nodes=2, gpus=8)
    requeued = status == 75
    assert arguments(tmp_path, "scontrol") == (["requeue", "123"] if requeued else ["show", "hostnames", "node[3-4]"])
    assert not any((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(("launcher", "number"), [("slurm.sbatch", signal.SIGUSR1), ("torchrun.sh", signal.SIGTERM)])
def test_a_signal_reaches_the_program_and_is_waited_for(launcher, number, tmp_path):
    """As clusters send it: Slurm to all processes of a step, Kubernetes to the first process of a pod."""
    began, saved = tmp_path / "began", tmp_path / "saved"
    waits = f"trap 'sleep 0.5; echo > {saved}; exit 75' TERM USR1; echo > {began}; while :; do sleep 0.05; done"
    if launcher == "torchrun.sh":
        stand_in(tmp_path, "our-python", f'[[ $2 == torch* ]] && exec {sys.executable} "$@"\n{waits}')
    else:
        stand_in(tmp_path, "our-python", waits)
        stand_in(tmp_path, "srun", 'while [[ $1 == --* ]]; do shift; done; trap : USR1; SLURM_PROCID=0 "$@"')
        stand_in(tmp_path, "scontrol", "echo node3")
    variables = {"PYTHON": "our-python", "GPUS": "1", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    variables |= {
        "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS_PER_NODE": "1",
    }  # fmt: skip
    process = subprocess.Popen(
        [str(LAUNCH / launcher), *WORDS], env={**os.environ, **variables}, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    until(began.exists, 60)
    if launcher == "torchrun.sh":
        process.send_signal(number)
    else:
        inside = subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True, text=True).stdout.split()
        for child in map(int, inside):
            if child != process.pid:  # the script is no part of the step
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)
    code = process.wait(60)
    assert saved.is_file()
    if launcher == "slurm.sbatch":
        assert code == 75
        assert arguments(tmp_path, "scontrol") == ["requeue", "1"]


@pytest.mark.parametrize(("status", "starts", "ends"), [(2, 1, 2), (1, 4, 1)])
def test_torchrun_starts_nothing_again_after_bad_input_and_all_else_three_times(status, starts, ends, tmp_path):
    """The real torchrun, with a stand-in for what it starts."""
    stand_in(
        tmp_path,
        "our-python",
        f"""[[ $2 == torch* ]] && exec {sys.executable} "$@"
echo "$RANK $TORCHELASTIC_RESTART_COUNT" >> "{tmp_path}/starts"
exit {status}""",
    )
    (tmp_path / "temporary").mkdir()
    variables = {"PYTHON": "our-python", "GPUS": "2", "TMPDIR": str(tmp_path / "temporary")}
    assert run("torchrun.sh", tmp_path, **variables) == ends
    started = sorted(set((tmp_path / "starts").read_text().splitlines()))
    assert {line for line in started if line.startswith("0")} <= {f"0 {count}" for count in range(starts)}
    assert len({line.split()[1] for line in started}) == starts
    assert not any(path.name.startswith("tmp.") for path in (tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("name", ["slurm.sbatch", "score_slurm.sbatch"])
def test_slurm_is_asked_for_a_task_per_gpu_and_a_signal_before_the_end(name):
    lines = (LAUNCH / name).read_text().splitlines()
    asked = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH --")]
    options = dict(word.split("=", 1) for word in asked if "=" in word)
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    signal, seconds = options["signal"].split("@")
    assert signal == "USR1"  # without B: to the tasks, not to the script
    assert int(seconds) >= 120
    assert "requeue" in asked
    assert options["open-mode"] == "append"  # what was printed before stays


def test_torchrun_on_one_machine_and_on_several(tmp_path):
    # a GPU that CUDA_VISIBLE_DEVICES hides is none of this machine's
    stand_in(tmp_path, "our-python", "[[ $2 == *torch.cuda.device_count* ]] && echo 3; exit 0")
    assert run("torchrun.sh", tmp_path, PYTHON="our-python") == 0
    words = arguments(tmp_path, "our-python")
    assert words[:3] == ["-m", "torch.distributed.run", "--standalone"]
    assert given(words, "--nproc-per-node") == ["3"]
    check_train(words[words.index("train") + 1 :], nodes=1, gpus=3)
    variables = {"PYTHON": "our-python", "NODES": "4", "GPUS": "8"}
    assert run("torchrun.sh", tmp_path, **variables) != 0  # where do they meet?
    assert run("torchrun.sh", tmp_path, MASTER="first:29400", **variables) == 0
    words = arguments(tmp_path, "our-python")
    options = ("--nnodes", "--rdzv-endpoint", "--rdzv-backend", "--max-restarts")
    assert given(words, *options) == ["4", "first:29400", "c10d", "3"]
    assert given(words, "--rdzv-conf") == ["join_timeout=1800,read_timeout=900"]
    check_train(words[words.index("train") + 1 :], nodes=4, gpus=8)


def test_kubernetes_gives_torchrun_what_it_needs():
    service, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    assert (service["kind"], job["apiVersion"], job["kind"]) == ("Service", "batch/v1", "Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    # names of pods: those of a headless service that selects them, under the name of the job and their index
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert spec["completionMode"] == "Indexed"
    host, port = variables["MASTER"].split(":")
    assert host == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert int(port) > 1024
    assert spec["completions"] == spec["parallelism"] == int(variables["NODES"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(variables["GPUS"])
    # failures: a pod that dies is made anew; an eviction is none
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy is accepted with no other
    assert spec["backoffLimit"] == 3
    bad_input = {"containerName": container["name"], "operator": "In", "values": [2]}
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "FailJob", "onExitCodes": bad_input},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    ]
    assert pod["terminationGracePeriodSeconds"] > 30  # torchrun kills its processes after that
    # the run lies where all pods write
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    words = container["args"]
    assert words[words.index("--run") + 1].startswith("/storage/")
    assert "persistentVolumeClaim" in volumes[mounts["/storage"]]
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}
    assert container["command"] == ["launch/torchrun.sh"]
    assert RecipeParser().parse(words).run == "/storage/runs/first"
