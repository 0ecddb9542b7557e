"""Settings of the training data: `data` in a recipe. Imports nothing heavy, so that `train --help` is instant."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from ..core.errors import DataError

TargetName = Literal["mean", "bias_corrected", "single"]
Weighting = Literal["equal", "reliability"]
Codec = Literal["mu_law", "ogg", "mp3"]


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of training clips: steps with a probability of their own, none by default.

    A range is drawn from uniformly. The steps are applied in the order below; each keeps the length of the clip.

    Attributes:
        noise_probability: Probability of noise with a spectrum between white and pink.
        noise_snr: Range of the signal-to-noise ratio, pauses included (dB).
        codec_probability: Probability of encoding and decoding.
        codecs: Codecs to choose from.
        codec_compression: Range of the compression of ogg and mp3, from 0 (best) to 1 (smallest).
        gain_probability: Probability of a change of level.
        gain_db: Range of the change of level (dB).
    """

    noise_probability: float = 0.0
    noise_snr: tuple[float, float] = (10.0, 30.0)
    codec_probability: float = 0.0
    codecs: tuple[Codec, ...] = ("mu_law", "ogg", "mp3")
    codec_compression: tuple[float, float] = (0.2, 0.9)
    gain_probability: float = 0.0
    gain_db: tuple[float, float] = (-6.0, 6.0)

    def __post_init__(self) -> None:
        limits = {"noise_snr": (-20.0, 100.0), "codec_compression": (0.0, 1.0), "gain_db": (-60.0, 60.0)}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_probability") and not 0 <= value <= 1:
                raise DataError(f"augmentation: {field.name} {value}; expected 0 to 1")
            if field.name in limits:
                low, high = limits[field.name]
                if len(value) != 2 or not low <= value[0] <= value[1] <= high:
                    raise DataError(
                        f"augmentation: {field.name} {value}; expected two values, ascending, {low} to {high}"
                    )
        if self.codec_probability and not self.codecs:
            raise DataError("augmentation: codec_probability without codecs; expected some of mu_law, ogg, mp3")

    @property
    def active(self) -> bool:
        """Whether anything can happen to a clip."""
        return any(value for name, value in vars(self).items() if name.endswith("_probability"))


NO_AUGMENTATION = Augmentation()


@dataclass(frozen=True)
class DataSettings:
    """The training data and its batches.

    Attributes:
        path: Folder of the pair dataset, or its address (``hf://datasets/OWNER/NAME``, ``s3://...``).
        batch_size: Items per training step and device. An item is a rated pair, or a comparison of two pairs.
        eval_batch_size: Pairs per validation step and device.
        batch_tokens: Maximum tokens of this backbone per step and device, padding included, instead of batch_size and
            eval_batch_size. Batches then hold items of similar length. auto: the tokens of batch_size of the longest
            items, or as many as fit the memory of the smallest device, measured before the first step.
        num_workers: Processes that decode audio; 0 = the trainer decodes.
        train_split: Split or splits to train on, such as fold1, fold2 and fold3.
        validation_split: Split or splits that choose the best checkpoint.
        augmentation: Augmentation of training clips; off by default.
        target: Target of training pairs: mean of the raters, mean corrected for their biases, or each single rating.
            Validation and test always use plain means.
        weighting: Weight of a target: equal, or reliability, given the number of raters of the pair.
        batches: What is shuffled: items, or groups, whose items then share a batch. Groups are faster if the responses
            of a group share a context, which is then read once.
        preference_share: Share of training items that are preferences of people; 1 trains on preferences alone.
        counterfactual_share: Share of training items that are counterfactual: a well rated response must beat the
            response to another context of the same group.
        counterfactual_min_score: Minimum rating of such a response, as a share of the scale (1 = the better end).
    """

    path: str
    batch_size: int = 16
    eval_batch_size: int = 32
    batch_tokens: int | Literal["auto"] | None = None
    num_workers: int = 0
    train_split: list[str] | str = "train"
    validation_split: list[str] | str = "validation"
    augmentation: Augmentation = NO_AUGMENTATION
    target: TargetName = "mean"
    weighting: Weighting = "equal"
    batches: Literal["items", "groups"] = "items"
    preference_share: float = 0.0
    counterfactual_share: float = 0.0
    counterfactual_min_score: float = 0.6

    def pairs_in(self, items: int) -> int:
        """Most pairs in a batch of so many items, of which a comparison is two; one more may be in a batch of a run
        that trains on rated pairs and both kinds of comparisons."""
        compared = self.preference_share + self.counterfactual_share
        return items + min(items, math.ceil(items * compared - 1e-9))
