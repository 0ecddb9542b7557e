"""Predictions of many pairs: ahead of a GPU, in order, and on which device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from empathy_judge.audio import decode as decode_module
from empathy_judge.audio.decode import Clip
from empathy_judge.core.errors import AudioError, UserError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import LoraSettings
from empathy_judge.scoring import clip_encoder
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.batches import Workers
from empathy_judge.scoring.ensemble import write_ensemble
from empathy_judge.scoring.predictor import Predictor, choose_device

from ..models.conftest import clip, saved


def ahead(judge: EmpathyJudge, size: int, **settings) -> Predictor:
    """As on a GPU: the host works ahead."""
    predictor = Predictor(judge, size, **settings)
    predictor.ahead = True
    return predictor


@pytest.fixture(scope="module")
def judge(make_judge) -> EmpathyJudge:
    return make_judge(LoraSettings(parts=["language_model"], rank=2))


@pytest.fixture(scope="module")
def asked() -> list[Pair | AudioError]:
    """Pairs of many lengths, some of one context, some equal; three cannot be used."""
    contexts = [clip(0.3 + 0.2 * number, number) for number in range(6)]
    pairs: list[Pair | AudioError] = [
        Pair(str(n), clip(0.2 + 0.05 * (n % 7), 10 + n % 23), (Turn("user", contexts[n % 6]),) if n % 5 else ())
        for n in range(26)
    ]
    pairs[3:3] = [AudioError("an error in place of a pair", "x"), Pair("missing", Path("no such.wav"))]
    pairs.append(Pair("long", clip(200.0)))
    return pairs


def said(scored) -> list[tuple[str | None, str | list[float]]]:
    """Ids, and scores or errors."""
    return [
        (
            one.pair and one.pair.pair_id,
            str(made) if isinstance(made := one.outcome, AudioError) else made.score.tolist(),
        )
        for one in scored
    ]


def check_same(found, expected) -> None:
    """Scores to 1e-5, all else exactly."""
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (_, one), (_, other) in zip(found, expected, strict=True):
        assert one == (other if isinstance(other, str) else pytest.approx(other, abs=1e-5))


@pytest.mark.parametrize("tokens", [None, 150])
def test_working_ahead_changes_no_result(judge, asked, tokens):
    expected = said(Predictor(judge, 4, windows=False, measures=True).run(asked))
    assert sum(isinstance(outcome, str) for _, outcome in expected) == 3
    predictor = ahead(judge, 4, windows=False, measures=True, tokens=tokens)
    check_same(said(predictor.run(asked)), expected)
    check_same(said(predictor.run(reversed(asked))), expected[::-1])  # with what it remembers
    facts = [one.facts for one in Predictor(judge, 4, windows=False, measures=True).run(asked)]
    assert [one.facts for one in predictor.run(asked)] == facts


def test_members_of_an_ensemble_hear_what_was_decoded_once(make_judge, asked, tmp_path, monkeypatch):
    """Each has an audio tower of its own."""
    lora = LoraSettings(parts=["audio_tower"], rank=2)
    members = [saved(make_judge(lora, seed), tmp_path / str(seed)) for seed in (1, 2)]
    write_ensemble(members, tmp_path / "both", False)
    both = load_any(tmp_path / "both").judge
    watched, good = (
        Watched(both, monkeypatch),
        [pair for pair in asked if isinstance(pair, Pair) and pair.pair_id.isdigit()],
    )
    check_same(said(ahead(both, 4, windows=False).run(asked)), said(Predictor(both, 4, windows=False).run(asked)))
    watched.happened.clear()
    assert len(list(Predictor(both, 64, measures=True).run(good))) == 26
    distinct = {source for pair in good for source in pair.clips}
    assert sum(what.startswith("decoded") for what in watched.happened) == len(distinct)


def _shapes(pair: Pair) -> list[tuple[int, ...]]:
    return [source.samples.shape for source in pair.clips if isinstance(source, Clip)]


@pytest.mark.parametrize("place", ["decoding", "measuring"])
def test_a_clip_that_the_memory_is_too_small_for_costs_its_own_pair_alone(place, judge, asked, monkeypatch):
    expected = said(Predictor(judge, 4, windows=False, measures=True).run(asked))
    module, name = (decode_module, "_check_amplitude") if place == "decoding" else (clip_encoder, "clip_facts")
    plain = getattr(module, name)

    def failing(samples, rate):
        if len(samples if place == "decoding" else samples[0]) == 4_000:  # of the pairs 10, 33 and others
            raise MemoryError
        return plain(samples, rate)

    monkeypatch.setattr(module, name, failing)
    found = said(ahead(judge, 4, windows=False, measures=True).run(asked))
    short = {pair.pair_id for pair in asked if isinstance(pair, Pair) and clip(0.25).samples.shape in _shapes(pair)}
    assert len(short) > 3
    for own, plain_one in zip(found, expected, strict=True):
        if own[0] in short:
            assert own[1] == "<4000 samples>: takes more memory than there is"
        else:
            check_same([own], [plain_one])


def test_a_pass_has_so_many_tokens_at_most(judge, asked, monkeypatch):
    """Beside a context whose other responses were in the pass before."""
    sizes, plain = [], EmpathyJudge.pooled

    def pooled(own, inputs):
        sizes.append(int((inputs.packed or inputs).attention_mask.sum()))
        return plain(own, inputs)

    monkeypatch.setattr(EmpathyJudge, "pooled", pooled)
    list(ahead(judge, 16, windows=False, tokens=100).run(asked))
    assert max(sizes) <= 150
    assert sum(sizes) / len(sizes) > 50
    sizes.clear()
    list(ahead(judge, 16, windows=False).run(asked))
    assert max(sizes) > 150


class Watched:
    """A judge whose passes wait for what a test wants to see meanwhile."""

    def __init__(self, judge: EmpathyJudge, monkeypatch: pytest.MonkeyPatch) -> None:
        self.happened: list[str] = []
        self.changed = threading.Condition()
        self.during: Callable[[int], bool] = lambda number: True  # that holds before a pass ends
        self.passes = 0
        build, pooled, decode = EmpathyJudge.build_inputs, EmpathyJudge.pooled, EmpathyJudge.decode

        def decoded(own, source, long_clips=None):
            samples = decode(own, source, long_clips)
            self.note(f"decoded {len(samples[0])}")
            return samples

        def built(own, pairs, audio=None):
            inputs = build(own, pairs, audio)
            self.note("built")
            return inputs

        def waiting(own, inputs):
            number, self.passes = self.passes, self.passes + 1
            with self.changed:
                assert self.changed.wait_for(lambda: self.during(number), 20), f"in series with pass {number}"
            result = pooled(own, inputs)
            self.note("passed")
            return result

        monkeypatch.setattr(EmpathyJudge, "build_inputs", built)
        monkeypatch.setattr(EmpathyJudge, "pooled", waiting)
        monkeypatch.setattr(EmpathyJudge, "decode", decoded)

    def note(self, what: str) -> None:
        with self.changed:
            self.happened.append(what)
            self.changed.notify_all()


def of_own_lengths(count: int) -> list[Pair]:
    """Pairs of which each has another number of samples, 4,000 and more."""
    return [Pair(str(n), replace(clip(1.0), samples=clip(1.0).samples[: 4_000 + n])) for n in range(count)]


def test_the_host_works_while_the_device_computes(judge, monkeypatch):
    """Windows of 2, 4 and 8 pairs, passes of 2: during each, the inputs of the next two passes are made, and during the
    first of a window the clips of the next window are decoded."""
    watched, pairs = Watched(judge, monkeypatch), of_own_lengths(14)
    last_passes, decoded_at = [0, 2, 6], {0: range(2, 6), 1: range(6, 14)}

    def holds(number: int) -> bool:
        last = next(last for last in last_passes if last >= number)
        built = watched.happened.count("built") >= min(number + 3, last + 1)
        return built and all(f"decoded {4_000 + n}" in watched.happened for n in decoded_at.get(number, ()))

    watched.during = holds
    found = list(ahead(judge, 2).predict(pairs))
    assert [pair.pair_id for pair, _ in found] == [str(n) for n in range(14)]
    assert watched.passes == 7
    serial = Predictor(judge, 2)
    watched.passes, watched.happened, watched.during = 0, [], lambda number: True
    list(serial.predict(pairs))
    passes = [what for what in watched.happened if not what.startswith("decoded")]
    assert passes == ["built", "passed"] * 7  # on a CPU nothing is made ahead


def test_scores_are_read_once_the_next_window_was_started(judge, monkeypatch):
    watched, taken = Watched(judge, monkeypatch), []

    def stream() -> Iterator[Pair]:
        for pair in of_own_lengths(100):
            taken.append(pair)
            yield pair

    found = ahead(judge, 2).predict(stream())
    next(found)
    assert (watched.passes, len(taken)) == (1 + 2, 2 + 4 + 8)  # of windows of 2 and 4 pairs; the third is read
    found.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith(("decoding", "inputs")) for name in names)


def test_a_clip_of_many_windows_is_decoded_once(judge, monkeypatch):
    """Also where it is in the next window before it was encoded in its first."""
    watched, context = Watched(judge, monkeypatch), (Turn("user", clip(0.3)),)
    pairs = [replace(pair, context=context) for pair in of_own_lengths(14)]
    assert len(list(ahead(judge, 2).predict(pairs))) == 14
    decoded = [what for what in watched.happened if what.startswith("decoded")]
    assert len(decoded) == len(set(decoded)) == 15


@pytest.mark.parametrize("place", ["questions", "pass"])
def test_results_of_the_windows_before_an_error_are_not_lost(place, judge, monkeypatch):
    """Windows of 2, 4 and 8 pairs; the error is in the third."""
    pairs, plain, seen, found = of_own_lengths(14), EmpathyJudge.pooled, [], []

    def pooled(own, inputs):
        seen.extend(inputs.input_ids)
        if place == "pass" and len(seen) > 6:
            raise RuntimeError("broken")
        return plain(own, inputs)

    def stream() -> Iterator[Pair]:
        yield from pairs[:8]
        if place == "questions":
            raise RuntimeError("broken")

    def collect() -> None:
        for pair, _ in ahead(judge, 2).predict(stream()):
            found.append(pair.pair_id)

    monkeypatch.setattr(EmpathyJudge, "pooled", pooled)
    with pytest.raises(RuntimeError, match="broken"):
        collect()
    assert found == [str(n) for n in range(6)]


def test_no_pair_is_lost_where_memory_runs_out_behind_what_was_made(judge, asked, monkeypatch):
    expected, plain = said(Predictor(judge, 4, windows=False).run(asked)), EmpathyJudge.pooled

    def pooled(own, inputs):
        if len(inputs.input_ids) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return plain(own, inputs)

    monkeypatch.setattr(EmpathyJudge, "pooled", pooled)
    check_same(said(ahead(judge, 16, windows=False).run(asked)), expected)


def test_calls_from_several_threads_take_turns(judge, asked):
    expected, predictor = said(Predictor(judge, 4, windows=False).run(asked)), ahead(judge, 4, windows=False)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: said(predictor.run(asked)), range(4)):
            check_same(found, expected)


class Clocks:
    """Seconds that pass in three places, counted and not waited for: threads that decode, threads that make inputs, and
    a device. Each does what it was asked, one after the other, and begins when it is free; `now` is what the thread
    that asks has waited for."""

    def __init__(self, **each: float) -> None:
        self.each, self.free, self.spent = each, dict.fromkeys(each, 0.0), dict.fromkeys(each, 0.0)
        self.now, self.sizes = 0.0, list[int]()  # of passes

    def use(self, place: str, count: int) -> float:
        """Let a place work on so many items; returns when it is done."""
        seconds = count * self.each[place]
        self.spent[place] += seconds
        self.free[place] = max(self.free[place], self.now) + seconds
        return self.free[place]

    def least(self) -> float:
        """The least time for passes of these sizes in this order, each of which begins when its inputs are made and the
        device has done the one before: some pass waits for nothing after its inputs, which are made one after the
        other (Johnson, 1954)."""
        made, total = 0, sum(self.sizes)
        times = []
        for size in self.sizes:
            times.append(self.each["inputs"] * (made + size) + self.each["device"] * (total - made))
            made += size
        return max(times)


@pytest.mark.parametrize(
    ("size", "each", "share"),
    [
        (128, (1, 4, 12), 1.05),
        (8, (1, 4, 12), 1.02),
        (8, (1, 6, 6), 1.03),
        (8, (1, 5, 2), 1.02),
        # one of four passes is on the way while the other place has nothing to do: 1 + 128 / 512
        (128, (1, 6, 6), 1.27),
    ],
    ids=["a GPU", "small passes", "host and device alike", "host", "large passes, alike"],
)
def test_time_is_that_of_the_slower_of_host_and_device(size, each, share, judge, monkeypatch):
    """256 pairs take at most 2 % longer than their passes must, where host and device work one after the other on each
    and both go on; in series they would take the sum."""
    clocks, sample = Clocks(**dict(zip(("decoding", "inputs", "device"), each, strict=True))), clip(0.3)
    (window,) = judge.encode_clips([judge.decode(sample)])[0]
    read, take, make, done = Workers.read, Workers.take, Workers.make, dict[Any, float]()

    def read_ahead(own, items, function):
        items = list(items)
        done.update((item, clocks.use("decoding", 1)) for item in items)
        return read(own, items, function)

    def taken(own, begun, item):
        clocks.now = max(clocks.now, done[item])
        return take(own, begun, item)

    def made_ahead(own, function, rows):
        result, when = make(own, function, rows), clocks.use("inputs", rows.stop - rows.start)

        def wait():
            clocks.now = max(clocks.now, when)
            return result()

        return wait

    def launch(count: int) -> None:
        clocks.sizes.append(count)
        clocks.use("device", count)

    def encoded(own, facts, prepared):
        launch(len(facts))
        return [[window] for _ in facts]

    def pooled(own, inputs):
        launch(len(inputs.input_ids))
        return torch.zeros(len(inputs.input_ids), own.head_input.size)

    def predicted(own, *given, plain=Predictor._predict):
        computed = plain(own, *given)
        last = clocks.free["device"]
        wait = SimpleNamespace(synchronize=lambda: setattr(clocks, "now", max(clocks.now, last)))
        return computed._replace(arrived=wait)

    monkeypatch.setattr(Workers, "read", read_ahead)
    monkeypatch.setattr(Workers, "take", taken)
    monkeypatch.setattr(Workers, "make", made_ahead)
    monkeypatch.setattr(EmpathyJudge, "encode_prepared", encoded)
    monkeypatch.setattr(EmpathyJudge, "pooled", pooled)
    monkeypatch.setattr(Predictor, "_predict", predicted)
    pairs = [Pair(str(n), clip(0.3, n)) for n in range(256)]
    assert len(list(ahead(judge, size).predict(pairs))) == 256
    assert clocks.spent == {"decoding": 256 * each[0], "inputs": 512 * each[1], "device": 512 * each[2]}
    slowest = max(clocks.spent.values())
    assert clocks.least() <= clocks.now <= 1.02 * clocks.least()
    assert 1.0 <= clocks.now / slowest <= share
    assert sum(clocks.spent.values()) > 1.3 * slowest


@pytest.mark.parametrize("name", ["meta", "cpu:99x", "tpu", ""])
def test_a_device_that_holds_no_values_is_refused(name):
    if not name:
        assert choose_device(name).type in ("cpu", "cuda")
        return
    with pytest.raises(UserError, match=f"device '{name}': expected auto, cpu, or cuda where a GPU is usable"):
        choose_device(name)


@pytest.mark.parametrize(
    ("variables", "device"),
    [({}, "cuda"), ({"RANK": "13", "WORLD_SIZE": "16", "LOCAL_RANK": "5"}, "cuda:5"),
     ({"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1"}, "cuda:1"),
     ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "9"}, "cuda:1")],
)  # fmt: skip
def test_processes_of_a_launcher_do_not_all_take_the_first_gpu(variables, device, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)  # there is no GPU to try
    assert choose_device(None) == torch.device(device)
    assert choose_device("cuda:0") == torch.device("cuda:0")
