"""Two processes (gloo, on the CPU) give what one gives; what those of one machine share, and what reading data takes
along to a process of its own."""

from __future__ import annotations

import gc
import json
import pickle
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from empathy_judge.data_modules.datamodule import PairDataModule, _start_method
from empathy_judge.data_modules.settings import DataSettings
from empathy_judge.models.backbones import NANO_FOLDER
from empathy_judge.models.lora import count_parameters
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.train.collate import Batch
from empathy_judge.train.run import train
from lightning.pytorch.callbacks import LambdaCallback
from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration

from .conftest import LAST_FILE, OF_CLIPS, metrics, under_torchrun

TWICE = {"trainer__devices": 2, "trainer__strategy": "ddp"}


@pytest.mark.slow
def test_two_processes_train_and_validate_like_one(train_arguments, tmp_path):
    """12 pairs in batches of 4, or of twice 2: the same sums. 9 validation pairs: an odd number, 5 and 4 of them.

    With a fully fine-tuned part, and layers computed again: reentrant checkpointing would break under DDP (peft#313).
    With losses that compare the items of a batch: each process must see those of the other.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    common = {
        "trainer__max_epochs": 2, "optimizer__head_learning_rate": 0.001, "optimizer__learning_rate": 0.0005,
        "judge__lora__full_parts": "[projector]", "gradient_checkpointing": "true",
        "objective__losses": "{mse: 1, ccc: 0.5, soft_spearman: 0.2}",
    }  # fmt: skip
    train(train_arguments(one, **common))
    words = train_arguments(two, **TWICE, data__batch_size=2, data__eval_batch_size=2, **common)
    command = [sys.executable, "-m", "empathy_judge.cli", "train", *words]  # Lightning starts the second process
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("trained on 24 pairs in ") == 1  # by one of them, of both
    for name in ("val_agreement", "val_spearman/empathy", "val_spearman/warmth"):
        alone, together = (metrics(run)[name].dropna().tolist() for run in (one, two))
        assert len(alone) == 2
        assert together == pytest.approx(alone, abs=1e-9)
    assert (two / "calibration.json").is_file()  # written by one of the processes
    first, second = (read_checkpoint(run / LAST_FILE)["state_dict"] for run in (one, two))
    assert first.keys() == second.keys()
    assert "judge.network.multi_modal_projector.linear.weight" in first
    # Adam divides by the size of a gradient, and so makes much of the rounding of one that is almost zero
    moved = sum(float((value - value.mean()).abs().mean()) for value in first.values())
    apart = sum(float((first[key] - second[key]).abs().mean()) for key in first)
    assert apart < 1e-3 * moved
    assert (first["judge.head.linear.weight"] - second["judge.head.linear.weight"]).abs().max() < 1e-4


def run_twice(folder: Path, program: str, words: list[str], **variables: str) -> list[Any]:
    """What two processes of `train` wrote to RANK.json."""
    (folder / "words.json").write_text(json.dumps(words))
    done = under_torchrun(folder, program, folder, **variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


# Each process says what it computed, and goes on with what it said it would
RUN = """
import json, os, sys, tempfile
from pathlib import Path
from torch import distributed as dist
from empathy_judge.data_modules import near_duplicates as near_identical
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.train.run import train
from empathy_judge.train.module import JudgeModule

out = Path(sys.argv[1])
words = json.loads((out / "words.json").read_text())
rank = int(os.environ["LOCAL_RANK"])
counts = {"compared": 0, "encoded": 0, "gathers": 0, "steps": 0, "files": 0}
read, encode, gather = near_identical.fingerprint, EmpathyJudge._encoded, dist.all_gather
step = JudgeModule.training_step

def compare(samples):
    counts["compared"] += 1
    return read(samples)

def encoded(judge, clips):
    counts["encoded"] += len(clips.lengths)
    return encode(judge, clips)

def all_gather(*args, **options):
    counts["gathers"] += 1
    return gather(*args, **options)

def training_step(module, *args):
    counts["files"] = len(list(Path(tempfile.gettempdir()).glob("empathy-judge-cache-*/??/*")))
    before = counts["gathers"]
    loss = step(module, *args)
    counts["steps"] += 1
    counts["in steps"] = counts.get("in steps", 0) + counts["gathers"] - before
    return loss

