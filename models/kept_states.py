"""What frozen layers make of clips and pairs, kept in a store under names that stand for exactly that.

A name is a hash of everything that the result depends on: the content of the clips, the question, and of every weight
that takes part its name, shape, precision and a sample of its values; also the version of transformers, whose code runs
them. Judges of one backbone share what they keep, in training and in scoring.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

from ..data_modules.audio import AudioSource, audio_hash
from ..data_modules.schema import Pair
from ..data_modules.stored_clips import StoredClip
from .backbones.common.base import Inputs
from .feature_store import FeatureStore
from .judge import EmpathyJudge, EncodedClip, EncodedWindow, sources_of
from .lower_layers import entering
from .parts import part_of

_VERSION = "1"
"""Changes whenever the same weights and content could give other states."""
_SAMPLED = 64  # values of each weight


class ClipStates:
    """Audio states of clips, which a tower that is not trained makes once."""

    def __init__(self, judge: EmpathyJudge, store: FeatureStore) -> None:
        """Keep what this judge's tower makes.

        Args:
            judge: With a frozen audio tower.
            store: Where.
        """
        self.store = store
        self._tower = _hash(
            _weights(judge, lambda name: part_of(judge.backbone, name) == "audio_tower"), _set_up(judge)
        )
        self._names: dict[tuple[str, int, int], str] = {}

    def name(self, source: AudioSource) -> str:
        """Under which a clip is kept.

        Raises:
            AudioError: If its file cannot be read.
        """
        return _hash(self._tower, self._content(source))

    def get(self, source: AudioSource) -> EncodedClip | None:
        """Audio states of a clip; None where they are not kept.

        Raises:
            AudioError: If its file cannot be read.
        """
        found = self.store.get(self.name(source))
        if found is None:
            return None
        parts = found["states"].split(found["lengths"].tolist())
        return [EncodedWindow(states, heard) for states, heard in zip(parts, found["heard"].tolist(), strict=True)]

    def put(self, source: AudioSource, encoded: EncodedClip) -> None:
        """Keep the audio states of a clip."""
        tensors = {
            "states": torch.cat([window.states for window in encoded]),
            "lengths": torch.tensor([len(window.states) for window in encoded]),
            "heard": torch.tensor([window.heard for window in encoded]),
        }
        self.store.put(self.name(source), tensors)

    def __contains__(self, source: AudioSource) -> bool:
        return self.name(source) in self.store

    def _content(self, source: AudioSource) -> str:
        """Hash of a clip; a file is read once, unless it was changed."""
        if isinstance(source, StoredClip):
            return source.sha256
        facts = None
        if isinstance(source, str | Path):
            with suppress(OSError):  # `audio_hash` says what is wrong
                facts = os.stat(source)
        if facts is None:
            return audio_hash(source)
        key = str(source), facts.st_mtime_ns, facts.st_size
        if key not in self._names:
            self._names[key] = audio_hash(source)
        return self._names[key]


class PairStates:
    """Hidden states of pairs that enter a layer of the language model, which the layers below it make once."""

    def __init__(self, judge: EmpathyJudge, clips: ClipStates, first: int, precision: str) -> None:
        """Keep what the layers below `first` make.

        Args:
            judge: With nothing trained below that layer.
            clips: Of the same judge.
            first: Number of the layer.
            precision: Of the computation, as the trainer calls it.
        """
        self._judge, self._clips, self.first = judge, clips, first
        path = judge.backbone.parts["language_model"].layers
        upper = tuple(f"{path}.{number}." for number in range(first, 10_000))
        norm = f"{judge.backbone.parts['language_model'].path}.norm."
        self._lower = _hash(
            _weights(judge, lambda name: not name.startswith((*upper, norm))), _set_up(judge), str(first), precision
        )
        self._texts: dict[tuple[str | None, tuple[str, ...]], str] = {}

    def name(self, pair: Pair) -> str:
        """Under which a pair is kept.

        Raises:
            AudioError: If a file cannot be read.
        """
        return _hash(self._lower, self._text(pair), *(self._clips.name(source) for source in sources_of(pair)))

    def _text(self, pair: Pair) -> str:
        """Hash of the question about a pair."""
        key = pair.situation, tuple(turn.role for turn in pair.context)
        if key not in self._texts:
            counts = [[self._judge.backbone.tokens_per_state] * (len(pair.context) + 1)]
            ids, _, _ = self._judge.backbone.prepare_text([pair], counts, "right")
            self._texts[key] = _hash(str(ids.tolist()))
        return self._texts[key]

    def __contains__(self, pair: Pair) -> bool:
        return self.name(pair) in self._clips.store

    @torch.no_grad()
    def compute(self, pairs: Sequence[Pair], inputs: Inputs) -> None:
        """Run the lower layers and keep what they make.

        Args:
            pairs: Pairs.
            inputs: Of these pairs, on the device of the judge.
        """
        hidden = entering(self._judge.backbone, inputs, self.first).cpu()
        mask, response = inputs.attention_mask.bool().cpu(), inputs.response_mask.cpu()
        shares = torch.eye(len(pairs)) if inputs.shares is None else inputs.shares.cpu()
        for pair, of_pair in zip(pairs, shares, strict=True):
            rows = of_pair.nonzero().flatten().tolist()
            tensors = {
                "hidden": torch.cat([hidden[row][mask[row]] for row in rows]),
                "response": torch.cat([response[row][mask[row]] for row in rows]),
                "lengths": torch.tensor([int(mask[row].sum()) for row in rows]),
                "shares": of_pair[rows],
            }
            self._clips.store.put(self.name(pair), tensors)

    def inputs(self, pairs: Sequence[Pair]) -> Inputs:
        """What the judge reads for pairs that are all kept, on the CPU.

        Raises:
            KeyError: If one is not.
        """
        hidden, response, shares = [], [], []
        for pair in pairs:
            found = self._clips.store.get(self.name(pair))
            if found is None:
                raise KeyError(pair.pair_id)
            lengths = found["lengths"].tolist()
            hidden += found["hidden"].split(lengths)
            response += found["response"].split(lengths)
            shares.append(found["shares"][None])
        side = self._judge.settings.padding_side
        mask = _padded([torch.ones(len(rows), dtype=torch.int64) for rows in hidden], side)
        return Inputs(
            input_ids=torch.zeros_like(mask),  # nothing reads them: they are in the hidden states
            attention_mask=mask,
            response_mask=_padded(response, side),
            audio_index=torch.zeros(0, dtype=torch.int64),
            audio_places=torch.zeros(0, dtype=torch.int64),
            shares=torch.block_diag(*shares) if len(hidden) > len(pairs) else None,
            hidden=_padded(hidden, side),
            first=self.first,
            padding_last=side == "right",
        )


def _padded(rows: Sequence[Tensor], side: str) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_side=side)


def _set_up(judge: EmpathyJudge) -> str:
    """What beside the weights decides what they make."""
    settings, name = judge.settings, type(judge.network).__name__
    return _hash(_VERSION, transformers.__version__, name, settings.attention, settings.long_clips)


def _weights(judge: EmpathyJudge, takes_part: Callable[[str], bool]) -> str:
    """Hash over the frozen weights of these names: shape, precision and values at even distances."""
    digest = hashlib.sha256()
    for name, weight in sorted(judge.network.named_parameters()):
        if "lora_" not in name and takes_part(name):
            flat = weight.detach().flatten()
            sample = flat[:: max(1, len(flat) // _SAMPLED)][:_SAMPLED].float().cpu()
            plain = name.replace(".base_layer", "")
            digest.update(f"{plain} {tuple(weight.shape)} {weight.dtype} {sample.tolist()}\n".encode())
    return digest.hexdigest()


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
