"""Every recipe as it is shipped: trained, killed, resumed, exported and scored with, by the command in its first line.

Nothing of a recipe is changed but what a CPU cannot have: `accelerator: gpu` becomes `cpu`, and `devices: auto` two
processes (gloo). Its backbone is found under its name on the hub and its revision, in a cache of this test: there lies
a miniature of the true class with random weights. Training ends where the recipe ends it, by its epochs or by early
stopping: the data set is so small that this is soon. Lightning keeps DeepSpeed to GPUs; three checks of it are put out
of force for the recipes that need it (`DEEPSPEED`), which are skipped where DeepSpeed is not installed: it has no
wheels and compiles a part when it first runs. On its CPU accelerator they reach `initialize`, forward, backward and
step, clipping, and gathering of weights and states. They do not reach NCCL, nor transfers that overlap with computation
on CUDA streams, since streams do nothing there.

With EMPATHY_JUDGE_RECIPES_TABLE=FILE what was found is written there, a row for each recipe.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile
import yaml
from empathy_judge.cli import main
from empathy_judge.data_modules.schema import DatasetCard, Dimension, PairDataset
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.data_modules.writing import write_dataset
from empathy_judge.models import BEST, CHECKPOINTS, LAST
from empathy_judge.models.backbones import FAMILIES
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.predictor import Predictor
from empathy_judge.train.checkpointing import position_of
from empathy_judge.train.recipe import RecipeParser

from ...conftest import output_of

ROOT = Path(__file__).parents[3]
RECIPES = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
NEEDS = {"strategy_zero2": "deepspeed", "nano_wandb": "wandb"}
RATE, GROUPS = 16_000, 36
SCALE = Dimension("empathy", 1, 5, 1)
PATIENCE = 900.0  # seconds that a process may take
COMMAND = [sys.executable, "-m", "empathy_judge.cli"]
ENVIRONMENT = {**os.environ, "DS_ACCELERATOR": "cpu", "WANDB_SILENT": "true"}

# Lightning 2.6 refuses DeepSpeed without CUDA: the accelerator's class, the numbers of its devices, and arguments that
# DeepSpeed takes for those of NCCL
DEEPSPEED = """
import sys
import lightning.pytorch.strategies.deepspeed as lightning_deepspeed
from lightning.pytorch.accelerators import CPUAccelerator
from empathy_judge.cli import main

