"""What the programs in `benchmarks/` count with: the baseline is the same model, turns and rates are what they say."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from empathy_judge.audio.decode import decode
from empathy_judge.audio.functionals import DELIVERY
from empathy_judge.data_modules.schema import Dimension, Pair, PairDataset
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.models.settings import JudgeSettings

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TOY = """
import torch
from timing import Turns

def run(turns: Turns, pairs: int) -> None:
    turns.wait()
    while True:
        turns.batch_came(pairs, torch.tensor([[1, 1, 1], [1, 0, 0]]))
        torch.ones(2, 3) @ torch.ones(3, 5)
        turns.step_done()

def fail(turns: Turns) -> None:
    raise ValueError("no such clip")
"""


@pytest.fixture
def programs(monkeypatch) -> Callable[[str], Any]:
    """Imports a program by its name, as it imports its neighbours."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return __import__


@pytest.fixture
def toy(tmp_path, programs, monkeypatch) -> Any:
    """Two ways of doing nothing much."""
    (tmp_path / "toy_ways.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    return programs("toy_ways")


class TestMaterials:
    def test_lengths_splits_and_shared_contexts_are_as_wanted(self, tmp_path, programs):
        made = programs("materials")
        made.write_conversations(tmp_path, 12, validation=4, seconds=(0.2, 0.8))
        dataset = PairDataset.load(tmp_path)
        assert len(dataset.subset("train").pairs) == 12
        assert len(dataset.subset("validation").pairs) == 4
        assert len({pair.context[0].audio for pair in dataset.pairs}) == 4
        seconds = [len(decode(pair.response, 16_000)) / 16_000 for pair in dataset.pairs]
        assert min(seconds) >= 0.199
        assert max(seconds) <= 0.8
        assert len(set(seconds)) > 10


class TestCounter:
    def test_attention_forward_and_backward(self, programs):
        query, key, value = (torch.randn(2, 4, 10, 8, requires_grad=True) for _ in range(3))
        with programs("timing").flop_counter() as counter:
            torch.nn.functional.scaled_dot_product_attention(query, key, value).sum().backward()
        forward = 2 * 2 * (2 * 4 * 10 * 10 * 8)  # two products
        # backward: scores anew, and two products for each of the two
        assert counter.get_total_flops() == forward + forward * 5 / 2


class TestTurns:
    def test_a_way_makes_as_many_steps_as_it_is_told(self, tmp_path, toy, programs):
        turns = programs("timing")
        player = turns.Player(toy.run, 8, log=tmp_path / "log")
        assert player.play(turns.Order(3, warm_up=2)).pairs == 24
        turn = player.play(turns.Order(2, count=True))
        assert turn.flops == 2 * (2 * 2 * 3 * 5)
        assert (turn.pairs, turn.tokens, turn.real) == (16, 12, 8)
        assert 0 <= turn.waited <= turn.seconds
        assert turn.rate == 16 / turn.seconds
        assert turn.peak > 10**7
        player.stop()
        assert player.process.exitcode == 0

    def test_what_a_failed_way_said_is_told(self, tmp_path, toy, programs):
        with pytest.raises(RuntimeError, match="ValueError: no such clip"):
            programs("timing").Player(toy.fail, log=tmp_path / "log")


@pytest.mark.long
def test_the_program_of_the_cpu_finds_equal_scores(programs, monkeypatch, capsys):
    """Against the naive loop, and one context for many responses against calls of their own."""
    program = programs("cpu")
    monkeypatch.setattr(program, "SHARED", ((0.6, 0.4),))
    monkeypatch.setattr(sys, "argv", ["cpu.py", "score", "--rounds", "1", "--pairs", "4"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    assert "naive loop" in printed
    assert "one context, 16 responses" in printed


@pytest.mark.long
def test_the_baseline_is_the_same_model(tmp_path, programs):
    """Trained by `train` and by the naive loop on the same batches, losses and scores agree."""
    from empathy_judge.models.backbones import NANO_FOLDER

    made = programs("materials")
    made.write_conversations(tmp_path / "data", 12, validation=4, seconds=(0.4, 1.2))
    place = programs("naive").Place(str(NANO_FOLDER), str(tmp_path / "data"), (3, 4), 4, 0, "cpu")
    same = programs("naive").train_both(place, tmp_path / "run", steps=3)
    assert len(same.losses) == 3
    assert same.loss_difference < 1e-5
    assert same.score_difference < 1e-4
    assert same.moved > 0.01


def test_a_checkpoint_is_laid_out_as_on_the_hub(tmp_path, programs):
    """Weights have the hub's names, which transformers maps to its own."""
    from safetensors.torch import load_file
    from transformers import AutoProcessor, Qwen2AudioForConditionalGeneration

    programs("materials").write_checkpoint("qwen2_audio", "tiny", tmp_path)
    written = load_file(tmp_path / "model-00001.safetensors")
    assert {name.split(".")[0] for name in written} == {"audio_tower", "language_model", "multi_modal_projector"}
    found = Qwen2AudioForConditionalGeneration.from_pretrained(tmp_path).state_dict()
    assert len(found) == len(written)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        own = name.replace("model.", "model.language_model.")
        assert torch.equal(found[own], written[f"language_model.{name}"])
    assert "feature_extractor" not in json.loads((tmp_path / "processor_config.json").read_text())
    assert AutoProcessor.from_pretrained(tmp_path).feature_extractor.feature_size == 128


class TestGpu:
    """`gpu.py`, which measures on a GPU, in miniature on the CPU."""

    TINY = "--device cpu --shapes tiny --rounds 2 --steps 2 --warm-up 1 --pairs 16 --matrix 128 --workers 1 --minutes 9"

    def run(self, out: Path, *words: str) -> list[dict[str, Any]]:
        command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--out", str(out), *self.TINY.split(), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=580)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(path.name for path in out.parent.iterdir()) == [f"{out.name}.json", f"{out.name}.md"]
        return json.loads(out.with_suffix(".json").read_text())

    @pytest.mark.long
    def test_every_piece_runs(self, tmp_path):
        """What is measured on a GPU, without one; figures mean nothing."""
        rows = self.run(tmp_path / "gpu")
        done = {(row["backbone"], row["piece"], row["way"]) for row in rows}
        assert len(done) == len(rows) == 2 * (1 + 7 + 3)
        assert not [row for row in rows if "left_out" in row]
        steps = [row for row in rows if row["piece"] == "step"]
        assert all(row["flops_per_pair"] > 1e6 for row in steps)
        by_way = {row["way"]: row for row in steps if row["backbone"] == "qwen2_audio"}
        assert by_way["batches by tokens"]["padding"] < by_way["fixed batches"]["padding"]
        cached, heard = by_way["batches by tokens, audio cached"], by_way["batches by tokens"]
        assert cached["flops_per_pair"] < heard["flops_per_pair"]
        assert by_way["batches by tokens, contexts together"]["flops_per_pair"] < heard["flops_per_pair"]

    def test_what_matters_most_is_measured_first(self, programs, tmp_path):
        first = [piece[:2] for piece in programs("gpu").pieces(argparse.Namespace())]
        assert first[:3] == [("step", "fixed batches"), ("step", "the recipe as it is"), ("score", "")]

    def test_a_run_goes_on_with_what_is_missing(self, tmp_path, programs, monkeypatch):
        """A process killed after its first measurement; what failed is measured again."""
        gpu, called, words = programs("gpu"), list[str](), ["gpu.py", "--device", "cpu", "--out", str(tmp_path / "gpu")]

        def measure(name: str, result: Callable[[], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
            return lambda _: called.append(name) or result()

        def run(*further: str, failing: bool = False) -> list[dict[str, Any]]:
            called.clear()
            second = (lambda: 1 / 0) if failing else lambda: {"figure": 2}
            made = [("step", "a", measure("a", lambda: {"figure": 1})), ("step", "b", measure("b", second))]
            monkeypatch.setattr(gpu, "pieces", lambda _: made)
            monkeypatch.setattr(gpu, "load", lambda _: called.append("load") or {"bench": "a judge"})
            monkeypatch.setattr(sys, "argv", [*words, "--backbones", "qwen2_audio", *further])
            here = ["--here", str(tmp_path)]
            monkeypatch.setattr(subprocess, "run", lambda *_, **__: sys.argv.extend(here) or gpu.main())
            with pytest.raises(SystemExit) as ended:
                gpu.main()
            assert bool(ended.value.code) == failing
            return gpu.read(tmp_path / "gpu")

        assert "failed" in run(failing=True)[-1]
        assert called == ["load", "a", "b"]
        for again, expected in (["load", "b"], [2]), ([], [2]):
            rows = run("--go-on")
            assert called == again
            assert [row.get("figure") for row in rows if row["piece"] == "step"] == [1, *expected]
            assert sum(row["piece"] == "load" for row in rows) == 1
        run()
        assert called == ["load", "a", "b"]

    @pytest.mark.parametrize(("device", "seen"), [("cpu", ""), ("cuda", "1")])
    def test_on_the_cpu_no_gpu_is_seen(self, device, seen, tmp_path, programs, monkeypatch):
        found: list[str] = []
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", device, "--out", str(tmp_path / "gpu")])
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: found.append(os.environ["CUDA_VISIBLE_DEVICES"]))
        with pytest.raises(SystemExit, match="False"):
            programs("gpu").main()
        assert found == [seen, seen]

    @pytest.mark.long
    def test_a_process_is_killed_when_its_time_is_over(self, tmp_path):
        rows = self.run(tmp_path / "gpu", "--backbones", "qwen2_audio", "--minutes", "-1")
        assert [row["left_out"] for row in rows] == ["killed when its time was over"]

    @pytest.mark.long
    def test_every_lever_is_measured(self, tmp_path):
        """In miniature; what this build does not have is named."""
        command = [*self.TINY.split(), "--levers", "--backbones", "qwen2_audio", "--rounds", "1", "--steps", "1"]
        done = subprocess.run(
            [sys.executable, str(BENCHMARKS / "gpu.py"), "--out", str(tmp_path / "gpu"), *command],
            capture_output=True, text=True, timeout=580,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        rows = json.loads((tmp_path / "gpu.json").read_text())
        assert [row["piece"] for row in rows[:4]] == ["machine", "layer", "load", "profile"]
        scored = [row for row in rows if row["piece"] == "levers" and "left_out" not in row]
        # in bfloat16, with adapters that change the states: each lever rounds in another place
        assert scored[0]["largest_difference"] == 0
        assert all(0 < row["largest_difference"] < 0.1 for row in scored[1:])
        assert not [row for row in rows if "not in this build" not in row.get("left_out", "not in this build")]
        assert (tmp_path / "gpu_trace.json.gz").stat().st_size > 1_000
        assert "aten::" in (tmp_path / "gpu_kernels.txt").read_text()

    def test_what_a_layer_costs_is_measured_before_a_judge_is_loaded(self, programs):
        levers = programs("gpu_levers")
        options = argparse.Namespace(device="cpu", shapes="tiny", rounds=1, matrix=64, out=Path("unused"))
        planned = [(piece, way) for piece, way, _, seconds in levers.plan(options, lambda _: {}) if seconds > 0]
        assert planned[:5] == [
            ("machine", ""), ("layer", ""), ("load", ""), ("profile", "as it is"), ("levers", "all levers off")
        ]  # fmt: skip
        assert len(planned) == len(set(planned)) == 4 + 1 + len(levers.LEVERS) + 1 + len(levers.TRAINED)
        found = levers.layer(options)
        assert min(found["milliseconds"].values()) > 0
        assert ("remark" in found) == (found["float32_adapter_share"] < 0.2)
        rates = levers.machine(options)
        assert 1e-9 < rates["launch_seconds"] < 1
        assert rates["matrix_rate"] > 1e6

    def test_a_lever_that_is_not_there_and_an_item_that_is_late_are_named(self, programs):
        levers = programs("gpu_levers")
        with (
            pytest.raises(levers.Absent, match="magic: not in this build"),
            levers.switched_off([("magic", {"os.x": 1})]),
        ):
            pass
        with pytest.raises(levers.TooLate, match="not done after 0 s"), levers.deadline(0.05):
            time.sleep(20)
        with levers.deadline(20):
            pass
        with levers.switched_off([("cores", {"os.cpu_count": lambda: -1})]):
            assert os.cpu_count() == -1
        assert os.cpu_count() != -1

    @pytest.mark.parametrize("family", ["qwen2_audio", "qwen2_5_omni"])
    def test_operations_by_formula_are_those_that_torch_counts(self, family, tmp_path, programs, make_tone):
        from empathy_judge.audio.decode import Clip
        from empathy_judge.data_modules.schema import Dimension, Pair, Turn
        from empathy_judge.models.judge import EmpathyJudge
        from empathy_judge.models.settings import JudgeSettings, LoraSettings

        programs("materials").write_checkpoint(family, "tiny", tmp_path)
        judge = EmpathyJudge(JudgeSettings(str(tmp_path), lora=LoraSettings(rank=4)), [Dimension("any", 1, 5, 1)])
        clips = [Clip(make_tone(seconds, 200, 0.3), 16_000) for seconds in (4.0, 4.0)]
        inputs = judge.build_inputs([Pair("any", clips[0], (Turn("user", clips[1]),))])
        with programs("timing").flop_counter() as counter:
            judge.backbone.hidden_states(inputs).sum().backward()  # on a GPU all tokens are read
        work = programs("gpu_step").work_of(judge, inputs)
        # the formula knows neither the head nor that the first layer's input needs no gradient
        assert sum(work) == pytest.approx(counter.get_total_flops(), rel=0.05)
        assert work.backward > work.forward > 8 * work.tower > 0

    @pytest.mark.parametrize("one_row", [False, True])
    def test_attention_is_counted_by_pair_however_rows_are_filled(self, one_row, programs, monkeypatch):
        from empathy_judge.models.backbones import packing

        monkeypatch.setattr(packing, "_WIDTHS", (2.0,))
        # three responses of 30, 20 and 40 tokens to a context of 50, two of 10 and 60 to one of 25
        lengths = [(0, 50, 30), (0, 50, 20), (0, 50, 40), (1, 25, 10), (1, 25, 60)]
        ids, mask, states = (torch.zeros(5, 90, dtype=torch.int64) for _ in range(3))
        response = torch.zeros(5, 90, dtype=torch.bool)
        for row, (context, before, after) in enumerate(lengths):
            ids[row, :before], ids[row, before : before + after] = 100 + context, row
            mask[row, : before + after], response[row, before : before + after] = 1, True
        packed = packing.pack(ids, mask, states - 1, response, 64, one_row)
        assert packed.input_ids.shape == ((1, 235) if one_row else (2, 140))
        expected = 50**2 + 25**2 + sum(after * (before + after) for _, before, after in lengths)
        assert programs("gpu_step").attended_by_tree(packed) == expected

    @pytest.mark.long
    def test_scores_in_bfloat16_are_no_further_from_float32_than_with_peft(
        self, tmp_path, programs, make_tone, monkeypatch
    ):
        """Of a model of 98 million parameters: with adapters in bfloat16, norms and rotary positions that are rounded
        once, against PEFT's adapters in float32 and the official norms and positions."""
        from empathy_judge.audio.decode import Clip
        from empathy_judge.data_modules.schema import Dimension, Pair, Turn
        from empathy_judge.models.backbones import layers
        from empathy_judge.models.judge import EmpathyJudge
        from empathy_judge.models.lora import AdaptedLinear
        from empathy_judge.models.settings import JudgeSettings, LoraSettings
        from peft.tuners.lora import Linear
        from transformers.models.gemma3n.modeling_gemma3n import apply_rotary_pos_emb

        def official(norm: layers.FusedNorm, states: torch.Tensor) -> torch.Tensor:
            exact = states.float() * torch.rsqrt(states.float().square().mean(-1, keepdim=True) + norm.eps)
            return norm.weight * exact.to(states.dtype)

        assert programs("materials").write_checkpoint("qwen2_audio", "mid", tmp_path) > 90e6
        found: dict[str, list[torch.Tensor]] = {"float32": [], "before": [], "now": []}
        tones = [Clip(make_tone(1 + 0.3 * n, 150 + 40 * n, 0.3), 16_000) for n in range(6)]
        pairs = [Pair(f"{n}", tones[n], (Turn("user", tones[(n + 1) % 6]),)) for n in range(6)]
        for seed in range(2):
            trained: dict[str, torch.Tensor] = {}
            for what, scores in found.items():
                torch.manual_seed(seed)
                settings = JudgeSettings(
                    str(tmp_path), lora=LoraSettings(rank=16), dtype="float32" if what == "float32" else "bfloat16"
                )
                judge = EmpathyJudge(settings, [Dimension("any", 1, 5, 1)]).eval()
                if not trained:
                    drawn = {name: own + 0.02 * torch.randn(own.shape) for name, own in judge.trained().items()}
                    trained = drawn
                judge.use(trained)
                inputs = judge.build_inputs(pairs)
                with monkeypatch.context() as patch, torch.no_grad():
                    if what == "before":
                        patch.setattr(AdaptedLinear, "forward", Linear.forward)
                        patch.setattr(layers.FusedNorm, "forward", official)
                        patch.setattr(layers, "turned", apply_rotary_pos_emb)
                    if what == "now":
                        judge.merge()
                    scores.append(judge(inputs))
        exact, before, now = (torch.stack(scores) for scores in found.values())
        distances = [(scores - exact).square().mean().sqrt().item() for scores in (before, now)]
        assert distances[1] <= 1.1 * distances[0]
        assert distances[0] < 0.1 * exact.std()

    def test_waits_for_a_gpu_are_counted_by_line(self, programs, monkeypatch):
        modes: list[str] = []
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
        with programs("gpu_step").watched_syncs(torch.device("cuda")) as found:
            for _ in range(3):
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
        assert modes == ["warn", "default"]
        assert list(found.values()) == [3]
        assert next(iter(found)).startswith("test_benchmarks.py:")


class TestSmallData:
    @pytest.fixture
    def study(self, programs) -> tuple[Any, list[Pair]]:
        """200 pairs of 20 speakers: the truth is a curve in one measure of the signal, and all else is noise."""
        made = programs("frozen")
        rng = np.random.default_rng(0)
        pairs = [Pair(f"p{n}", Path(f"{n}.wav"), response_speaker=f"s{n % 20}") for n in range(200)]
        measures = rng.normal(size=(200, 3, len(DELIVERY))).astype(np.float32) * 0.1
        measures[:, 0, :20] = rng.normal(size=(200, 1))
        human = pd.DataFrame({"warmth": 3 + np.tanh(2 * measures[:, 0, 0]) + rng.normal(scale=0.1, size=200)})
        human.index = pd.Index([pair.pair_id for pair in pairs])
        dimension = Dimension("warmth", 1, 5, 0.5)
        card = SimpleNamespace(dimensions=(dimension,))
        dataset = SimpleNamespace(card=card, mean_scores=lambda: human)
        judge = SimpleNamespace(settings=JudgeSettings(backbone="nano"), dimensions=(dimension,), device="cpu")
        heard = made.Activations(
            {pair.pair_id: row for row, pair in enumerate(pairs)},
            torch.from_numpy(rng.normal(size=(200, 8)).astype(np.float32)),
            torch.from_numpy(rng.normal(size=(200, 3, 2, 2, 4)).astype(np.float32)),
            torch.from_numpy(measures),
        )
        return made.Study(dataset, judge, heard), pairs

    def test_who_reads_what_carries_the_truth_finds_it_and_who_does_not_is_at_chance(self, study, programs):
        (own, pairs), made = study, programs("small_data")
        human = own.human["warmth"].to_numpy()[150:]
        found = {
            method: spearman(own.predict(made.METHODS[method], pairs[:150], pairs[150:], 0, False)[0][:, 0], human)
            for method in made.METHODS
        }
        best = spearman(own.activations.functionals[150:, 0, 0].double().numpy(), human)  # people are noisy
        assert found["probe"] > best - 0.1  # most of its blocks are noise here, and all weigh the same
        assert found["measures of the signal"] > best - 0.05
        assert abs(found["language model, ridge"]) < 0.3
        assert abs(found["audio encoder, ridge"]) < 0.3
