"""Scores for any number of pairs, in batches, with every clip encoded once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..data_modules.audio import AudioSource
from ..data_modules.errors import AudioError, UserError
from ..data_modules.schema import Pair
from .artifact import LoadedJudge
from .judge import EmpathyJudge, EncodedClip

_CACHE_BYTES = 512 * 2**20
SPREAD = "auto"
"""Device name of a judge that is spread over all GPUs, then main memory."""


class PairScorer:
    """Runs a judge over pairs. Audio states are kept, the oldest dropped beyond 512 MB: one context is often answered
    several times, and the listening checks hear the same clips again."""

    def __init__(self, judge: EmpathyJudge, batch_size: int = 16) -> None:
        """Put the judge to work.

        Args:
            judge: In evaluation mode, on the device where it shall run.
            batch_size: Pairs per forward pass; scores do not depend on it.
        """
        self.judge = judge
        self.batch_size = batch_size
        self._states: OrderedDict[Hashable, EncodedClip] = OrderedDict()
        self._bytes = 0

    def score(self, pairs: Sequence[Pair]) -> Iterator[tuple[Pair, Tensor | AudioError]]:
        """Yield each pair, in order, with its scores in rating points `(dimensions,)`, float32, on the CPU.

        A pair whose audio cannot be used comes with the error instead of scores; the others are not affected.
        """
        for start in range(0, len(pairs), self.batch_size):
            batch = pairs[start : start + self.batch_size]
            states, failed = self._encode(batch)
            usable = [pair for pair in batch if not any(source in failed for source in sources_of(pair))]
            scores = iter(self._forward(usable, states)) if usable else iter(())
            for pair in batch:
                errors = [failed[source] for source in sources_of(pair) if source in failed]
                yield pair, errors[0] if errors else next(scores)

    @torch.inference_mode()
    def _forward(self, pairs: Sequence[Pair], states: dict[AudioSource, EncodedClip]) -> Tensor:
        inputs = self.judge.build_inputs(pairs, states)
        return self.judge(inputs.to(self.judge.device)).cpu()

    def _encode(self, pairs: Sequence[Pair]) -> tuple[dict[AudioSource, EncodedClip], dict[AudioSource, AudioError]]:
        wanted = list(dict.fromkeys(source for pair in pairs for source in sources_of(pair)))
        states = {source: self._states[key] for source in wanted if (key := _key(source)) in self._states}
        failed: dict[AudioSource, AudioError] = {}
        readable = []
        for source in wanted:
            if source not in states:
                try:
                    readable.append((source, self.judge.decode(source)))
                except AudioError as error:
                    failed[source] = error
        if readable:
            made = self.judge.encode_clips([windows for _, windows in readable])
            for (source, _), encoded in zip(readable, made, strict=True):
                states[source] = encoded
                self._keep(source, encoded)
        return states, failed

    def _keep(self, source: AudioSource, encoded: EncodedClip) -> None:
        self._states[_key(source)] = encoded
        self._bytes += _bytes(encoded)
        while self._bytes > _CACHE_BYTES:
            _, dropped = self._states.popitem(last=False)
            self._bytes -= _bytes(dropped)


def _bytes(encoded: EncodedClip) -> int:
    return sum(window.states.nbytes for window in encoded)


def _key(source: AudioSource) -> Hashable:
    """What a clip is kept under; a file that was changed is another clip."""
    if isinstance(source, str | Path) and Path(source).is_file():
        facts = Path(source).stat()
        return str(source), facts.st_mtime_ns, facts.st_size
    return source


def placed(loaded: LoadedJudge, device: str | None) -> EmpathyJudge:
    """A judge on its device; one that was spread when it was loaded stays where it is.

    Raises:
        UserError: If torch knows no such device or cannot use it here.
    """
    return loaded.judge if device == SPREAD else loaded.judge.to(choose_device(device))


def choose_device(name: str | None) -> torch.device:
    """The device of that name; without a name a GPU if there is one.

    Raises:
        UserError: If torch knows no such device or cannot use it here.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r}: accepted: auto, cpu, or cuda where a GPU is usable: {reason}") from None
    return device


def sources_of(pair: Pair) -> list[AudioSource]:
    """The clips of a pair: context turns, then the response."""
    return [*(turn.audio for turn in pair.context), pair.response]