near_identical.fingerprint, EmpathyJudge._encoded, dist.all_gather = compare, encoded, all_gather
JudgeModule.training_step = training_step
train(words)
(out / f"{rank}.json").write_text(json.dumps(counts))
"""


@pytest.mark.long
def test_two_processes_compute_once_what_they_share(train_arguments, dataset_folder, tmp_path):
    """One feature cache, one comparison of all clips although the data is on a read-only folder, one collective for
    what the loss compares, and no process that ends long before the other."""
    (tmp_path / "temporary").mkdir()
    program = (
        "import os\naccess = os.access\n"  # root may write anywhere
        f"os.access = lambda path, mode, **o: str(path) != {str(dataset_folder)!r} and access(path, mode, **o)\n" + RUN
    )
    kept = dataset_folder / "near_identical.json"
    before = kept.read_bytes()
    kept.unlink()
    words = train_arguments(
        tmp_path / "run", **TWICE, trainer__max_epochs=2, trainer__logger="false", data__batch_size=2,
        cache__what="audio", judge__head="gaussian", objective__losses="{gaussian_nll: 1, ccc: 1}",
    )  # fmt: skip
    variables = {"TMPDIR": str(tmp_path / "temporary"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    try:
        first, second = run_twice(tmp_path, program, words, **variables)
        assert not kept.exists()
    finally:
        kept.write_bytes(before)
    assert sorted([first["compared"], second["compared"]]) == [0, 32]  # by the one that came first
    assert len(list((tmp_path / "cache" / "empathy-judge").glob("*near_identical.json"))) == 1
    # 21 responses of training and validation with their contexts, each in one of the two
    assert first["encoded"] + second["encoded"] == first["files"] == second["files"]
    assert min(first["encoded"], second["encoded"]) > 10
    assert list((tmp_path / "temporary").glob("empathy-judge-cache-*")) == []
    for counts in (first, second):
        assert counts["steps"] == 6
        assert counts["in steps"] == 6
    assert (tmp_path / "run" / "calibration.json").is_file()


# Each process has memory for another number of tokens, and says what it read of two epochs
LIMITED = """
import json, os, sys
from pathlib import Path
import torch
from empathy_judge.models.backbones.audio_language_model import AudioLanguageModel
from empathy_judge.train import publishing, run
from empathy_judge.train.module import JudgeModule

out, rank = Path(sys.argv[1]), int(os.environ["LOCAL_RANK"])
read, states, step = [], AudioLanguageModel.hidden_states, JudgeModule.training_step
publishing.calibrate = lambda *_: None

def hidden_states(backbone, inputs, read_at=None):
    if inputs.input_ids.numel() > (700, 250)[rank]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    return states(backbone, inputs, read_at)

def training_step(module, batch, batch_idx):
    read.append([module.current_epoch, batch.indices.tolist(), module.data.settings.batch_tokens])
    return step(module, batch, batch_idx)

AudioLanguageModel.hidden_states, JudgeModule.training_step = hidden_states, training_step
run.train(json.loads((out / "words.json").read_text()))
(out / f"{rank}.json").write_text(json.dumps(read))
"""


@pytest.mark.long
def test_processes_agree_on_batches_that_the_least_memory_has_room_for(train_arguments, tmp_path):
    options = {**TWICE, "trainer__max_epochs": 2, "trainer__logger": "false", "data__batch_tokens": "auto"}
    words = train_arguments(tmp_path / "run", **options)
    first, second = run_twice(tmp_path, LIMITED, words)
    assert len(first) == len(second) > 2
    (found,) = {tokens for _, _, tokens in first + second}
    assert 180 < found <= 250
    for epoch in range(2):
        assert sorted(item for when, items, _ in first + second if when == epoch for item in items) == list(range(12))


# Anonymous memory: what a process holds itself, and not as pages of the files, which all processes share
MEMORY = """
import json, sys, threading, time
from pathlib import Path
from torch import distributed as dist
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.models.judge import EmpathyJudge, JudgeSettings
from empathy_judge.models.weight_files import fingerprints
from empathy_judge.train.strategies import shard

backbone, dtype, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def held():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

def watch():
    while not done:
        most.append(held())
        time.sleep(0.02)

dist.init_process_group("gloo")
mesh, rank = dist.init_device_mesh("cpu", (2,)), dist.get_rank()
small = JudgeSettings(backbone="nano")
EmpathyJudge(small, [Dimension("any", 1, 5, 1)])  # imports
start, most, done = held(), [0], []
watcher = threading.Thread(target=watch)
watcher.start()
judge = EmpathyJudge(JudgeSettings(backbone=backbone, dtype=dtype), [Dimension("any", 1, 5, 1)], deferred=True)
fingerprints(judge)
loaded = max(most) - start
shard(judge, (), mesh)
most.append(held())
done.append(True)
watcher.join()
(folder / f"{rank}.json").write_text(json.dumps({"loaded": loaded, "most": max(most) - start}))
dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").is_file(), reason="memory is read from Linux")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_process_holds_its_share_of_the_weights(dtype, tmp_path):
    """Of 0.94 GB in five files, loaded by two processes: nothing of its own, then half of it, converted or not."""
    backbone = tmp_path / "backbone"
    shutil.copytree(NANO_FOLDER, backbone, ignore=shutil.ignore_patterns("*.safetensors*"))
    config: Any = Qwen2AudioConfig.from_pretrained(NANO_FOLDER)
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 28, "head_dim": 128}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "layer_types": ["full_attention"] * 28}
    config.text_config = type(config.text_config)(**{**config.text_config.to_dict(), **sizes, **heads})
    model = Qwen2AudioForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    weights = sum(weight.nbytes for weight in model.parameters())
    assert weights > 0.9e9
    model.save_pretrained(backbone, max_shard_size="200MB")
    del model
    assert len(list(backbone.glob("*.safetensors"))) == 5
    # as it does with the larger weights of real backbones, glibc shall give back at once what is freed
    done = under_torchrun(tmp_path, MEMORY, backbone, dtype, tmp_path, MALLOC_MMAP_THRESHOLD_="1000000")
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["loaded"] < 100e6
        held = weights if dtype == "bfloat16" else 2 * weights
        assert 0.4 * held < found["most"] < 0.5 * held + 200e6


