"""A real ear that the tower learns from: an encoder of Whisper, whose states are targets beside what is measured.

It is read while the corpora are made, and what it says is kept with them: its states token by token, and the
statistics over time of its layers, which are what a head reads of an encoder. None of its weights are in nano.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from empathy_judge.checkpoints.nano.make.architecture import SECONDS
from empathy_judge.checkpoints.nano.make.clips import FRAMES_PER_TOKEN, NanoClip
from empathy_judge.core.errors import UserError
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Backbone, Checkpoint
from empathy_judge.models.backbones.layers import LayerStatistics

_SILENCE = 1.0  # seconds behind a clip in place of Whisper's 30 s; probes on it agreed as well with people
_BATCH = 8


def load_teacher(folder: Path) -> Backbone:
    """The encoder of Whisper in a folder in the hub's layout, as `benchmarks/real_ear.py` writes it.

    Raises:
        UserError: If it does not hear clips as long as nano does, or loading it does.
    """
    backbone = load_backbone(Checkpoint(str(folder), window_seconds=_SILENCE))
    if backbone.max_seconds < SECONDS:
        raise UserError(f"{folder}: hears {backbone.max_seconds:g} s; expected an encoder of Whisper, of {SECONDS} s")
    return backbone


def taught(heard: Sequence[tuple[NanoClip, np.ndarray]], teacher: Path | None) -> list[NanoClip]:
    """Clips, with what the `teacher` says of their samples (16 kHz) if there is one.

    Args:
        heard: Clips and the samples of which their spectrograms were made.
        teacher: Folder of `load_teacher`.
    """
    clips = [clip for clip, _ in heard]
    if teacher is None:
        return clips
    backbone = load_teacher(teacher)
    by_length = sorted(range(len(heard)), key=lambda row: len(heard[row][1]))  # clips of one window run together
    for start in range(0, len(heard), _BATCH):
        rows = by_length[start : start + _BATCH]
        prepared = backbone.prepare_clips([heard[row][1] for row in rows])
        statistics = LayerStatistics()
        with torch.inference_mode():
            states = backbone.encode_audio(prepared, statistics)
        layers = statistics.clips.shape[1]
        size = states.shape[1] // layers
        of_clips = states.view(-1, layers, size).split(list(prepared.lengths))
        for row, of_clip, summary in zip(rows, of_clips, statistics.clips, strict=True):
            tokens = len(clips[row].frames)
            # its states count 20 ms, four of them to a token of nano; the last layers serve the decoder
            chosen = of_clip[: tokens * FRAMES_PER_TOKEN, [layers // 2, layers - 2]].flatten(1)
            means = chosen.view(tokens, FRAMES_PER_TOKEN, -1).mean(1)
            clips[row] = replace(clips[row], states=means.half().numpy(), summary=summary.flatten(1).half().numpy())
    return clips
