"""The judge: backbone, pooling, what the head reads, head. Builds its inputs from pairs and turns them into scores."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..audio.decode import AudioSource, decode, resample
from ..audio.prosody import RATE, voiced_shares
from ..core.errors import TextError, UserError
from ..data_modules.schema import Dimension, Pair
from .backbones import load_backbone
from .backbones.base import Backbone, Checkpoint, Question
from .backbones.inputs import Clips, Inputs, Movable
from .backbones.layers import LayerStatistics, no_tf32
from .head_input import HeadInput, build_pooling
from .heads import Head, Prediction, build_head
from .lora import PeftModel, adapt, cast_adapters, trained_in_full, weights_of
from .settings import BuiltSettings, JudgeSettings, LongClips
from .windows import MOST_WINDOWS, ClipInputs, EncodedClip, EncodedWindow, WindowFacts, rows_of_windows

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OWN = ("head.", "head_input.", "pooling.")
"""Prefixes of the names of a judge's own weights, which no backbone has."""

Moved = TypeVar("Moved", bound=Movable)


_KEPT_QUESTIONS, _KEPT_CHARACTERS = 10_000, 1_000
"""Situations whose tokens are remembered, and the longest of them."""
_LONGEST = 3_600.0
"""Most seconds of a clip that may be cut, so that a file of hours is not decoded in vain."""


