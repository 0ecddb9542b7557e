"""What the judge asks of a backbone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...data_modules.schema import Pair, check_situation
from ..settings import Attention, PartName, WeightForm
from .inputs import Clips, Inputs, Packed
from .layers import LayerStatistics


@dataclass(frozen=True)
class Checkpoint:
    """Which weights are loaded, and how."""

    name: str  # hub id or folder in the hub's layout
    revision: str | None = None  # commit, tag or branch on the hub
    dtype: torch.dtype = torch.float32  # of the weights
    attention: Attention = "sdpa"  # attention kernel
    quantization: WeightForm = "none"  # of the language model's linear layers
    # "auto" spreads the weights over the GPUs that there are, then main memory; None = the CPU
    device_map: Literal["auto"] | None = None
    weights: bool = True  # False builds the architecture without weights, on the meta device, to count with
    # True leaves conversion to float32 to `deferred.finish`: until then weights are mapped from their files
    deferred: bool = False
    # how many layers there are, from the first: a number, or a share of all; None = all. Those above are neither made
    # nor read.
    depth: int | float | None = None
    window_seconds: float | None = None  # see `JudgeSettings`


@dataclass(frozen=True)
class BackbonePart:
    """A part of a backbone that can be trained, by LoRA or full fine-tuning: the path of its module inside the network,
    the last names of its linear layers (empty where it is one itself), and the path of the list of its layers, where
    LoRA can be put on some of them only. A part inside another part does not count as part of that one."""

    path: str
    linears: tuple[str, ...]
    layers: str | None = None


@dataclass(frozen=True)
class Layout:
    """How a checkpoint of a family stores the weights of a network: how their names begin inside the network and in the
    checkpoint (of several that fit, the longest counts; weights that none fits are not in a checkpoint)."""

    names: Mapping[str, str]

    def stored(self, name: str) -> str | None:
        """The name in a checkpoint of the network's weight `name`; None if checkpoints do not have this weight."""
        start = max((start for start in self.names if name.startswith(start)), key=len, default=None)
        return None if start is None else self.names[start] + name.removeprefix(start)


class Question(NamedTuple):
    """Tokens of the question about a pair, with one audio token for each clip: its context turns, then its response."""

    ids: np.ndarray  # `(tokens,)`, int64
    is_audio: np.ndarray  # True at audio tokens `(tokens,)`


