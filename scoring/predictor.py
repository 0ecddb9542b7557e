"""Predictions for any number of pairs, in batches that fit into memory. Every clip is decoded and encoded once."""

from __future__ import annotations

import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from ..audio.decode import AudioSource
from ..audio.prosody import ClipFacts, clip_facts
from ..core.disk_store import DiskStore
from ..core.errors import AudioError, TextError, UserError
from ..core.processes import find_launch
from ..data_modules.ratings import same_range
from ..data_modules.schema import DatasetCard, Dimension, Pair
from ..models.backbones.packing import MAX_PACKED_FRACTION
from ..models.feature_cache import ClipStates
from ..models.heads import Prediction, combine
from ..models.judge import MOST_WINDOWS, EmpathyJudge, EncodedClip, known_by
from ..models.settings import LongClips, Quantization
from .artifact import LoadedJudge, Placement, load_any

KEPT_BYTES = 512 * 2**20
"""Bytes of audio states that stay in memory by default."""
SPREAD = "auto"
"""Device name of a judge that is spread over all GPUs, then main memory."""
_SORTED_BATCHES = 4
"""Batches whose pairs are sorted by length together."""
_KEPT_FACTS = 100_000
_PADDED = 1.25
"""Largest size of a padded batch relative to its items: beyond it, shorter items make a batch of their own."""
_FREE_SECONDS = 60.0
"""Seconds of audio by which padding may pass that limit on a GPU, which computes them in about the time in which the
host starts the kernels of a batch: on an H200 a pass of a 7B backbone took some 0.1 s with one pair as with seven."""
_CUDA_OUT_OF_MEMORY = 2
"""`cudaErrorMemoryAllocation`, which `torch.AcceleratorError` carries."""
_STATUSES = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""Messages of libraries that allocate on their own, and of torch before it had that class (2.8)."""


class ScoredPair(NamedTuple):
    """A pair after its pass through the judge."""

    # score, deviation and distribution as the head makes them, or what is wrong with the audio
    outcome: Prediction | AudioError
    # of each clip that can be used, the response last; empty unless clips are measured
    facts: tuple[ClipFacts, ...] = ()
    pair: Pair | None = None  # the pair; None where an error stood in its place
    windows: int = 1  # in which it was read, see `Assessment`


class Encoded(NamedTuple):
    """Results for some clips: audio states of those that can be used, their measurements, where they were measured, and
    why the others cannot be used."""

    states: dict[AudioSource, EncodedClip]
    facts: dict[AudioSource, ClipFacts]
    failed: dict[AudioSource, AudioError]


class Predictor:
    """Runs a judge, or all members of an ensemble, over pairs; calls from several threads take turns.

    Each clip is encoded once, and what pairs begin with is read once (`backbones.packing`). Audio states are cached,
    the oldest dropped beyond a limit: one context is often answered several times, and perturbations leave many clips
    as they are.

    Attributes:
        judge: The judge, on its device.
        batch_size: Most pairs per forward pass.
        windows: Whether clips that are longer than the backbone reads at once are read in windows.
        long_clips: The same as a policy (`JudgeSettings.long_clips`).
    """

    def __init__(
        self,
        judge: EmpathyJudge,
        batch_size: int = 16,
        store: DiskStore | None = None,
        measures: bool = False,
        kept_bytes: float = KEPT_BYTES,
        windows: bool = True,
        statistics_alone: bool = False,
    ) -> None:
        """Put the judge to work.

        Args:
            judge: In evaluation mode, on the device where it shall run.
            batch_size: Most pairs per forward pass; scores do not depend on it. Where memory runs out, it is reduced.
            store: Where audio states stay beyond this run, shared with training; not used by a judge whose
                audio tower was trained.
            measures: Whether clips are measured too (`clip_facts`), for warnings.
            kept_bytes: Bytes of audio states that stay in memory, for clips that come again.
            windows: Whether clips above the maximum audio length are read in windows (`JudgeSettings.long_clips`);
                False = they are refused.
            statistics_alone: Whether audio states are dropped as soon as their statistics are taken: `encode` returns
                windows with states of width 0, which only `EmpathyJudge.clip_features` can use.
        """
        self._statistics_alone = statistics_alone
        self.judge, self.batch_size, self.windows = judge, batch_size, windows
        self.long_clips: LongClips = "window" if windows else "refuse"
        self._measures, self._most_bytes = measures, kept_bytes
        self._states: OrderedDict[Hashable, tuple[EncodedClip, int]] = OrderedDict()  # with their bytes
        self._bytes = 0
        self._facts: OrderedDict[Hashable, ClipFacts] = OrderedDict()
        self._store = None if store is None or judge.trains_tower else ClipStates(judge, store)
        rate = judge.backbone.sampling_rate
        self._clip_batches = batches_for(judge, batch_size, rate)
        self._pair_batches = batches_for(judge, batch_size, judge.backbone.audio_tokens(rate))
        self._turn = threading.Lock()

    def predict(self, pairs: Iterable[Pair]) -> Iterator[tuple[Pair, Prediction | AudioError]]:
        """Each pair, in order, with its prediction as the head makes it, not calibrated `(dimensions,)`."""
        for scored in self.run(pairs):
            assert scored.pair is not None
            yield scored.pair, scored.outcome

    def run(self, pairs: Iterable[Pair | AudioError]) -> Iterator[ScoredPair]:
        """Yield all that was found of each pair, in order; an error in place of a pair comes out as it is."""
        waiting, judge = iter(pairs), self.judge
        while chunk := list(itertools.islice(waiting, self.batch_size * _SORTED_BATCHES)):
            members, batch = [], [pair for pair in chunk if isinstance(pair, Pair)]
            with self._turn:
                for member, weights in enumerate(judge.members or [None]):
                    if weights is not None:
                        judge.use(weights)
                    # where members share the tower, audio states are the same for all
                    members.append(self._predict(batch, member if judge.trains_tower else None))
            combined = iter(members[0]) if len(members) == 1 else map(_combined, zip(*members, strict=True))
            yield from (ScoredPair(pair) if isinstance(pair, AudioError) else next(combined) for pair in chunk)

    def forget(self) -> None:
        """Drop the audio states that are cached in this process.

        The last bits of a clip's states depend on the batch in which it was encoded. Scores after this call do not
        depend on what was scored before.
        """
        with self._turn:
            self._states.clear()
            self._bytes = 0

    @torch.inference_mode()
    def _predict(self, pairs: Sequence[Pair], member: int | None) -> list[ScoredPair]:
        """Predict with the judge's present weights; `member` = whose audio states these are, None = those of all."""
        judge, sources = self.judge, [pair.clips for pair in pairs]
        # A clip is encoded once, however many pairs it is in
        states, facts, failed = self.encode(dict.fromkeys(itertools.chain(*sources)), member)
        outcomes: dict[int, Prediction | AudioError] = {}
        # equal pairs are computed once: otherwise rounding would rank one above the other
        equal: dict[Hashable, list[int]] = {}
        windows = []
        for number, (pair, clips) in enumerate(zip(pairs, sources, strict=True)):
            windows.append(math.prod(len(states[source]) for source in clips if source in states))
            error = next((failed[source] for source in clips if source in failed), None)
            # The number of windows is a product over clips: three clips of ten windows make a thousand rows
            if error is None and windows[-1] > MOST_WINDOWS:
                reason = f"pair {pair.pair_id!r}: its clips together make {windows[-1]} windows"
                error = AudioError(f"{reason}; expected at most {MOST_WINDOWS}: shorter clips", "too long")
            if error is None:
                try:
                    judge.check_text(pair, sum(max(len(own.states) for own in states[source]) for source in clips))
                except TextError as unreadable:
                    error = unreadable
            if error is None:
                key = clips, pair.situation, tuple(turn.role for turn in pair.context)  # all that its score depends on
                equal.setdefault(key, []).append(number)
            else:
                outcomes[number] = error
        # Pairs of about equal length, or of one context, go into one batch
        order, worth_packing = list(equal.values()), False
        if len(order) > 1:
            order, worth_packing = _in_order(pairs, sources, order, states)
        predictions: list[tuple[list[list[int]], Prediction]] = []
        # Packed rows hold pairs of several lengths
        padded = not (worth_packing and judge.backbone.packs)
        for batch in self._pair_batches.split([_states(states, sources[first]) for first, *_ in order], padded):
            with batch:
                rows = order[batch.rows]
                inputs = judge.build_inputs([pairs[first] for first, *_ in rows], states)
                predictions.append((rows, judge.head(judge.pooled(judge.on_device(inputs)))))
        for rows, prediction in predictions:  # the host waits for a GPU only here
            for numbers, of_row in zip(rows, prediction.each(), strict=True):
                outcomes |= dict.fromkeys(numbers, of_row)
        scored = []
        for number, (pair, clips) in enumerate(zip(pairs, sources, strict=True)):
            if (outcome := outcomes.get(number)) is None:
                reason = f"pair {pair.pair_id!r}: too long for the memory of {judge.device}"
                outcome = AudioError(reason, "too large for the memory")
            known = tuple(facts[source] for source in clips if source in facts)
            scored.append(ScoredPair(outcome, known, pair, windows[number]))
        return scored

    def encode(self, clips: Iterable[AudioSource], member: int | None = None) -> Encoded:
        """Encode distinct clips; `member` = the member of an ensemble whose weights the tower has now, None = all
        members share the tower.
        """
        result, rate = Encoded({}, {}, {}), self.judge.backbone.sampling_rate
        decoded: list[tuple[AudioSource, Hashable, list[np.ndarray]]] = []
        # What is known already, and what has to be decoded; a clip that cannot be used holds no other up
        for source, key in {source: known_by(source) for source in clips}.items():
            (states, _), facts = self._states.get((member, key), (None, 0)), self._facts.get(key)
            unmeasured = self._measures and facts is None
            try:
                if states is None and self._store is not None and (states := self._store.get(source, self.long_clips)):
                    states = self._kept(states)
                    self._cache((member, key), states)
                windows = self.judge.decode(source, self.long_clips) if states is None or unmeasured else []
            except AudioError as error:
                result.failed[source] = error
                continue
            if unmeasured:
                facts = self._facts[key] = clip_facts(windows, rate)
                if len(self._facts) > _KEPT_FACTS:
                    self._facts.popitem(last=False)
            if facts is not None:
                result.facts[source] = facts
            if states is None:
                decoded.append((source, (member, key), windows))
            else:
                result.states[source] = states
        # The longest first: little padding, and where memory runs out, it does so early
        decoded.sort(key=lambda clip: -len(clip[2][0]))
        encodings: list[EncodedClip | None] = [None] * len(decoded)
        for batch in self._clip_batches.split([sum(map(len, windows)) for _, _, windows in decoded]):
            with batch:
                encodings[batch.rows] = self.judge.encode_clips([windows for _, _, windows in decoded[batch.rows]])
        for (source, key, windows), encoded in zip(decoded, encodings, strict=True):
            if encoded is None:
                seconds, device = sum(map(len, windows)) / rate, self.judge.device
                reason = f"clip of {seconds:.1f} s: too long for the memory of {device}"
                result.failed[source] = AudioError(reason, "too large for the memory")
                continue
            if self._store is not None:
                self._store.put(source, encoded)
            result.states[source] = encoded = self._kept(encoded)
            self._cache(key, encoded)
        return result

    def _kept(self, encoded: EncodedClip) -> EncodedClip:
        """What stays of a clip."""
        if not self._statistics_alone:
            return encoded
        # copies: a view would hold the states, or the statistics, of the whole batch
        return [
            window._replace(
                states=window.states[:, :0].clone(), layers=None if window.layers is None else window.layers.clone()
            )
            for window in encoded
        ]

    def _cache(self, key: Hashable, encoded: EncodedClip) -> None:
        size = sum(tensor.nbytes for window in encoded for tensor in window if isinstance(tensor, torch.Tensor))
        self._bytes += 0 if key in self._states else size
        self._states[key] = encoded, size
        while self._bytes > self._most_bytes:
            _, (_, dropped) = self._states.popitem(last=False)
            self._bytes -= dropped