class EmpathyJudge(nn.Module):
    """Scores pairs of context and response audio on each dimension's rating scale."""

    def __init__(
        self,
        settings: JudgeSettings,
        dimensions: Sequence[Dimension],
        *,
        device_map: Literal["auto"] | None = None,
        weights: bool = True,
        deferred: bool = False,
    ) -> None:
        """Load the backbone, freeze it, and add adapters (fresh) and head (fresh, from torch's seed).

        Args:
            settings: What to build.
            dimensions: What it scores.
            device_map: "auto" spreads the backbone over the GPUs that there are, then main memory.
            weights: False = shapes alone, on the meta device, for counting.
            deferred: Leave weights in their files where possible; whoever shards them calls `deferred.finish`.

        Raises:
            UserError: If the backbone cannot be loaded, a part to train does not exist or the head does not fit the
                scales.
        """
        super().__init__()
        self.settings = settings = BuiltSettings.of(settings)
        self.dimensions = tuple(dimensions)
        self.backbone: Backbone = load_backbone(
            Checkpoint(
                settings.backbone,
                settings.revision,
                DTYPES[settings.dtype],
                settings.attention,
                settings.quantization,
                device_map,
                weights,
                deferred and settings.lora.method != "dora",  # which reads whole weights when it is made
                settings.depth,
                settings.window_seconds,
            )
        )
        if settings.depth is not None:
            self.settings = replace(settings, depth=self.backbone.depth)
        if not settings.depth_norm:
            self.backbone.leave_out_norm()
        self.network = self.backbone.network  # registers its weights with this module
        # PEFT's model holds the whole network: as a module of its own it would register each weight a second time
        self.adapter: tuple[PeftModel | None] = (adapt(self.backbone, settings.lora),)
        self.pooling = build_pooling(settings.pooling, self.backbone.hidden_size)
        # Refused here: the first batch would fail with shapes, which name no setting
        if settings.head_input.audio != "none" and not self.backbone.has_tower:
            layers, name = settings.head_input.audio, self.backbone.name
            raise UserError(f"head_input.audio {layers}: backbone {name} has no audio tower to read; expected none")
        self.head_input = HeadInput(settings.head_input, self.backbone.hidden_size, self.backbone.layer_sizes)
        of_clips = self.head_input.of_clips
        self.head: Head = build_head(settings.head, self.head_input.size, dimensions, standardised=of_clips)
        self.trains_tower = settings.lora.trains_tower  # audio states depend on weights that training changes
        # Only some families pad clips with silence that has tokens: for others the two numbers are one
        self._pads_clips = type(self.backbone).real_audio_tokens is not Backbone.real_audio_tokens
        self._spread = device_map is not None
        if self._spread:  # inputs go to the head's device, and are read on the backbone's first device
            device = next(weight.device for weight in self.network.parameters() if not weight.is_meta)
            for module in self.own_modules().values():
                module.to(device)
        self.members: list[dict[str, Tensor]] = []  # of an ensemble: the trained weights of each member by name
        self._known_questions: dict[Hashable, Question] = {}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # members move to a device with the judge, but are neither parameters nor part of its state
        self.members = [{name: fn(weight) for name, weight in member.items()} for member in self.members]
        return super()._apply(fn, recurse)

    @property
    def device(self) -> torch.device:
        """Where the head is."""
        return self.head.linear.weight.device

    def forward(self, inputs: Inputs) -> Tensor:
        """Scores in rating points `(pairs, dimensions)`, float32."""
        return self.predict(inputs).score

    def predict(self, inputs: Inputs) -> Prediction:
        """Scores and what else the head knows of them `(pairs, dimensions)`, float32."""
        return self.head(self.pooled(inputs))

    def pooled(self, inputs: Inputs, untrained: bool = True) -> Tensor:
        """What the head reads `(pairs, features)`, float32. With `untrained` False, states that no pre-trained weights
        make (`Backbone.untrained_states`) are 0, and the audio states of which they would be made are not read."""
        inputs = inputs if inputs.clips is None else self.with_encoded_audio(inputs)
        # Zeros and not noise: a regression on states of a random fusion would fit that very fusion
        if untrained or not self.backbone.untrained_states:
            read = inputs.response_mask if self.pooling.reads_response_only else None
            pooled = self.pool_states(self.backbone.hidden_states(inputs, read), inputs)
        else:
            pooled = torch.zeros(len(inputs.input_ids), self.backbone.hidden_size, device=self.device)
        with torch.autocast(pooled.device.type, enabled=False):
            return self.head_input(pooled, inputs)

    def clip_features(self, inputs: Inputs) -> tuple[Tensor | None, Tensor | None]:
        """What the head reads of the clips of each row (`HeadInput.raw`); the language model does not run."""
        return self.head_input.raw(self.with_encoded_audio(inputs))

    def with_encoded_audio(self, inputs: Inputs) -> Inputs:
        """The same inputs with their clips encoded."""
        if inputs.clips is None:
            return inputs
        states, layers = self._encoded(inputs.clips)
        return replace(inputs, clips=None, audio_states=states, layers=layers)

    def pool_states(self, hidden: Tensor, inputs: Inputs) -> Tensor:
        """The backbone's states `(rows, tokens, hidden)` as one vector for each row `(rows, hidden)`, float32."""
        hidden = hidden.to(self.device)
        with torch.autocast(hidden.device.type, enabled=False):
            return self.pooling(hidden.float(), inputs.attention_mask, inputs.response_mask)

    def build_inputs(self, pairs: Sequence[Pair], audio: Mapping[AudioSource, EncodedClip] | None = None) -> Inputs:
        """Decode the clips of one or more pairs and build what `forward` reads, on the CPU. With `audio`, their states
        from `encode_clips`, no clip is decoded, and the states stay where they are.

        Raises:
            AudioError: If a clip cannot be read, or exceeds the maximum audio length and may not be cut.
            TextError: If a situation cannot be read, or a pair has more tokens than the backbone has positions.
        """
        sources = [pair.clips for pair in pairs]
        # A context of many responses is decoded and encoded once
        distinct = list(dict.fromkeys(itertools.chain(*sources)))
        clips = states = layers = None
        if audio is None:
            decoded = [self.decode(source) for source in distinct]
            facts, clips = self.clip_inputs(decoded)
        else:
            encoded = [audio[source] for source in distinct]
            if len({own.states.device for clip in encoded for own in clip}) > 1:  # some had no room on the device
                encoded = [[own.to(self.device) for own in clip] for clip in encoded]
            facts = [[WindowFacts(len(own.states), *own[1:3], own.functionals) for own in clip] for clip in encoded]
            states = torch.cat([own.states for clip in encoded for own in clip])
            if self.settings.head_input.audio != "none":
                layers = torch.stack([own.layers for clip in encoded for own in clip if own.layers is not None])
        windows = list(itertools.chain(*facts))
        if len(windows) == len(distinct):  # nearly always: no clip is cut, and a pair is one row
            place = {source: number for number, source in enumerate(distinct)}
            rows, asked, weights = [[place[source] for source in row] for row in sources], pairs, None
        else:
            rows, asked, weights = rows_of_windows(pairs, sources, dict(zip(distinct, facts, strict=True)))
        counts = [[windows[number].tokens for number in row] for row in rows]
        for pair, row in zip(asked, counts, strict=True):
            try:
                self.check_text(pair, sum(row))
            except TextError as error:
                raise error.at(f"pair {pair.pair_id!r}") from None
        ids, mask, is_audio = self.ask(asked, counts)
        # the response is the last clip of a row, its padding the last of its tokens
        from_end = is_audio.flip(-1).cumsum(-1).flip(-1)
        last = torch.tensor([windows[row[-1]].tokens for row in rows])[:, None]
        padding = last - torch.tensor([windows[row[-1]].real for row in rows])[:, None]
        tokens = torch.arange(sum(window.tokens for window in windows)).split([window.tokens for window in windows])
        clip_rows = [[row[-1], row[-2] if len(row) > 1 else -1] for row in rows]
        functionals = None
        if self.settings.head_input.functionals:
            functionals = torch.stack([window.functionals for window in windows if window.functionals is not None])
        inputs = Inputs(
            input_ids=ids,
            attention_mask=mask,
            response_mask=is_audio & (from_end <= last) & (from_end > padding),
            audio_index=torch.cat([tokens[number] for row in rows for number in row]),
            audio_positions=is_audio.flatten().nonzero()[:, 0],
            clips=clips,
            audio_states=states,
            layers=layers,
            functionals=functionals,
            clip_rows=torch.tensor(clip_rows) if self.head_input.of_clips else None,
            window_weights=weights,
            padding_last=self.settings.padding_side == "right",
        )
        return inputs if len(rows) == 1 else replace(inputs, packed=self.backbone.packed(inputs))

    def ask(self, pairs: Sequence[Pair], audio_tokens: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, attention mask and mask of audio tokens, each `(pairs, tokens)`, of what is asked about pairs;
        `audio_tokens` are for each pair those of its context turns and, last, of its response."""
        rows = []
        for pair, counts in zip(pairs, audio_tokens, strict=True):
            question = self.question(pair)
            times = np.ones_like(question.ids)
            times[question.is_audio] = counts
            rows.append([part.repeat(times) for part in question])
        shape, on_right = (len(rows), max(len(ids) for ids, _ in rows)), self.settings.padding_side == "right"
        ids, mask, is_audio = np.full(shape, self.backbone.padding_id), np.zeros(shape, np.int64), np.zeros(shape, bool)
        for number, (own, audio) in enumerate(rows):
            place = number, slice(len(own)) if on_right else slice(shape[1] - len(own), None)
            ids[place], mask[place], is_audio[place] = own, 1, audio
        return torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(is_audio)

    def count_tokens(self, pairs: Sequence[Pair], seconds: Mapping[AudioSource, float]) -> np.ndarray:
        """Number of tokens that the backbone reads for each pair `(pairs,)`: those of the question and of its clips.

        A pair that is read in windows counts the tokens of all its rows. Exact to the one or two that resampling may
        shift.
        """
        # Exact, since batches are planned by it: a pair that is longer than planned would pass the memory
        rows = (self.rows_of(pair, seconds) for pair in pairs)
        return np.array(
            [number * (self.question_tokens(pair) + audio) for pair, (number, audio) in zip(pairs, rows, strict=True)],
            dtype=np.int64,
        )

    def rows_of(self, pair: Pair, seconds: Mapping[AudioSource, float]) -> tuple[int, int]:
        """How many rows a pair makes, one for each combination of windows, and the audio tokens of each."""
        lengths = [math.ceil(seconds[source] * self.backbone.sampling_rate) for source in pair.clips]
        windows = [self._windows(samples, self.settings.long_clips) for samples in lengths]
        audio = sum(self.backbone.audio_tokens(samples) for _, samples in windows)
        return math.prod(number for number, _ in windows), audio

    def check_text(self, pair: Pair, audio_tokens: int = 0) -> None:
        """Check that the backbone can read the question about a pair, together with so many audio tokens.

        Raises:
            TextError: If not; the text does not name the pair.
        """
        tokens, most = self.question_tokens(pair) + audio_tokens, self.backbone.max_tokens
        if most is not None and tokens > most:
            raise TextError(
                f"question and clips make {tokens:,} tokens, and the backbone reads {most:,}; expected a shorter "
                "situation, or shorter or fewer clips",
                "too long",
            )

    def question_tokens(self, pair: Pair) -> int:
        """Tokens of the question about a pair, without those of its clips."""
        return len(self.question(pair).ids) - len(pair.context) - 1

    def question(self, pair: Pair) -> Question:
        """`Backbone.question`, made once. Where the pooling reads the response alone, tokens after it are left out: the
        states of a causal model do not depend on what follows."""
        known, key = self._known_questions, (pair.situation, tuple(turn.role for turn in pair.context))
        if isinstance(pair.situation, str | None) and (remembered := known.get(key)) is not None:
            return remembered
        if pair.situation is not None:
            self.backbone.check_situation(pair.situation)
        question = self.backbone.question(pair)
        if self.pooling.reads_response_only:
            end = np.flatnonzero(question.is_audio)[-1] + 1
            question = Question(question.ids[:end], question.is_audio[:end])
        # Long situations are mostly told once, and would fill the memory
        if len(pair.situation or "") <= _KEPT_CHARACTERS:
            if len(known) >= _KEPT_QUESTIONS:
                known.clear()
            known[key] = question
        return question

    def _windows(self, samples: int, long_clips: LongClips) -> tuple[int, int]:
        """How many windows a clip is cut into, and the samples of each."""
        limit = math.ceil(self.backbone.max_seconds * self.backbone.sampling_rate)  # resampling rounds up, too
        number = 1 if long_clips == "refuse" else max(1, math.ceil(samples / limit))
        return number, math.ceil(samples / number)

    def on_device(self, inputs: Moved) -> Moved:
        """Inputs, which are built on the CPU, where the judge is."""
        return inputs if self.device.type == "cpu" else inputs.to(self.device)

    def encode_clips(self, clips: Sequence[Sequence[np.ndarray]]) -> list[EncodedClip]:
        """Encode decoded clips, each a list of windows, with the audio tower as it is now, on the judge's device."""
        return self.encode_prepared(*self.clip_inputs(clips))

    def clip_inputs(self, clips: Sequence[Sequence[np.ndarray]]) -> ClipInputs:
        """What the host knows of the windows of each decoded clip, and what the tower reads of them, on the CPU."""
        backbone, rate, facts = self.backbone, self.backbone.sampling_rate, []
        for windows in clips:
            weights = [1.0] if len(windows) == 1 else voiced_shares(windows, rate)
            of_clip = []
            for samples, weight in zip(windows, weights, strict=True):
                measures, tokens = None, backbone.audio_tokens(len(samples))
                real = backbone.real_audio_tokens(len(samples)) if self._pads_clips else tokens
                if self.settings.head_input.functionals:
                    from ..audio.functionals import delivery  # with tables that most judges do without

                    measures = torch.from_numpy(delivery(resample(samples, rate, RATE))).float()
                of_clip.append(WindowFacts(tokens, real, weight, measures))
            facts.append(of_clip)
        return facts, backbone.prepare_clips(list(itertools.chain(*clips)))

    @torch.no_grad()
    def encode_prepared(self, clips: list[list[WindowFacts]], prepared: Clips) -> list[EncodedClip]:
        """`encode_clips` of what `clip_inputs` made."""
        windows = list(itertools.chain(*clips))
        states, layers = self._encoded(self.on_device(prepared))
        of_windows = states.split([window.tokens for window in windows])
        of_layers = itertools.repeat(None) if layers is None else layers
        encoded = (
            EncodedWindow(own, window.real, window.weight, layer, window.functionals)
            for own, window, layer in zip(of_windows, windows, of_layers, strict=False)
        )
        return [list(itertools.islice(encoded, len(clip))) for clip in clips]

    def _encoded(self, clips: Clips) -> tuple[Tensor, Tensor | None]:
        """Audio states, and what the head reads of the encoder's layers.

        States of a tower that is not trained are always computed in the precision of its weights, so that cached ones
        can be used in training and in scoring.
        """
        statistics = LayerStatistics() if self.settings.head_input.audio != "none" else None
        # States of a GPU then differ from those of a CPU by rounding alone
        with no_tf32():
            if self.trains_tower:
                states = self.backbone.encode_audio(clips, statistics)
            else:
                with torch.no_grad(), torch.autocast(clips.features.device.type, enabled=False):
                    states = self.backbone.encode_audio(clips, statistics)
        device = clips.features.device  # the layers of a judge that is spread may end on another
        return states.to(device), None if statistics is None else statistics.clips.to(device)

    def trainable(self) -> dict[str, Tensor]:
        """Names and values of the weights that training changes: of the backbone, pooling, head."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def trained(self) -> dict[str, Tensor]:
        """As `trainable`, but also in a loaded judge, in which no weight is trainable any more; and with the buffers
        that are taken from the training split once: scales, landmarks."""
        # By name and not by `requires_grad`, which a judge that was loaded to score has nowhere
        in_full = {f"network.{name}" for name in self.trained_in_full()}
        trained = {
            name: weight
            for name, weight in self.named_parameters()
            if name in in_full or "lora_" in name or name.startswith(OWN)
        }
        return trained | {f"head_input.{name}": value for name, value in self.head_input.named_buffers()}

    def compare_with(self, landmarks: Tensor, block_scale: Tensor, beside: bool = False) -> None:
        """Let the head read how near a pair is to each landmark `(landmarks, features)` in place of features, and with
        `beside` also the state of the language model. The head is new. See `HeadInput`.
        """
        # Scales that were taken from the training split stay: the new input reads the same features
        before, device = self.head_input, self.device
        settings = replace(self.settings.head_input, landmarks=len(landmarks), beside_landmarks=beside)
        self.settings = replace(self.settings, head_input=settings)
        self.head_input = HeadInput(settings, self.backbone.hidden_size, self.backbone.layer_sizes).to(device)
        self.head_input.load_state_dict(before.state_dict(), strict=False)
        self.head_input.landmarks.copy_(landmarks)
        self.head_input.block_scale.copy_(block_scale)
        self.head = build_head(self.settings.head, self.head_input.size, self.dimensions, standardised=True).to(device)

    def own_modules(self) -> dict[str, nn.Module]:
        """The modules that are not part of the backbone, by name."""
        return {"pooling": self.pooling, "head_input": self.head_input, "head": self.head}

    @torch.no_grad()
    def use(self, weights: Mapping[str, Tensor]) -> None:
        """Put these values into the weights that training changes, such as those of a member."""
        trained = self.trained()
        for name, weight in weights.items():
            trained[name].copy_(weight)

    def merge(self) -> None:
        """Make adapters cheap in a judge that only scores from now on.

        In float32 they are merged into the frozen weights, in place: exact to rounding, and one matrix product instead
        of three. An ensemble, whose members take turns, and a backbone that is spread keep theirs. In half precision
        the sum would lose up to a third of a small adapter: it takes the dtype of the states, as autocast does.
        """
        handle, dtype = self.adapter[0], DTYPES[self.settings.dtype]
        if dtype != torch.float32:
            cast_adapters(self.backbone, dtype)
        elif handle is not None and self.settings.quantization == "none" and not self._spread and not self.members:
            handle.base_model.merge_adapter()  # pyright: ignore[reportCallIssue] of LoraModel

    def trained_in_full(self) -> dict[str, Tensor]:
        """Names (inside the network) and values of the backbone's own weights that training changes."""
        names = trained_in_full(self.backbone, self.settings.lora)  # an export replaces the settings
        return {key: weight for name in names for key, weight in weights_of(self.backbone, name)}

    def longest_clip(self, long_clips: LongClips) -> float:
        """Seconds of the longest clip that is read."""
        limit = self.backbone.max_seconds
        return max(limit, min(limit * MOST_WINDOWS, _LONGEST)) if long_clips == "window" else limit

    def decode(self, source: AudioSource, long_clips: LongClips | None = None) -> list[np.ndarray]:
        """Windows `(samples,)` of a clip at the backbone's rate: one, unless the clip is too long and may be cut (by
        default as in training).

        Raises:
            AudioError: If the clip cannot be read, exceeds the maximum audio length and may not be cut, or lasts longer
                than an hour or `MOST_WINDOWS` windows.
        """
        rate, long_clips = self.backbone.sampling_rate, long_clips or self.settings.long_clips
        samples = decode(source, rate, self.longest_clip(long_clips))
        if len(samples) <= self.backbone.max_seconds * rate:
            return [samples]
        # Equal parts: a last window of a fraction of a second would hold no speech
        return np.array_split(samples, self._windows(len(samples), long_clips)[0])
