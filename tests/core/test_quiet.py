"""Standard error holds our lines alone: nothing of another library that the user of a command cannot act on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = re.compile(
    r"what is trained|part .*parameters.*trainable|(language_model|projector|audio_tower|pooling|head|all) .*\d|[┏┡└┃│]"
    r"|trained on \d+ pairs in|[\w: ]+: [\d,]+ of [\d,]+, (.* left|0\.0 per second$)"
    r"|warning: .*(usual: |calibrated on )"
    r"|epoch \d+ of \d+; |rows: \d+, with scores: |responses: [\d.]+ minutes|\w+: mean [\d.]+, from |\d+ of \d+ are ",
    re.IGNORECASE,
)
# One process after the other would load torch each time; a warning that is shown once is shown here, too
ALL = """
import sys
from empathy_judge.cli import main
for words in sys.argv[1].split("|"):
    code = main(words.split())
    assert code in (0, 1), (words, code)
"""


def said(process: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines on standard error that are not ours; a progress bar writes over its line."""
    lines = [line.strip() for line in re.split(r"[\r\n]", process.stderr)]
    return [line for line in lines if line and not OURS.match(line)]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHONWARN")}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=240)


def check_quiet(*words: str) -> None:
    process = run(*words)
    assert process.returncode == 0, process.stderr[-2000:]
    assert said(process) == []


def make_manifest(dataset_folder: Path, folder: Path) -> Path:
    manifest = folder / "manifest.csv"
    manifest.write_text("response_audio\np00.wav\np01.wav\n")
    for name in ("p00.wav", "p01.wav"):
        shutil.copyfile(dataset_folder / name, folder / name)
    return manifest


@pytest.mark.long
def test_commands_print_our_lines_alone(dataset_folder, judge_folder, backbone_folder, tmp_path):
    manifest = make_manifest(dataset_folder, tmp_path)
    context, response = dataset_folder / "context0.wav", dataset_folder / "p00.wav"
    recipe = f"--config {ROOT / 'configs/nano.yaml'} --judge.backbone {backbone_folder} --data.path {dataset_folder}"
    few = "--trainer.max_epochs 1 --trainer.limit_train_batches 2 --trainer.accelerator cpu"
    commands = (
        f"inspect {dataset_folder}",
        f"train {recipe} --run {tmp_path / 'run'} {few}",
        f"train {recipe} --dry-run",
        f"evaluate {tmp_path / 'run'} --data {dataset_folder} --out {tmp_path / 'report'} --resamples 20",
        f"compare {judge_folder} constant acoustic --data {dataset_folder} --out {tmp_path / 'two'} --resamples 20",
        f"score {judge_folder} {context} {response} --device cpu",
        f"score {judge_folder} --manifest {manifest} --device cpu",
        f"score {judge_folder} --manifest {manifest} --out {tmp_path / 'scores.csv'} --device cpu",
        f"rank {judge_folder} {context} {response} {dataset_folder / 'p01.wav'} --device cpu",
        f"export {tmp_path / 'run'} --out {tmp_path / 'whole'} --form merged --quantization int4 --accept-loss",
        f"score {tmp_path / 'whole'} {context} {response} --device cpu",
    )
    check_quiet("-c", ALL, "|".join(commands))
    assert (tmp_path / "scores.csv").is_file()


@pytest.mark.long
def test_two_processes_and_a_cluster_are_as_quiet(dataset_folder, judge_folder, backbone_folder, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    manifest = make_manifest(dataset_folder, tmp_path)
    recipe = f"--config {ROOT / 'configs/nano.yaml'} --judge.backbone {backbone_folder} --data.path {dataset_folder}"
    two = "--trainer.max_epochs 1 --trainer.limit_train_batches 2 --trainer.accelerator cpu --trainer.devices 2"
    cluster = f"score {judge_folder} --manifest {manifest} --out {tmp_path / 'scores.csv'} --engine ray"
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / (40 * "x")))
    (refused,) = [line for line in said(run("-c", ALL, cluster)) if line.startswith("error: ")]
    assert refused.startswith("error: Ray does not start: ")
    assert refused.endswith("; expected RAY_TMPDIR to name a short folder, such as /tmp")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as short:
        monkeypatch.setenv("RAY_TMPDIR", short)
        check_quiet("-c", ALL, cluster)
    # Lightning starts the second process with the words of the first
    train = ("-m", "empathy_judge.cli", "train", *recipe.split(), *two.split(), "--trainer.strategy", "ddp", "--run")
    check_quiet(*train, str(tmp_path / "run"))
    (tmp_path / "run").rename(tmp_path / "moved")  # Lightning would say where its checkpoints were
    check_quiet(*train, str(tmp_path / "moved"), "--resume", "true", "--trainer.max_epochs", "2")


def test_matplotlib_without_a_home_says_nothing():
    """As in containers: it caches fonts in a temporary folder then."""
    unset = ("HOME", "MPLCONFIGDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    program = "import empathy_judge.core.quiet_process, matplotlib; matplotlib.get_cachedir()"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**environment, "HOME": f"{os.devnull}/home"}, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
