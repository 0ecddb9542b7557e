"""What a judge is built from: `judge` in a recipe, `settings` in `judge.json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from ..data_modules.errors import UserError
from .backbones.base import Attention, Quantization
from .head_input import HeadInputSettings, PoolingName
from .heads import HeadName
from .lora import LoraSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LongClips = Literal["refuse", "window"]


@dataclass(frozen=True)
class JudgeSettings:
    """What a judge is built from, apart from its dimensions: `judge` in a recipe, `settings` in `judge.json`.

    Attributes:
        backbone: "nano", a hub id or a folder in the hub's layout.
        revision: Commit, tag or branch on the hub.
        dtype: Of the frozen backbone weights; head and, unless lora.trained_dtype says otherwise, adapter are float32.
        attention: Attention kernel: eager, sdpa, or flash_attention_2 where it is installed.
        quantization: nf4 keeps the linear layers of the language model in 4 bits (QLoRA).
        pooling: How hidden states become one vector per pair.
        depth: How many layers of the language model are read, from the first: a number of layers, or a share of all
            (above 0, up to 1). What is above is never loaded. Where there is no language model, layers of the encoder.
            By default all.
        depth_norm: Whether the norm that the backbone has behind its last layer follows the last that is read.
        padding_side: Side of the padding in a batch; scores do not depend on it.
        lora: What of the backbone is trained.
        head_input: What the head reads beside that vector.
        head: How the pooled vector becomes a score: regression (a number), gaussian (a number and its spread), coral or
            corn (thresholds between the steps of the scale), histogram (the spread of raters over the steps).
        long_clips: What happens in training to a clip above the maximum audio length of the backbone. refuse: an error.
            window: it is cut into the fewest windows of equal length that are short enough, a pair is read once for
            each combination of windows of its clips, and the head gets the mean of these, each weighted by the seconds
            in which it has a voice. Scoring cuts long clips in either case, unless it is told not to.
    """

    backbone: str = "nano"
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

    def __post_init__(self) -> None:
        depth = self.depth
        if depth is None or (isinstance(depth, int) and depth >= 1) or (isinstance(depth, float) and 0 < depth <= 1):
            return
        raise UserError(f"judge.depth {depth}; expected a number of layers, or a share above 0 and up to 1")
