"""Feature cache: activations of frozen layers, computed once and stored under names that identify them.

A name is a hash of everything that the result depends on: the content of the clips, the question, the version of
transformers, whose code runs, the configuration of the network and of its feature extractor, and of every weight that
takes part its name, shape, precision and a sample of its values. Judges of one backbone share the cache, in training
and in scoring. The language model is split at layer k, the first with LoRA: the hidden states that enter it never
change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

from ..audio.decode import AudioSource, audio_hash, known_by
from ..audio.stored_clips import StoredClip
from ..core.disk_store import DiskStore
from ..data_modules.schema import Pair
from .backbones.audio_language_model import AudioLanguageModel
from .backbones.configuration import in_json
from .backbones.inputs import Inputs
from .backbones.layers import capture_outputs, passing_on
from .judge import EmpathyJudge
from .lora import part_of
from .settings import LongClips
from .windows import EncodedClip, EncodedWindow

_VERSION = "2"
"""Changes whenever the same weights and content could give other states."""
_SAMPLED = 64  # values of each weight
_WHOLE, _IN_WINDOWS = "refuse", "windows by voice"
"""Parts of names: of clips that are read whole, and of those that are cut."""
_OTHER_PARTS = ("text_config", "vision_config")
"""Parts of a configuration that an audio tower does not read."""


class ClipStates:
    """Audio states of clips, computed once by a tower that is not trained."""

    def __init__(self, judge: EmpathyJudge, store: DiskStore) -> None:
        """Cache what the frozen tower of this judge computes."""
        self.store, self._long_clips = store, judge.settings.long_clips
        self._tower = _hash(
            _weights(judge, lambda name: part_of(judge.backbone, name) == "audio_tower"),
            in_json(judge.backbone, _OTHER_PARTS),
            _set_up(judge, _WHOLE),
        )
        self._names: dict[Hashable, str] = {}

    def name(self, source: AudioSource, in_windows: bool = False) -> str:
        """The name under which a clip is stored that is read whole, or in several windows.

        Raises:
            AudioError: If its file cannot be read.
        """
        return _hash(self._tower, self._content(source), *((_IN_WINDOWS,) if in_windows else ()))

    def get(self, source: AudioSource, long_clips: LongClips | None = None) -> EncodedClip | None:
        """Audio states of a clip; None where they are not stored. `long_clips` = whether a long one may be in windows;
        None = as in training. Raises as `name`."""
        stored = self.store.get(self.name(source))
        # A clip that is read whole has the same states under either policy, and so is looked for first
        if stored is None and (long_clips or self._long_clips) == "window":
            stored = self.store.get(self.name(source, in_windows=True))
        if stored is None:
            return None
        parts, real_tokens = stored["states"].split(stored["lengths"].tolist()), stored["heard"].tolist()
        nothing = [None] * len(parts)
        weights = stored["weights"].tolist() if "weights" in stored else [1.0]
        of_clip = stored.get("layers", nothing), stored.get("functionals", nothing)
        return [EncodedWindow(*window) for window in zip(parts, real_tokens, weights, *of_clip, strict=True)]

    def put(self, source: AudioSource, encoded: EncodedClip) -> None:
        """Store the audio states of a clip."""
        encoded = [window.to(torch.device("cpu")) for window in encoded]
        tensors = {
            "states": torch.cat([window.states for window in encoded]),
            "lengths": torch.tensor([len(window.states) for window in encoded]),
            "heard": torch.tensor([window.real_tokens for window in encoded]),
        }
        if len(encoded) > 1:
            # Only then: a clip that is read whole has the weight 1
            tensors["weights"] = torch.tensor([window.weight for window in encoded], dtype=torch.float64)
        for name in ("layers", "functionals"):
            if getattr(encoded[0], name) is not None:
                tensors[name] = torch.stack([getattr(window, name) for window in encoded])
        # States that are not finite are no result that would be the same again
        if tensors["states"].isfinite().all():
            self.store.put(self.name(source, len(encoded) > 1), tensors)

    def __contains__(self, source: AudioSource) -> bool:
        if self.name(source) in self.store:
            return True
        return self._long_clips == "window" and self.name(source, in_windows=True) in self.store

    def _content(self, source: AudioSource) -> str:
        if not isinstance(source, str | Path):
            return source.sha256 if isinstance(source, StoredClip) else audio_hash(source)
        key = known_by(source)  # a file is read once, unless it was changed
        if key not in self._names:
            self._names[key] = audio_hash(source)
        return self._names[key]


class PairStates:
    """Hidden states of pairs where they enter a layer of the language model, computed once by the layers below it."""

    def __init__(self, judge: EmpathyJudge, clips: ClipStates, first: int, precision: str) -> None:
        """Cache what the layers below `first`, where nothing is trained, compute in a precision of the trainer."""
        assert isinstance(judge.backbone, AudioLanguageModel)
        self._judge, self._clips, self.first = judge, clips, first
        path = judge.backbone.parts["language_model"].layers
        # What these layers compute is not stored, and so their weights are not part of the name
        upper = tuple(f"{path}.{number}." for number in range(first, 10_000))
        norm = f"{judge.backbone.parts['language_model'].path}.norm."
        policy = _WHOLE if judge.settings.long_clips == "refuse" else _IN_WINDOWS
        self._lower = _hash(
            _weights(judge, lambda name: not name.startswith((*upper, norm))),
            in_json(judge.backbone),
            _set_up(judge, policy),
            str(first),
            precision,
        )

    @property
    def _backbone(self) -> AudioLanguageModel:
        # not an attribute of its own: data loading processes get these objects without the judge's weights
        assert isinstance(self._judge.backbone, AudioLanguageModel)
        return self._judge.backbone

    @property
    def lower_layers(self) -> list[nn.Module]:
        """Layers of the language model whose output is stored."""
        return self._backbone.layers[: self.first]

    def name(self, pair: Pair) -> str:
        """The name under which a pair is stored; raises as `ClipStates.name`."""
        question = _hash(str([self._judge.question(pair).ids.tolist()]))
        return _hash(self._lower, question, *(self._clips.name(source) for source in pair.clips))

    def __contains__(self, pair: Pair) -> bool:
        return self.name(pair) in self._clips.store

    @torch.no_grad()
    def compute(self, pairs: Sequence[Pair], inputs: Inputs) -> None:
        """Run the layers below on the inputs of these pairs, on the judge's device, and store what they compute."""
        hidden = states_entering(self._backbone, inputs, self.first).cpu()
        mask, response = inputs.attention_mask.bool().cpu(), inputs.response_mask.cpu()
        # Without windows each pair is one row
        weights = torch.eye(len(pairs)) if inputs.window_weights is None else inputs.window_weights.cpu()
        for pair, of_pair in zip(pairs, weights, strict=True):
            # Padding is not stored: it differs from batch to batch
            rows = of_pair.nonzero().flatten().tolist()
            tensors = {
                "hidden": torch.cat([hidden[row][mask[row]] for row in rows]),
                "response": torch.cat([response[row][mask[row]] for row in rows]),
                "lengths": torch.tensor([int(mask[row].sum()) for row in rows]),
                "shares": of_pair[rows],
            }
            for name, values in (("layers", inputs.layers), ("functionals", inputs.functionals)):
                if values is not None and inputs.clip_rows is not None:
                    clip_rows = inputs.clip_rows[rows]
                    tensors[name], tensors["context"] = values[clip_rows.clamp(min=0)].cpu(), clip_rows[:, 1].cpu() >= 0
            if tensors["hidden"].isfinite().all():
                self._clips.store.put(self.name(pair), tensors)

    def inputs(self, pairs: Sequence[Pair]) -> Inputs:
        """The judge's inputs for pairs that are all stored, on the CPU.

        Raises:
            KeyError: If one is not stored.
        """
        hidden, response, weights, of_clips = [], [], [], []
        for pair in pairs:
            stored = self._clips.store.get(self.name(pair))
            if stored is None:
                raise KeyError(pair.pair_id)
            lengths = stored["lengths"].tolist()
            hidden += stored["hidden"].split(lengths)
            response += stored["response"].split(lengths)
            weights.append(stored["shares"][None])
            of_clips.append(stored)
        side = self._judge.settings.padding_side
        # Padded anew, as the pairs of this batch need it
        mask = _padded([torch.ones(len(rows), dtype=torch.int64) for rows in hidden], side)
        return Inputs(
            input_ids=torch.zeros_like(mask),  # nothing reads them: they are in the hidden states
            attention_mask=mask,
            response_mask=_padded(response, side),
            audio_index=torch.zeros(0, dtype=torch.int64),
            audio_positions=torch.zeros(0, dtype=torch.int64),
            window_weights=torch.block_diag(*weights) if len(hidden) > len(pairs) else None,
            layers=_of_rows("layers", of_clips),
            functionals=_of_rows("functionals", of_clips),
            clip_rows=_clip_rows(of_clips),
            hidden=_padded(hidden, side),
            first=self.first,
            padding_last=side == "right",
        )