lightning_deepspeed.CUDAAccelerator = CPUAccelerator
lightning_deepspeed._validate_device_index_selection = lambda devices: None
lightning_deepspeed.argparse = type("Arguments", (), {"Namespace": lambda device_rank: None})
sys.exit(main())
"""


@pytest.fixture(scope="module")
def table() -> Iterator[Callable[..., None]]:
    """Takes a row: recipe; backbone, processes and precision; steps of the optimizer; validations of the whole split;
    step of the last checkpoint before the first process was killed; score of a pair that nobody trained on, by the
    exported judge; its difference to the one of the run's own judge; seconds of everything. At the end all rows are
    printed and, where a file is named, put into it."""
    lines: dict[str, str] = {}

    def add(name: str, *cells: object, score: float, difference: float, seconds: float) -> None:
        values = f"`{name}`", *cells, f"{score:.3f}", f"{difference:.1g}", f"{seconds:.0f}"
        lines[name] = f"| {' | '.join(map(str, values))} |"

    yield add
    print("\n" + "\n".join(lines[name] for name in sorted(lines)))
    if path := os.environ.get("EMPATHY_JUDGE_RECIPES_TABLE"):
        _write_table(Path(path), lines)


def _write_table(path: Path, lines: dict[str, str]) -> None:
    """Replace the rows of these recipes; what stands above the rows stays."""
    text = path.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^(?=\| `(\w+)` \|)(.*)$", text, flags=re.MULTILINE)) | lines
    head = text[: text.index("\n| `") + 1]
    path.write_text(head + "\n".join(rows[name] for name in sorted(rows)) + "\n", encoding="utf-8")


# ---------------------------------------------------------------- data and weights


@pytest.fixture(scope="module")
def rated(make_tone, tmp_path_factory) -> Path:
    """144 pairs, 96 to train on, all rated and all compared: two systems answer two contexts in each of 36 groups."""
    folder = tmp_path_factory.mktemp("recipes") / "tones"
    folder.mkdir()
    rng = np.random.default_rng(0)
    pairs, ratings, preferences = [], [], []
    for group in range(GROUPS):
        for context in range(2):
            heard = f"c{group:02d}_{context}.wav"
            soundfile.write(
                folder / heard, make_tone(rng.uniform(1, 2.9), 90 + 31 * (2 * group + context), 0.3, 0.2), RATE
            )
            loudness = rng.permutation([rng.uniform(0, 0.4), rng.uniform(0.6, 1)])
            for system in range(2):
                name = f"p{group:02d}_{context}{system}"
                hertz = 117 + 23 * len(pairs)
                samples = make_tone(rng.uniform(1, 2.9), hertz, 0.05 + 0.5 * loudness[system], 0.1)
                soundfile.write(folder / f"{name}.wav", samples, RATE)
                pairs.append({"pair_id": name, "group_id": f"g{group}", "context_audio": heard,
                              "response_audio": f"{name}.wav", "system_id": f"s{system}",
                              "situation": "A parent is late." if group % 3 == 0 else None})  # fmt: skip
                for rater in range(3):
                    score = float(np.clip(round(1 + 4 * loudness[system] + rng.normal(0, 0.5)), 1, 5))
                    ratings.append((name, f"r{rater}", SCALE.name, score))
            better = int(loudness.argmax())
            ids = [f"p{group:02d}_{context}{system}" for system in (better, 1 - better)]
            preferences += [(*ids, f"r{rater}", SCALE.name, 1.0) for rater in range(2)]
    card = DatasetCard("tones", (SCALE,), "made for a test", "CC0-1.0", synthetic=True)
    write_dataset(
        folder,
        card,
        pd.DataFrame(pairs),
        pd.DataFrame(ratings, columns=["pair_id", "rater_id", "dimension", "score"]),
        pd.DataFrame(preferences, columns=["chosen_id", "rejected_id", "rater_id", "dimension", "strength"]),
    )
    split_dataset(folder, fractions={"train": 2 / 3, "validation": 0.25, "test": 1 / 12}, seed=0)
    return folder


# ---------------------------------------------------------------- a recipe


def command_of(name: str, data: Path, run: Path) -> list[str]:
    """Words after `empathy-judge`, as the first line of a recipe has them; data and run lie elsewhere."""
    words = shlex.split(
        (ROOT / "configs" / f"{name}.yaml").read_text().splitlines()[0].removeprefix("# empathy-judge ")
    )
    for option, folder in (("--data.path", data), ("--run", run)):
        words[words.index(option) + 1] = str(folder)
    return words


def family_of(backbone: str) -> str:
    """The names of its recipes begin with that of the family."""
    recipes = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "configs").glob("*.yaml")}
    recipe = next(name for name, recipe in recipes.items() if recipe.get("judge", {}).get("backbone") == backbone)
    return max((family for family in FAMILIES if recipe.startswith(family)), key=len)


def killed(start: list[str], until: Path, folder: Path) -> None:
    """Run a command in `folder` until a file is there, then kill all of its processes."""
    log = folder / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            start, cwd=folder, env=ENVIRONMENT, stdout=output, stderr=output, start_new_session=True
        )
        try:
            deadline = time.monotonic() + PATIENCE
            while not until.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            assert until.exists(), log.read_text()[-3000:]
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == -signal.SIGKILL, "ended before it was killed"


def finished(start: list[str], folder: Path) -> None:
    """Run a command in `folder` to its end."""
    done = subprocess.run(
        start, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def exported_scores(run: Path, rated: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[float, float]:
    """Score of a pair of the test split by the exported judge and by the run's."""
    assert main(["export", str(run), "--out", str(folder / "judge")]) == 0
    pair = PairDataset.load(rated).subset(["test"]).pairs[0]
    clips = [str(rated / f"{name}.wav") for name in ("c" + pair.pair_id[1:-1], pair.pair_id)]
    capsys.readouterr()
    situation = [] if pair.situation is None else ["--situation", pair.situation]
    exported = json.loads(output_of(capsys, "score", folder / "judge", *clips, *situation, "--json"))
    (_, own), *_ = Predictor(load_any(run).judge, 1).predict([pair])
    return exported[SCALE.name], float(own.score[0])


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_survives_a_kill_and_becomes_a_judge(name, rated, on_the_hub, table, tmp_path, capsys):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"configs/{name}.yaml needs {NEEDS[name]}, which is not installed")
    begun = time.monotonic()
    run = tmp_path / "run"
    words = command_of(name, rated, run)
    config = RecipeParser().parse(words[1:])
    if config.trainer.accelerator == "gpu":
        words += ["--trainer.accelerator", "cpu"]
    if config.trainer.devices == "auto":
        words += ["--trainer.devices", "2"]
    processes = 2 if config.trainer.devices == "auto" else config.trainer.devices
    if config.judge.backbone != "nano":
        on_the_hub(family_of(config.judge.backbone), config.judge.backbone, config.judge.revision)
    start = COMMAND
    if NEEDS.get(name) == "deepspeed":
        (tmp_path / "deepspeed_on_cpu.py").write_text(DEEPSPEED)
        start = [sys.executable, str(tmp_path / "deepspeed_on_cpu.py")]
    trained = run / "lora" if config.method == "auto" else run  # behind the probe, which has no steps
    killed([*start, *words], trained / CHECKPOINTS / LAST, tmp_path)
    kept = read_checkpoint(trained / CHECKPOINTS / LAST)
    epoch, step = position_of(kept).epoch, kept["global_step"]
    finished([*start, *words, "--resume", "true"], tmp_path)
    last, best = read_checkpoint(trained / CHECKPOINTS / LAST), read_checkpoint(run / CHECKPOINTS / BEST)
    steps, epochs = last["global_step"], last["epoch"] + 1
    assert steps >= 4
    assert 0 < step < steps
    assert epochs > epoch >= 1
    assert math.isfinite(best["agreement"])
    assert all(group["fused"] for group in last["optimizer_states"][0]["param_groups"])  # as on a GPU
    # what the second process logged begins where the first one was killed
    for log in trained.glob("logs/csv/version_1/metrics.csv"):
        assert pd.read_csv(log)["step"].min() >= step - 1
    assert (run / "calibration.json").is_file()
    exported, own = exported_scores(run, rated, tmp_path, capsys)
    assert SCALE.minimum <= exported <= SCALE.maximum
    # one pair alone or with the beginnings it shares: the same sums in another order
    bound = 1e-5 if config.judge.dtype == "float32" else 2**-8
    assert exported == pytest.approx(own, abs=bound * (SCALE.maximum - SCALE.minimum))
    ran = f"{config.judge.backbone}, {processes} x CPU, {config.trainer.precision or '32-true'}"
    seconds = time.monotonic() - begun
    table(name, ran, steps, epochs, step, score=exported, difference=abs(exported - own), seconds=seconds)
