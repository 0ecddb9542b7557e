"""The half of an Omni checkpoint that listens: audio tower and language model of its thinker.

They lie among the keys `thinker.*` of the whole model, or without that prefix where a thinker was saved alone. Talker,
vocoder, vision tower and LM head are neither read nor allocated.
"""

from __future__ import annotations

from typing import TypeVar

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from .base import Checkpoint
from .loading import load_model

Model = TypeVar("Model", bound=PreTrainedModel)

# Of keys as the hub has them and as the modules are called since transformers 5 (`model.audio_tower`)
_MAPPING = {
    r"^(?:thinker\.)?(?:model\.)?audio_tower\.": "audio_tower.",
    r"^(?:thinker\.)?(?:model\.)?visual\.": "visual.",
    r"^(?:thinker\.)?model\.(?:language_model\.)?": "language_model.",
}
_UNUSED = r"^(?:thinker\.lm_head|lm_head|visual|talker|token2wav|code2wav|audio_tower\.audio_bos_eos_token)\."


def load_thinker(model_class: type[Model], checkpoint: Checkpoint) -> Model:
    """Load a thinker out of a whole Omni checkpoint, or one that was saved alone.

    Args:
        model_class: With `audio_tower` and `language_model`, and nothing else.
        checkpoint: What to load and how.

    Raises:
        UserError: If weights are missing or misshapen, or belong to no part of such a model.
    """
    return load_model(
        model_class,
        checkpoint,
        config=thinker_config(checkpoint),
        key_mapping=_MAPPING,
        left_behind=_UNUSED,
        unquantized=["audio_tower"],
    )


def thinker_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """Configuration of the thinker: as it is, or out of that of the whole model."""
    config = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
    if config.model_type.endswith("_thinker"):
        return config
    thinker = config.thinker_config
    if (stored := getattr(config, "quantization_config", None)) is not None:  # a judge was exported in this form
        thinker.quantization_config = stored
    return thinker