def states_entering(backbone: AudioLanguageModel, inputs: Inputs, first: int) -> Tensor:
    """Hidden states `(batch, tokens, hidden)` that enter layer `first`; the layers from there on are not computed."""
    # The module is asked as a whole, so that embeddings and positions are the official ones; the upper layers pass on
    layers = backbone.layers[first:]
    with passing_on(layers), capture_outputs(layers[:1]) as passed_on:
        backbone.hidden_states(replace(inputs, packed=None))
    return passed_on[0]


def _of_rows(name: str, stored: Sequence[Mapping[str, Tensor]]) -> Tensor | None:
    """The stored features of this name of the responses and contexts of all rows, one below the other."""
    return torch.cat([tensors[name].flatten(0, 1) for tensors in stored]) if name in stored[0] else None


def _clip_rows(stored: Sequence[Mapping[str, Tensor]]) -> Tensor | None:
    """Index into `_of_rows` of the response and the context of each row; -1 = no context; None = nothing is stored."""
    if "context" not in stored[0]:
        return None
    with_context = torch.cat([tensors["context"] for tensors in stored])
    response = 2 * torch.arange(len(with_context))
    return torch.stack([response, torch.where(with_context, response + 1, -1)], 1)


def _padded(rows: Sequence[Tensor], side: str) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_side=side)


