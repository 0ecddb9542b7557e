"""What training data is read and how: `data` in a recipe. Loads nothing heavy, so that `train --help` is instant."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from .errors import DataError

TargetName = Literal["mean", "bias_corrected", "single"]
Weighting = Literal["equal", "reliability"]
Codec = Literal["mu_law", "ogg", "mp3"]


@dataclass(frozen=True)
class Augmentation:
    """What happens to a training clip, each with a probability of its own; all zero = nothing, which is the default.

    A range is the lowest and the highest value; the draw is uniform. The steps follow the order below, and each keeps
    the length of the clip.

    Attributes:
        noise_probability: Of noise with a spectrum between white and pink.
        noise_snr: Energy of the clip, pauses included, over that of the noise (dB).
        codec_probability: Of being encoded and decoded.
        codecs: Which codecs to choose from.
        codec_compression: Of ogg and mp3, from 0 (best) to 1 (smallest).
        gain_probability: Of another level.
        gain_db: Change of level (dB).
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
    """What is trained on, and in which batches.

    Attributes:
        path: Folder of the pair dataset, or its address (``hf://datasets/OWNER/NAME``, ``s3://...``).
        batch_size: Items per training step and device: a rated pair, or a comparison, which is two pairs.
        eval_batch_size: Pairs per validation step and device.
        batch_tokens: Most tokens of this backbone per step and device, padding included, instead of batch_size and
            eval_batch_size: items of like length then stand together, which leaves little padding. auto: those of
            batch_size of the longest items, or as many as a step has memory for on the device with the least, which is
            tried before the first step.
        num_workers: Processes that decode audio; 0 = none beside the trainer.
        train_split: Split or splits to train on, such as fold1, fold2 and fold3.
        validation_split: Split or splits that choose the best checkpoint.
        augmentation: Of training clips, in the processes that decode them; off by default.
        target: What training pairs should score: mean of the raters, mean corrected for their biases, or each single
            rating. Validation and test always use plain means.
        weighting: How much a target counts: all the same (equal), or by how much of it is not chance, given how
            many people rated the pair (reliability).
        batches: What is shuffled: items, or groups, whose items then stand together in a batch: for speed
            where its responses share a context, which is then read once.
        preference_share: Share of training items that are preferences of people; 1 trains on preferences alone.
        counterfactual_share: Share of training items that are counterfactual: a well rated response must beat the
            response that belongs to another context of the same group.
        counterfactual_min_score: How well rated, as a share of the scale (1 = the better end).
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
