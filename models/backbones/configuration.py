"""How a backbone is configured: equal weights compute something else with another activation function, or with another
hop of the spectrogram."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from ...core.errors import shown
from .base import Backbone

_NOT_READ = re.compile(
    "_.*|architectures|auto_map|.*dropout|dtype|empathy_judge_.*|id2label|initializer_range|label2id|.*layerdrop|"
    "model_type|name_or_path|output_.*|problem_type|processor_class|quantization_config|return_dict|torch_dtype|"
    "transformers_version|use_cache"
)
"""Values of a configuration that change no state of frozen layers, or that names have from the weights themselves."""


def configuration(backbone: Backbone, left_out: Collection[str] = ()) -> dict[str, Any]:
    """Values of network and feature extractor that states may depend on, as JSON has them. `left_out` = parts of the
    network's configuration that are not looked at."""
    network: Any = backbone.network
    if hasattr(network, "config"):
        config = network.config.to_dict()
    else:  # parts side by side, such as an encoder and the fusion on it
        config = {name: part.config.to_dict() for name, part in network.named_children() if hasattr(part, "config")}
    config = {name: value for name, value in config.items() if name not in left_out}
    limits = {"sampling_rate": backbone.sampling_rate, "max_seconds": backbone.max_seconds}
    values = {"config": config, "feature_extractor": backbone.extractor.to_dict(), **limits}
    return json.loads(json.dumps(_read(values), default=_plain))


def in_json(backbone: Backbone, left_out: Collection[str] = ()) -> str:
    """`configuration` as a text that is the same for the same values."""
    return json.dumps(configuration(backbone, left_out), sort_keys=True)


def difference(one: Mapping[str, Any], other: Mapping[str, Any], where: str = "") -> str | None:
    """The first value that two configurations have differently, in words; names that only one has are passed over, as
    versions of transformers add and rename some. None = there is none."""
    for name in sorted(one.keys() & other.keys()):
        path, values = f"{where}{name}", (one[name], other[name])
        if all(isinstance(value, Mapping) for value in values):
            if (inside := difference(*values, f"{path}.")) is not None:
                return inside
        elif values[0] != values[1]:
            return f"{path} {shown(values[0])}, expected {shown(values[1])}"
    return None


def _read(values: Any) -> Any:
    """A configuration without what changes no state, however deep."""
    if isinstance(values, Mapping):
        return {str(name): _read(value) for name, value in values.items() if not _NOT_READ.fullmatch(str(name))}
    if isinstance(values, float) and not math.isfinite(values):
        return str(values)  # JSON has none
    return [_read(value) for value in values] if isinstance(values, list | tuple) else values


def _plain(value: Any) -> Any:
    """An array as lists; of what else JSON does not have, its type."""
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__