def _set_up(judge: EmpathyJudge, policy: str) -> str:
    """Hash of all that the results depend on, without the weights, such as the policy for long clips."""
    settings, name = judge.settings, type(judge.network).__name__
    read = settings.head_input
    of_clips = [read.audio, str(read.functionals)] if read.of_clips else []  # stored with the states
    norm = [] if settings.depth_norm else ["without the norm behind the last layer"]
    window = [] if settings.window_seconds is None else [f"a window of the clip and {settings.window_seconds:g} s"]
    return _hash(_VERSION, transformers.__version__, name, settings.attention, policy, *of_clips, *norm, *window)


def _weights(judge: EmpathyJudge, takes_part: Callable[[str], bool]) -> str:
    """Hash over the frozen weights of these names: shape, precision and values at even distances."""
    digest = hashlib.sha256()
    for name, weight in sorted(judge.network.named_parameters()):
        if "lora_" not in name and takes_part(name):
            flat = weight.detach().flatten()
            sample = flat[:: max(1, len(flat) // _SAMPLED)][:_SAMPLED].float().cpu()
            # PEFT renames a layer that it adapts, and its weight stays the same
            plain = name.replace(".base_layer", "")
            digest.update(f"{plain} {tuple(weight.shape)} {weight.dtype} {sample.tolist()}\n".encode())
    return digest.hexdigest()


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