def _in_order(
    pairs: Sequence[Pair],
    sources: Sequence[Sequence[AudioSource]],
    rows: Sequence[list[int]],
    states: Mapping[AudioSource, EncodedClip],
) -> tuple[list[list[int]], bool]:
    """Rows, each the numbers of equal pairs, in the order in which they are batched, the longest first: little padding;
    and whether packing them is worth it. Where contexts are shared, the responses to one stand together, so that it is
    read once.
    """
    firsts = [first for first, *_ in rows]
    contexts = {first: (sources[first][:-1], pairs[first].situation) for first in firsts}
    group = {context: position for position, context in enumerate(dict.fromkeys(contexts.values()))}
    before = {first: _states(states, clips) for first, (clips, _) in contexts.items()}
    response = {first: _states(states, sources[first][-1:]) for first in firsts}
    # Most contexts have one response: there is little to share, and only the length counts
    if 2 * len(group) > len(rows):
        return sorted(rows, key=lambda row: -before[row[0]] - response[row[0]]), False
    order = sorted(rows, key=lambda row: (-before[row[0]], group[contexts[row[0]]], -response[row[0]]))
    of_each = {contexts[first]: before[first] for first in firsts}
    responses = sum(response.values())
    return order, sum(of_each.values()) + responses <= MAX_PACKED_FRACTION * (sum(before.values()) + responses)