class Backbone(ABC):
    """An audio language model without its LM head, or an audio encoder with cross-attention fusion of two clips."""

    network: nn.Module  # the module that holds every weight; LoRA is put on it in place
    name: str  # hub id or folder it was loaded from
    extractor: Any  # its feature extractor: what makes `Clips.features` of samples
    sampling_rate: int  # Hz of the clips that it reads
    max_seconds: float  # maximum audio length (seconds)
    audio_size: int  # width of the states that `encode_audio` returns
    # how many layers `LayerStatistics` sums up, and the width of each; none without an audio tower
    layer_sizes: tuple[int, int] = (0, 0)
    hidden_size: int  # width of `hidden_states`
    parts: Mapping[PartName, BackbonePart]  # what can be trained, by name
    layout: Layout  # how a checkpoint of its family stores its weights
    reads_text: bool = True  # False if it cannot read the text about the situation
    untrained_states: bool = False  # True if `hidden_states` come from a part without pre-trained weights
    fixed_window: bool = False  # True if `Checkpoint.window_seconds` may be set
    max_tokens: int | None = None  # tokens of text and audio that it has positions for; None = any number
    padding_id: int  # the token that fills shorter rows of a batch
    depth: int | None = None  # how many of its layers there are, where that was asked for; None = all
    # path of the layers that `depth` counts, inside the network: of the language model, or where there is none, of the
    # encoder
    layers_path: ClassVar[str]
    # path of the norm behind the last of these; None where `hidden_states` does not have it
    final_norm: ClassVar[str | None] = None
    # the official class that `load_model` loads. Of a language model the generation class: transformers 5.17 does not
    # rename the keys of hub files for the bare model class.
    model_class: ClassVar[Any]
    # regular expression of keys that may be missing or unexpected in a checkpoint, because the judge does not use what
    # they belong to
    ignored_keys: ClassVar[str] = r"^lm_head\."
    # regular expressions of keys of a checkpoint and what becomes of them
    key_mapping: ClassVar[dict[str, str] | None] = None
    # modules that are float32 whatever the dtype of the rest is: what reads samples. bfloat16 has 8 significant bits,
    # and would round away a quiet signal on top of a large constant.
    float32_parts: ClassVar[tuple[str, ...]] = ()
    processor_of: ClassVar[Callable[[Checkpoint], Any]]
    """Loads what turns texts and clips into inputs."""

    @abstractmethod
    def __init__(self, network: Any, processor: Any, checkpoint: Checkpoint) -> None:
        """Wrap the results of `network_of` and `processor_of` for a checkpoint."""

    @classmethod
    def config_of(cls, checkpoint: Checkpoint) -> Any:
        """Configuration of the model that is loaded; None = that of the checkpoint."""
        return None

    @classmethod
    def kernels(cls, attention: str) -> dict[str, str]:
        """Attention kernel of each sub-configuration; "" = of the model itself."""
        return {"": attention}

    @classmethod
    def unquantized(cls) -> list[str]:
        """Modules that keep their precision when the rest is quantized."""
        return []

    @classmethod
    def network_of(cls, model: Any) -> Any:
        """What the judge needs of the model that was loaded."""
        return model

    @property
    def has_tower(self) -> bool:
        """Whether an audio tower makes the audio states. Else they are the samples, which no cache may keep."""
        return "audio_tower" in self.parts

    @property
    def layers(self) -> list[nn.Module]:
        """The layers that `depth` counts."""
        layers = self.network.get_submodule(self.layers_path)
        assert isinstance(layers, nn.ModuleList)
        return list(layers)

    @property
    def layers_of_parts(self) -> list[nn.Module]:
        """The layers of every part, one after the other: what FSDP2 gathers one by one."""
        paths = [part.layers for part in self.parts.values() if part.layers]
        return [layer for path in paths for layer in self.network.get_submodule(path).children()]

    def leave_out_norm(self) -> None:
        """From now on, `hidden_states` are those before `final_norm`; its weights stay, as exports need them."""
        if self.final_norm is not None:
            self.network.get_submodule(self.final_norm).register_forward_hook(_its_input)

    @abstractmethod
    def audio_tokens(self, samples: int) -> int:
        """Audio tokens of a clip of so many samples: one for each audio state."""

    def real_audio_tokens(self, samples: int) -> int:
        """How many of these, from the first, are not padding; some families pad clips with silence that has tokens."""
        return self.audio_tokens(samples)

    def check_situation(self, text: object) -> None:
        """Check that a text about the situation can be read, whatever its length.

        Raises:
            TextError: If it is not a text, or holds a token with a meaning of its own, such as the audio token.
        """
        check_situation(text)

    @abstractmethod
    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """The inputs of the audio tower for mono clips `(samples,)` at `sampling_rate`."""

    @abstractmethod
    def question(self, pair: Pair) -> Question:
        """What is asked about a pair, whose situation was checked (`check_situation`); its audio is not read here."""

    @abstractmethod
    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        """Audio states of all clips one after the other, without padding, before the projector `(states, audio size)`;
        `layer_statistics` takes those of the encoder's layers."""

    @abstractmethod
    def hidden_states(self, inputs: Inputs, read: Tensor | None = None) -> Tensor:
        """Last hidden states `(batch, tokens, hidden)`; those at padding have no meaning, nor have those that are not
        `read` `(batch, tokens)`, on the CPU, if that is given."""

    @property
    def packs(self) -> bool:
        """Whether `packed` may pack a batch."""
        return False

    def packed(self, inputs: Inputs) -> Packed | None:
        """Pack the tokens of a batch, on the CPU and with audio states or clips, into fewer positions; None where
        little would be saved."""
        return None

    @abstractmethod
    def save_processor(self, folder: str) -> None:
        """Write tokenizer and feature extractor."""


def _its_input(norm: nn.Module, given: tuple[Tensor, ...], normalised: Tensor) -> Tensor:
    """A forward hook: what a module is given takes the place of what it returns."""
    return given[0]
