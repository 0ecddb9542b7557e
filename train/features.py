"""Audio states of a frozen audio tower, computed once per run instead of once per epoch."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.progress import track

from ..data_modules.audio import AudioSource
from ..data_modules.errors import UserError
from ..data_modules.schema import Pair
from ..models.judge import EmpathyJudge, EncodedClip
from ..models.scoring import sources_of

_BATCH = 16


def encode_all(judge: EmpathyJudge, pairs: Iterable[Pair]) -> dict[AudioSource, EncodedClip]:
    """Encode every distinct clip of these pairs.

    Exactly what the tower would compute in training, because nothing before and in the tower is trained or random.

    Args:
        judge: With a frozen audio tower.
        pairs: All pairs that training and validation will read.

    Returns:
        Audio states `(states, audio size)` of each window of each clip, on the CPU.

    Raises:
        UserError: If the audio tower itself is trained, so that its output changes.
    """
    if "audio_tower" in {*judge.settings.lora.parts, *judge.settings.lora.full}:
        raise UserError(
            "cache_audio: true with an audio_tower that is trained: accepted: cache_audio: false, or other parts"
        )
    sources = list(dict.fromkeys(source for pair in pairs for source in sources_of(pair)))
    console = Console(file=sys.stderr)
    states: dict[AudioSource, EncodedClip] = {}
    starts = range(0, len(sources), _BATCH)
    modes = {module: module.training for module in judge.modules()}
    judge.eval()
    for start in track(starts, "encoding clips", console=console, disable=not console.is_terminal):
        batch = sources[start : start + _BATCH]
        states.update(zip(batch, judge.encode_clips([judge.decode(source) for source in batch]), strict=True))
    for module, training in modes.items():  # judge.train() would wake dropout in the frozen backbone
        module.training = training
    return states