def _combined(members: Sequence[ScoredPair]) -> ScoredPair:
    """The results of all members for one pair as one: a clip that one member cannot use, none can."""
    predictions = [member.outcome for member in members if isinstance(member.outcome, Prediction)]
    if len(predictions) < len(members):
        return next(member for member in members if isinstance(member.outcome, AudioError))
    return members[0]._replace(outcome=combine(predictions))


def _states(states: Mapping[AudioSource, EncodedClip], clips: Sequence[AudioSource]) -> int:
    """Number of audio states of some clips together, in all combinations of their windows."""
    rows = math.prod(len(states[clip]) for clip in clips)
    return sum(rows // len(states[clip]) * len(window.states) for clip in clips for window in states[clip])


class AutoBatch:
    """Batches of consecutive items with little padding. Where one runs out of memory, all later ones are smaller.

        for batch in batches.split(lengths):
            with batch:
                results[batch.rows] = compute(items[batch.rows])

    Items that ran out of memory come again in smaller batches; an item that does not fit even alone never gets a
    result.
    """

    def __init__(self, size: int, free: float = 0) -> None:
        """Start with the largest number of items in a batch, and the padding of a batch that costs nothing, in the unit
        of lengths."""
        self._size, self._free = size, free
        self._most = math.inf  # largest size of a batch, padding included

    def split(self, lengths: Sequence[int], padded: bool = True) -> Iterator[ItemBatch]:
        """Yield batches until all items were computed or do not fit. `lengths` is how much of a batch each item takes,
        in any unit; the longest first, so that memory runs out early. `padded` = each item takes as much as the longest
        of its batch.
        """
        start = 0
        while start < len(lengths):
            count, longest, used = 1, lengths[start], lengths[start]
            for length in lengths[start + 1 : start + self._size]:
                longest, used = max(longest, length), used + length
                size = (count + 1) * longest if padded else used
                if size > min(self._most, max(_PADDED * used, used + self._free)):
                    break
                count += 1
            batch = ItemBatch(slice(start, start + count))
            yield batch
            if not batch.ran_out or count == 1:
                start += count
            if batch.ran_out:
                # By now nothing refers to the tensors of the batch that failed
                clear_device_cache(garbage_collection=True)
                if count > 1:
                    items = lengths[start : start + count]
                    self._most = (count * max(items) if padded else sum(items)) / 2


def batches_for(judge: EmpathyJudge, size: int, per_second: float) -> AutoBatch:
    """Batches of at most so many items for a judge, whose lengths are so much for each second of audio."""
    return AutoBatch(size, 0 if judge.device.type == "cpu" else _FREE_SECONDS * per_second)


@dataclass
class ItemBatch(AbstractContextManager["ItemBatch"]):
    """Some consecutive items (`rows`). As a context it notes whether memory ran out, and lets other errors pass."""

    rows: slice
    ran_out: bool = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self.ran_out = error is not None and ran_out_of_memory(error)
        return self.ran_out


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether a computation failed for lack of memory, on any device."""
    return isinstance(error, RuntimeError | MemoryError) and (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or getattr(error, "error_code", None) == _CUDA_OUT_OF_MEMORY
        or should_reduce_batch_size(error)
        or any(status in str(error) for status in _STATUSES)
    )


def lost_device(error: BaseException) -> bool:
    """Whether a GPU failed in a way after which this process can compute nothing on it any more."""
    # Torch before 2.8 has no such class
    return isinstance(error, getattr(torch, "AcceleratorError", ())) and not ran_out_of_memory(error)


def load_to_score(
    path: Path, backbone: str | None, device: str | None, quantization: Quantization | None, revision: str | None = None
) -> LoadedJudge:
    """A judge on its final device: adapters are merged into its weights where that is exact.

    Raises:
        UserError: As `load_any` and `placed`.
    """
    loaded = load_any(path, Placement(backbone, quantization, device == SPREAD), revision)
    placed(loaded, device).merge()
    return loaded


def placed(loaded: LoadedJudge, device: str | None) -> EmpathyJudge:
    """A judge on its device; one that was spread when it was loaded stays where it is.

    Raises:
        UserError: If torch knows no such device or cannot use it here.
    """
    return loaded.judge if device == SPREAD else loaded.judge.to(choose_device(device))


def choose_device(name: str | None) -> torch.device:
    """The device of that name; without a name a GPU if there is one: of processes that a launcher started on this
    machine (`LOCAL_RANK`), each has its own.

    Raises:
        UserError: If torch knows no such device or cannot use it here.
    """
    try:
        if not name and torch.cuda.is_available():
            launch = find_launch()
            name = f"cuda:{launch.local_rank % torch.cuda.device_count()}" if launch.world > 1 else "cuda"
        device = torch.device(name or "cpu")
        # torch takes any name that it knows; whether the device is there shows when it is used
        torch.zeros(1, device=device)
        if device.type == "meta":
            raise NotImplementedError("it holds no values")
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r}: expected auto, cpu, or cuda where a GPU is usable: {reason}") from None
    return device


def check_scales(judge: str, dimensions: Sequence[Dimension], card: DatasetCard) -> None:
    """Check that the dataset rates a judge's dimensions on the scales that the judge was trained on; dimensions that it
    does not rate are passed over.

    Raises:
        UserError: If a scale differs: scores and ratings would not be in the same points.
    """
    rated = {dimension.name: dimension for dimension in card.dimensions}
    for dimension in dimensions:
        scale = rated.get(dimension.name, dimension)
        if not same_range(dimension, scale):
            raise UserError(
                f"judge {judge}: trained on {dimension.name} from {dimension.minimum:g} to {dimension.maximum:g}, "
                f"but dataset {card.name} rates it from {scale.minimum:g} to {scale.maximum:g}; expected the same scale"
            )
