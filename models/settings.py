"""Settings of a judge: `judge` in a recipe and, with what training adds, `settings` in `judge.json`.

Imports nothing heavy, so that `train --help` is instant."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from ..core.errors import UserError
from . import NANO

Attention = Literal["eager", "sdpa", "flash_attention_2"]
"""Attention kernels that `transformers` knows."""
Quantization = Literal["none", "nf4"]
"""How the linear layers of the language model are stored: as they are, or in 4 bits (Dettmers et al., 2023)."""
WeightForm = Literal["none", "nf4", "int8"]
"""As `Quantization`, or in 8 bits with one scale for each row: of what is exported, never of what is trained."""
PartName = Literal["language_model", "projector", "audio_tower", "fusion"]
"""`fusion`: cross-attention of context and response where there is no language model, without pre-trained weights."""
PoolingName = Literal["last_token", "response_mean", "attention"]
HeadName = Literal["regression", "gaussian", "corn", "histogram"]
OF_LEVELS: tuple[HeadName, ...] = ("corn", "histogram")
"""Heads that give a probability for every step of a scale."""
LongClips = Literal["refuse", "window"]
MOST_RANK = 4_096  # the rank of the largest backbones' matrices: a larger one gains nothing
# Pairs up to which the closed form solves exactly (`closed_form.EXACT`): its matrix is square in them
MOST_LANDMARKS = 5_000
# Seconds of Whisper's window, beyond which its encoder has no positions
MOST_WINDOW = 30.0


@dataclass(frozen=True)
class LoraSettings:
    """LoRA, and the parts of the backbone that are fully fine-tuned; in a recipe `judge.lora`.

    Attributes:
        parts: Parts of the backbone whose linear layers get an adapter: language_model, projector, audio_tower. Empty
            = train the head alone.
        rank: Rank of the update.
        alpha: The update is scaled by alpha / rank, in rsLoRA by alpha / sqrt(rank).
        dropout: Dropout on the adapter's input while training.
        method: lora, rslora (Kalajdzievski, 2023) or dora (Liu et al., 2024).
        layers: Layers of the language model that get an adapter, from the first up to but without the second, counted
            from 0; negative numbers count from the end. By default all.
        full_parts: Parts that are fully fine-tuned, such as the projector.
        trained_dtype: Dtype of the trained weights of the backbone. "backbone" = that of the frozen weights: less
            memory, lower precision. Not with ZeRO, which needs one dtype for all trained weights; the head is float32.
    """

    parts: list[PartName] = field(default_factory=lambda: ["language_model"])
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    method: Literal["lora", "rslora", "dora"] = "lora"
    layers: tuple[int, int] | None = None
    full_parts: list[PartName] = field(default_factory=list)
    trained_dtype: Literal["float32", "backbone"] = "float32"

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MOST_RANK:
            raise UserError(f"lora.rank {self.rank}; expected 1 to {MOST_RANK:,}")
        if not 0 < self.alpha < math.inf:
            raise UserError(f"lora.alpha {self.alpha:g}; expected a number above 0")
        if not 0 <= self.dropout < 1:
            raise UserError(f"lora.dropout {self.dropout:g}; expected at least 0 and less than 1")

    @property
    def trains_tower(self) -> bool:
        """Whether audio states depend on weights that training changes."""
        return "audio_tower" in {*self.parts, *self.full_parts}


@dataclass(frozen=True)
class HeadInputSettings:
    """What the head reads in addition to the pooled state of the language model.

    Attributes:
        audio: all_layers: mean and standard deviation over time of every layer of the audio encoder, mixed by learned
            weights; of the response, of the last context turn, and their difference. none: nothing.
        functionals: Also read measures of the signal (pitch, level, timing, spectrum). They cost a few milliseconds per
            second of audio, and help most with a small backbone.
    """

    audio: Literal["none", "all_layers"] = "none"
    functionals: bool = False

    @property
    def of_clips(self) -> bool:
        """Whether anything of the clips themselves is read."""
        return self.audio != "none" or self.functionals


@dataclass(frozen=True)
class BuiltHeadInput(HeadInputSettings):
    """What the head of a judge reads: that of the recipe, and the kernel at which training began.

    Attributes:
        landmarks: Training pairs that a pair is compared with, by a Gaussian kernel; 0 without one.
        beside_landmarks: Whether the pooled state of the language model is read beside them: where adapters begin at a
            kernel that leaves it out.
    """

    landmarks: int = 0
    beside_landmarks: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.landmarks <= MOST_LANDMARKS:
            raise UserError(f"head_input.landmarks {self.landmarks}; expected 0 to {MOST_LANDMARKS:,}")
        if self.beside_landmarks and not self.landmarks:
            raise UserError("head_input.beside_landmarks true with no landmarks: training sets both; expected false")


@dataclass(frozen=True)
class JudgeSettings:
    """Settings of a judge, apart from its dimensions: `judge` in a recipe.

    Attributes:
        backbone: "nano", a hub id or a folder in the hub's layout.
        revision: Commit, tag or branch on the hub.
        dtype: Dtype of the frozen backbone; head and, unless lora.trained_dtype is set, adapter are float32.
        attention: Attention kernel: eager, sdpa, or flash_attention_2 where it is installed.
        quantization: nf4 keeps the linear layers of the language model in 4 bits (QLoRA).
        pooling: How hidden states become one vector per pair: that of the last token, the mean over the response, or a
            mean over all with learned weights (attention).
        depth: Number of layers of the language model (or of the encoder, without one) that are used, from the first, or
            their share (above 0, up to 1). The layers above are not loaded. By default all.
        depth_norm: Whether the final norm of the backbone follows the last layer that is used.
        padding_side: Side of the padding in a batch; scores do not depend on it.
        lora: The trained parts of the backbone.
        head_input: What the head reads in addition to that vector.
        head: Head: regression (a number), gaussian (a number and its deviation), corn (thresholds between the steps of
            the scale), histogram (the distribution of ratings over the steps).
        window_seconds: Of an encoder whose window is fixed (Whisper: 30 s of clip and silence): the seconds of silence
            that follow a clip, rounded up so that clip and silence last whole seconds. A short clip then costs what it
            lasts, and its states are a little others. By default the whole window.
        long_clips: Training clips above the maximum audio length of the backbone. refuse: an error. window: cut them
            into the fewest windows of equal length; a pair is read once per combination of windows of its clips, and
            the head reads the mean, weighted by seconds of voice. Scoring cuts them by default.
    """

    backbone: str = NANO
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    attention: Attention = "sdpa"
    quantization: Quantization = "none"
    pooling: PoolingName = "response_mean"
    depth: int | float | None = None
    depth_norm: bool = True
    padding_side: Literal["left", "right"] = "right"
    lora: LoraSettings = field(default_factory=LoraSettings)
    head_input: HeadInputSettings = field(default_factory=HeadInputSettings)
    head: HeadName = "regression"
    long_clips: LongClips = "refuse"
    window_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.window_seconds is not None and not 0 <= self.window_seconds <= MOST_WINDOW:
            raise UserError(f"judge.window_seconds {self.window_seconds:g}; expected 0 to {MOST_WINDOW:g}, or null")
        depth = self.depth
        # The type decides: 1 is one layer, 1.0 all of them
        if depth is None or (isinstance(depth, int) and depth >= 1) or (isinstance(depth, float) and 0 < depth <= 1):
            return
        raise UserError(f"judge.depth {depth}; expected a number of layers, or a share above 0 and up to 1")


@dataclass(frozen=True)
class BuiltSettings(JudgeSettings):
    """Settings of a judge that is there: `settings` in `judge.json`."""

    head_input: BuiltHeadInput = field(default_factory=BuiltHeadInput)

    @classmethod
    def of(cls, settings: JudgeSettings) -> BuiltSettings:
        """Of the settings of a recipe, or of another judge."""
        # `vars` and not `asdict`, which would turn the nested settings into dictionaries
        return cls(**{**vars(settings), "head_input": BuiltHeadInput(**vars(settings.head_input))})
