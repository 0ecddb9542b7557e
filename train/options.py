"""What `model.*` of a recipe says: the judge and how it is trained."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from ..models.backbones.base import Attention, PartName, Quantization
from ..models.heads import HeadName
from ..models.judge import JudgeSettings, LongClips
from ..models.lora import LoraMethod, LoraSettings, TrainedDtype
from ..models.pooling import PoolingName
from .features import Cache
from .objective import DEFAULT_SETTINGS, NATURAL, LossSettings, LossWeights


@dataclass(frozen=True)
class ModelOptions:
    """The judge, its losses, optimizer and feature cache.

    Attributes:
        backbone: "nano", a hub id or a folder in the hub's layout.
        revision: Commit, tag or branch on the hub.
        dtype: Of the frozen backbone weights.
        attention: Attention kernel: eager, sdpa, or flash_attention_2 where it is installed.
        quantization: nf4 keeps the linear layers of the language model in 4 bits (QLoRA).
        pooling: How hidden states become one vector per pair.
        head: How that vector becomes a score: regression (a number), gaussian (a number and its spread), coral or
            corn (thresholds between the steps of the scale), histogram (the spread of raters over the steps).
        losses: How much each loss counts; by default the head's own.
        loss_settings: Settings of single losses.
        rater_embedding: Size of what is learned of each rater, with data.target single; the judge then predicts
            for the mean rater. 0 = nothing.
        padding_side: Side of the padding in a batch.
        lora_parts: Parts of the backbone that get an adapter: language_model, projector, audio_tower.
        lora_rank: Rank of the update.
        lora_alpha: The update is scaled by alpha / rank.
        lora_dropout: Dropout on the adapter's input.
        lora_method: lora, rslora (scaled by alpha / sqrt(rank)) or dora (magnitude and direction apart).
        lora_layers: Layers of the language model that get an adapter: from the first up to but without the second;
            negative numbers count from the end. By default all.
        full_parts: Parts whose weights are all trained themselves, such as the projector.
        trained_dtype: Of what is trained in the backbone; "backbone" = as the frozen weights: less memory, coarser
            steps. Not with ZeRO, which wants one dtype of all that is trained, and the head is float32.
        expected_trainable: How many parameters of each part are trained, as the table at the start shows them;
            training refuses to start with others.
        gradient_checkpointing: Compute layers again in the backward pass instead of keeping what they computed:
            less memory, about a third more time.
        compile_layers: Compile each transformer layer (torch.compile): a minute or more at the start, then faster
            steps on a GPU.
        long_clips: What happens to clips longer than the backbone hears: refuse, or window (cut and averaged).
        learning_rate: Peak, of the adapters and of parts of the backbone that are trained in full.
        head_learning_rate: Peak, of what starts from nothing: pooling, head, and a cross-attention fusion.
        weight_decay: Of the weight matrices.
        warmup: Share of all steps during which the learning rates rise; they then fall along a cosine to zero.
        cache: What is computed once instead of in every epoch: audio (the output of a frozen audio tower) or
            layers (what enters the first layer of the language model with LoRA, see lora_layers).
        cache_folder: Where that is kept, for this and other runs and for scoring; by default in the temporary
            folder of each machine (TMPDIR), once for all of its processes, until training ends.
        cache_gigabytes: Most that the folder may take; what was used longest ago is deleted.
    """

    backbone: str = "nano"
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    attention: Attention = "sdpa"
    quantization: Quantization = "none"
    pooling: PoolingName = "response_mean"
    head: HeadName = "regression"
    losses: LossWeights = NATURAL
    loss_settings: LossSettings = DEFAULT_SETTINGS
    rater_embedding: int = 0
    padding_side: Literal["left", "right"] = "right"
    lora_parts: list[PartName] = field(default_factory=lambda: ["language_model"])
    lora_rank: int = 16
    lora_alpha: float = 32.0
    lora_dropout: float = 0.0
    lora_method: LoraMethod = "lora"
    lora_layers: tuple[int, int] | None = None
    full_parts: list[PartName] = field(default_factory=list)
    trained_dtype: TrainedDtype = "float32"
    expected_trainable: dict[str, int] | None = None
    gradient_checkpointing: bool = False
    compile_layers: bool = False
    long_clips: LongClips = "refuse"
    learning_rate: float = 2e-4
    head_learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.05
    cache: Cache = "none"
    cache_folder: str | None = None
    cache_gigabytes: float = 100.0

    @property
    def judge_settings(self) -> JudgeSettings:
        """Of these, what the judge is built from."""
        lora = LoraSettings(
            self.lora_parts,
            self.lora_rank,
            self.lora_alpha,
            self.lora_dropout,
            self.lora_method,
            self.lora_layers,
            self.full_parts,
            self.trained_dtype,
        )
        names = (own.name for own in fields(JudgeSettings) if own.name != "lora")
        return JudgeSettings(lora=lora, **{name: getattr(self, name) for name in names})
