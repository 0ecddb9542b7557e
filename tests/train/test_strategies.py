"""Two processes give the scores of one; sharded weights give its gradients, with dtypes that the strategies take."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.artifact import load_judge
from empathy_judge.models.scoring import PairScorer

PROGRAM = """
import sys, torch, torch.distributed as dist
from pathlib import Path
from torch.distributed.fsdp import fully_shard
from empathy_judge.data_modules.schema import Dimension, PairDataset
from empathy_judge.models.artifact import load_judge
from empathy_judge.models.judge import EmpathyJudge, JudgeSettings
from empathy_judge.models.lora import LoraSettings
from empathy_judge.models.recompute import recompute_activations
from empathy_judge.models.scoring import PairScorer

backbone, judge_folder, data, out, store, rank = *sys.argv[1:6], int(sys.argv[6])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
mesh = dist.init_device_mesh("cpu", (2,))
every = PairDataset.load(data).pairs
pairs = every[:4]


def gradients(dtype, trained_dtype, sharded):
    torch.manual_seed(0)
    lora = LoraSettings(parts=["language_model", "audio_tower"], rank=4, full=["projector"], dtype=trained_dtype)
    judge = EmpathyJudge(JudgeSettings(backbone=backbone, dtype=dtype, lora=lora), [Dimension("any", 1, 5, 1)])
    with torch.no_grad():
        for name, weight in judge.trainable().items():
            weight.add_(0.02 * torch.randn(weight.shape).to(weight.dtype))
    recompute_activations(judge.network)
    if sharded:
        for part in judge.backbone.parts.values():
            for layer in judge.network.get_submodule(part.layers) if part.layers else ():
                fully_shard(layer, mesh=mesh)
    mine = pairs[2 * rank : 2 * rank + 2] if sharded else pairs
    judge(judge.build_inputs(mine)).mean().backward()
    found = {}
    for name, weight in judge.trainable().items():
        if sharded and hasattr(weight.grad, "full_tensor"):
            found[name] = weight.grad.full_tensor().float()
        else:
            found[name] = weight.grad.float().clone()
            if sharded:
                dist.all_reduce(found[name])
                found[name] /= 2
    return found


results = {"plain": gradients("float32", "float32", False), "sharded": gradients("float32", "float32", True)}
results["half"] = gradients("bfloat16", "backbone", True)
results["mixed"] = gradients("bfloat16", "float32", True)
# each process scores every second pair, in batches of a size of its own
scorer = PairScorer(load_judge(Path(judge_folder)).judge, 3 + rank)
parts = [None, None]
dist.all_gather_object(parts, {pair.pair_id: found.score for pair, found in scorer.score(every[rank::2])})
results["scores"] = parts[0] | parts[1]
if rank == 0:
    torch.save(results, out)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(backbone_folder, judge_folder, dataset_folder, tmp_path_factory) -> dict[str, dict[str, torch.Tensor]]:
    """What two processes compute: gradients by kind, and scores by pair."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "program.py").write_text(PROGRAM)
    out, store = folder / "results.pt", folder / "store"
    words = [sys.executable, folder / "program.py", backbone_folder, judge_folder, dataset_folder, out, store]
    processes = [subprocess.Popen([*map(str, words), str(rank)]) for rank in range(2)]
    try:
        assert [process.wait(240) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    return torch.load(out, weights_only=True)


@pytest.mark.slow
def test_shards_give_the_gradients_of_one_process(found):
    assert found["plain"].keys() == found["sharded"].keys() == found["half"].keys()
    for name, expected in found["plain"].items():
        assert expected.any(), name
        assert (found["sharded"][name] - expected).abs().max() <= 1e-4 * expected.abs().max(), name
        for kind in ("half", "mixed"):  # of one dtype, as FSDP1 and ZeRO-3 need it, and of two
            likeness = torch.cosine_similarity(found[kind][name].flatten(), expected.flatten(), dim=0)
            assert likeness > 0.95, (kind, name)


@pytest.mark.slow
def test_two_processes_score_like_one(found, judge_folder, dataset_folder):
    """Each process scores every second pair; put together, item by item, they are what one process gives."""
    scores = found["scores"]
    scorer = PairScorer(load_judge(judge_folder).judge, 8)
    expected = {pair.pair_id: one.score for pair, one in scorer.score(PairDataset.load(dataset_folder).pairs)}
    assert scores.keys() == expected.keys()
    assert max(float((scores[name] - expected[name]).abs().max()) for name in scores) <= 1e-5
    assert torch.stack(list(scores.values())).std(0).min() > 1e-3