# The second process sees the folder of the run as it was before the first checkpoint
BEHIND = """
import json, os, sys
from pathlib import Path
from empathy_judge.train import run, run_folder
from empathy_judge.models.probe import Probe

def fit(probe):
    raise ValueError("no regression today")

words, rank = json.loads(Path(sys.argv[1], "words.json").read_text()), int(os.environ["RANK"])
Probe.fit = fit
run.train([*words, "--trainer.max_epochs", "1"])
if rank == 1:
    run_folder.find_resumable = lambda folder: (None, [])
try:
    run.train([*words, "--resume", "auto"])
except SystemExit as end:
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(end.code))
"""


@pytest.mark.long
def test_processes_that_find_other_checkpoints_stop_and_one_says_what_all_know(train_arguments, tmp_path):
    """With 1: after 2 no launcher would start them again."""
    run = tmp_path / "run"
    words = train_arguments(run, **TWICE, **OF_CLIPS, trainer__max_epochs=2, trainer__logger="false")
    (tmp_path / "words.json").write_text(json.dumps(words))
    done = under_torchrun(tmp_path, BEHIND, tmp_path, timeout=180)  # where nothing compares, they wait for each other
    assert done.returncode == 0, done.stderr[-3000:]
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == [1, 1]
    assert done.stderr.count(f"error: {run}: the processes found different checkpoints to go on from; expected") == 1
    assert done.stderr.count("the head starts at the mean rating: no regression today\n") == 1
    assert read_checkpoint(run / LAST_FILE)["epoch"] == 0


def assert_equal(one: Batch, other: Batch) -> None:
    assert torch.equal(one.indices, other.indices)
    for mine, theirs in ((one.inputs, other.inputs), (one.labels, other.labels)):
        for name, value in vars(mine).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, getattr(theirs, name)), name
    if one.inputs.clips is not None:
        assert torch.equal(one.inputs.clips.features, other.inputs.clips.features)


@pytest.mark.parametrize(
    "options", [{"cache__what": "none"}, {"cache__what": "layers", "judge__lora__layers": "[2, 4]"}]
)
def test_batches_are_made_without_weights_and_trainer_and_the_judge_is_freed(options, train_arguments, tmp_path):
    """As a process started by forkserver makes them, from what was pickled."""
    judges: list[weakref.ref[Any]] = []

    def compare(trainer: Any, module: Any) -> None:
        judges.append(weakref.ref(module.judge))
        assert count_parameters(module.judge.backbone, {})["language_model"].parameters > 1_000_000
        data = pickle.dumps(module.collate)
        assert len(data) < 20_000
        items = [module.data.items[0, number] for number in range(3)]
        assert_equal(module.collate(items), pickle.loads(data)(items))

    folder = {"cache__folder": str(tmp_path / "kept")} if options["cache__what"] != "none" else {}
    arguments = {"trainer__max_epochs": 1, "trainer__logger": "false", **options, **folder}
    train(train_arguments(tmp_path / "run", **arguments), watching=[LambdaCallback(on_train_start=compare)])
    gc.collect()
    assert [judge() for judge in judges] == [None]


@pytest.mark.parametrize(
    ("forks_safely", "script", "method"),
    [
        ((3, 0), None, "fork"),
        ((4, 0), None, "forkserver"),
        ((4, 0), 'import empathy_judge\nif __name__ == "__main__":\n    empathy_judge.train()\n', "forkserver"),
        ((4, 0), "import empathy_judge\nempathy_judge.train()\n", "fork"),
        ((4, 0), "", "fork"),  # is not there any more
    ],
)
def test_only_a_program_that_may_be_imported_again_starts_processes_by_forkserver(
    forks_safely, script, method, tmp_path, monkeypatch
):
    monkeypatch.setattr("empathy_judge.data_modules.datamodule._FORKS_SAFELY", forks_safely)
    file = tmp_path / "script.py"
    if script:
        file.write_text(script)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None if script is None else str(file), raising=False)
    assert _start_method() == method


@pytest.mark.parametrize(("device", "pins"), [("cpu", False), ("cuda:1", True), ("mps:0", False)])
def test_memory_is_pinned_only_where_a_gpu_trains(device, pins, dataset_folder, monkeypatch):
    """A run on the CPU leaves alone a GPU that is there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    data = PairDataModule(DataSettings(str(dataset_folder)))
    data.setup("fit")
    assert not data.val_dataloader().pin_memory
    where = SimpleNamespace(root_device=torch.device(device))
    trainer: Any = SimpleNamespace(strategy=where, global_rank=0, world_size=1, lightning_module=None)
    data.trainer = trainer
    assert data.train_dataloader().pin_memory == pins
