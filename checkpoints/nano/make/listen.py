"""Stage 1: the audio tower learns to hear delivery, by direct regression on what is known or measured.

Language-model loss from the start learns several times slower: the tower would have to find pitch through the words of
the answers. Each token must also give its own spectrum: without it, what a voice sounds like is lost from layer to
layer (8,000 clips twice, ridge on the last layer, `emodb` valence: 0.50 in place of 0.53). To mask spans of the
spectrogram and ask for the spectrum behind them did not help (0.52). Where a teacher has heard the clips, the tower
must also give what a head would read of the teacher (`Lessons`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.fft
import torch
from empathy_judge.checkpoints.nano.make.architecture import MEL_BINS
from empathy_judge.checkpoints.nano.make.clips import CORE, FRAMES_PER_TOKEN, LABELS, LEVELS, MEASURES, ClipStore
from empathy_judge.core.files import replace_file
from empathy_judge.models.backbones.audio_language_model import AudioLanguageModel
from empathy_judge.models.backbones.inputs import Clips
from empathy_judge.models.backbones.layers import LayerStatistics
from torch import Tensor, nn

_BATCH = 32
_GAIN_DB = 6.0  # random gain up and down, so that loudness is heard as level and not as a property of voices
_DB_PER_MEL = 40.0  # the extractor stores log10(power) / 4
_CEPSTRA = 24
_AXES = 256  # of the teacher's states, and of their statistics
_LESSONS = torch.tensor([6.0, 9.0])  # weights of their losses: with 20 and 30 valence is lost
_TRANSFORM = np.asarray(scipy.fft.dct(np.eye(MEL_BINS, dtype=np.float32), axis=0, norm="ortho"))
_DCT = torch.from_numpy(_TRANSFORM[:_CEPSTRA].T.copy())


class Readouts(nn.Module):
    """Linear readouts of delivery; they teach the tower and are thrown away.

    Clip-level targets are read from the mean over tokens and from one random token, so that every token learns to carry
    what the clip as a whole sounds like; frame-level ones from each token.
    """

    def __init__(self, width: int, corpus: ClipStore) -> None:
        super().__init__()
        self.mean, self.deviation = map(nn.Buffer, normalisation(corpus))
        self.spectrum_mean, self.spectrum_deviation = map(nn.Buffer, spectrum_normalisation(corpus))
        self.measures = nn.Linear(width, len(MEASURES))
        self.labels = nn.ModuleList([nn.Linear(width, len(values)) for values in LABELS.values()])
        self.frames = nn.Linear(width, 3)
        self.spectrum = nn.Linear(width, _CEPSTRA)

    def clip_loss(self, states: Tensor, measures: Tensor, labels: Tensor) -> Tensor:
        """Loss of clip-level readouts from `(clips, width)`."""
        wanted = (measures - self.mean) / self.deviation
        known = ~wanted.isnan()
        error = nn.functional.smooth_l1_loss(
            self.measures(states), wanted.nan_to_num().clamp(-3, 3), beta=0.3, reduction="none"
        )
        loss = torch.zeros(())
        for part in (slice(None, len(CORE)), slice(len(CORE), None)):  # six and 158: each group counts as much
            loss = loss + 2 * (error * known)[:, part].sum() / known[:, part].sum()
        for column, layer in enumerate(self.labels):
            wrong = nn.functional.cross_entropy(layer(states), labels[:, column], ignore_index=-1, reduction="sum")
            loss = loss + 0.4 * wrong / (labels[:, column] >= 0).sum().clamp(min=1)
        return loss

    def frame_loss(self, states: Tensor, targets: Tensor) -> Tensor:
        """Loss of token-level pitch, voicing and level from `(tokens, width)` against `(tokens, 2)`."""
        pitch, voicing, level = self.frames(states).unbind(-1)
        voiced = ~targets[:, 0].isnan()
        loss = nn.functional.smooth_l1_loss(pitch[voiced], targets[voiced, 0] * 2, beta=0.2)
        loss = loss + 0.3 * nn.functional.binary_cross_entropy_with_logits(voicing, voiced.float())
        return loss + 0.3 * nn.functional.smooth_l1_loss(level, (targets[:, 1] + 35) / 15)

    def spectrum_loss(self, states: Tensor, wanted: Tensor) -> Tensor:
        """Loss of token-level `cepstra` from `(tokens, width)` against `(tokens, cepstra)`."""
        wanted = ((wanted - self.spectrum_mean) / self.spectrum_deviation).clamp(-3, 3)
        return nn.functional.smooth_l1_loss(self.spectrum(states), wanted, beta=0.3)


class Lessons(nn.Module):
    """Linear readouts of what the teacher says; as `Readouts`, they are thrown away.

    Each token must give the teacher's states there. What a head reads of the tower, the mean over layers of their
    standardised statistics over time (`HeadInput`), must give what it would read of the teacher.
    """

    def __init__(self, width: int, layers: int, corpus: ClipStore) -> None:
        super().__init__()
        self.states = Coordinates(corpus.states[:: max(1, len(corpus.states) // 40_000)].float())
        summary = corpus.summary.float()
        self.summary_mean, self.summary_deviation = nn.Buffer(summary.mean(0)), nn.Buffer(summary.std(0) + 1e-6)
        self.summary = Coordinates(self._mixed(summary))
        self.of_tokens = nn.Linear(width, _AXES)
        self.standardised = nn.BatchNorm1d(layers * 2 * width, affine=False)
        self.of_mix = nn.Linear(2 * width, _AXES)

    def _mixed(self, summary: Tensor) -> Tensor:
        return ((summary - self.summary_mean) / self.summary_deviation).mean(1)

    def loss(self, states: Tensor, statistics: Tensor, corpus: ClipStore, indices: list[int]) -> Tensor:
        """Squared errors `(2,)` of states `(tokens, width)` and of statistics `(clips, layers, 2, width)`; 1 = whoever
        gives the mean of the corpus."""
        wanted = torch.cat([corpus.states[corpus.token_starts[i] : corpus.token_starts[i + 1]] for i in indices])
        tokens = nn.functional.mse_loss(self.of_tokens(states), self.states(wanted.float()))
        mix = self.standardised(statistics.flatten(1)).view(statistics.flatten(2).shape).mean(1)
        summary = self.summary(self._mixed(corpus.summary[indices].float()))
        return torch.stack([tokens, nn.functional.mse_loss(self.of_mix(mix), summary)])


class Coordinates(nn.Module):
    """Values on their principal axes, divided by the fourth root of each variance: what varies most counts most, and
    the rest is not lost. Their mean square over `values` `(rows, size)` is 1."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.mean, self.deviation = nn.Buffer(values.mean(0)), nn.Buffer(values.std(0) + 1e-6)
        spread, axes = torch.svd_lowrank((values - self.mean) / self.deviation, min(_AXES, *values.shape), niter=4)[1:]
        roots = (spread / len(values) ** 0.5).sqrt()
        missing = _AXES - len(roots)  # of a corpus of few clips
        self.axes = nn.Buffer(nn.functional.pad(axes / roots / roots.square().mean().sqrt(), (0, missing)))

    def forward(self, values: Tensor) -> Tensor:
        """Coordinates `(rows, axes)` of values `(rows, size)`."""
        return ((values - self.mean) / self.deviation) @ self.axes


def cepstra(mel: Tensor) -> Tensor:
    """The cosine transform of log-mel spectrograms `(batch, bins, frames)`, mean of each token's frames `(batch,
    tokens, cepstra)`."""
    transformed = (mel.transpose(1, 2) @ _DCT).transpose(1, 2)
    return nn.functional.avg_pool1d(transformed, FRAMES_PER_TOKEN).transpose(1, 2)


def train_tower(backbone: AudioLanguageModel, corpus: ClipStore, epochs: int, seed: int, kept: Path) -> None:
    """Train the audio tower in place. An interrupted call is continued by the next one from the last epoch in `kept`
    and ends as if it had not been interrupted."""
    generator = torch.Generator().manual_seed(seed)
    tower = backbone.network.get_submodule(backbone.parts["audio_tower"].path)
    torch.manual_seed(seed)
    readouts = nn.ModuleList([Readouts(backbone.audio_size, corpus)])
    if corpus.summary.shape[1]:
        layers, width = backbone.layer_sizes
        readouts.append(Lessons(width, layers, corpus))
    weights = [weight for weight in tower.parameters() if weight.requires_grad] + list(readouts.parameters())
    optimizer = torch.optim.AdamW(weights, lr=2e-3, weight_decay=0.02, betas=(0.9, 0.98))
    batches = -(-len(corpus) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=epochs * batches, pct_start=0.08)
    state = {"tower": tower, "readouts": readouts, "optimizer": optimizer, "schedule": schedule}
    first = resume(kept, state, generator)
    start = time.monotonic()
    for epoch in range(first + 1, epochs + 1):
        total, lessons = 0.0, torch.zeros(2)
        for indices in batches_by_length(corpus, _BATCH, generator):
            loss, taught = _loss(backbone, readouts, corpus, indices, generator)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
            lessons += taught
        keep(kept, state, epoch, generator)
        seconds = time.monotonic() - start
        means = "" if len(readouts) == 1 else "lessons {:.3f} and {:.3f}, ".format(*(lessons / batches))
        print(f"tower epoch {epoch}: loss {total / batches:.3f}, {means}{seconds:.0f} s", flush=True)


def keep(file: Path, state: Mapping[str, Any], done: int, generator: torch.Generator | None = None) -> None:
    """Write what training goes on from after so many epochs or steps."""
    saved = {name: part.state_dict() for name, part in state.items()} | {"done": done}
    if generator is not None:
        saved["generator"] = generator.get_state()
    replace_file(file, lambda temporary: torch.save(saved, temporary))


def resume(file: Path, state: Mapping[str, Any], generator: torch.Generator | None = None) -> int:
    """Take up what `keep` wrote, if there is such a file.

    Returns:
        Epochs or steps that are done.
    """
    if not file.exists():
        return 0
    saved = torch.load(file, weights_only=True)
    for name, part in state.items():
        part.load_state_dict(saved[name])
    if generator is not None:
        generator.set_state(saved["generator"])
    return saved["done"]


def normalisation(corpus: ClipStore) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each measure `(measures,)`, unknown values left out."""
    count = (~corpus.measures.isnan()).sum(0)
    mean = corpus.measures.nansum(0) / count
    return mean, ((corpus.measures - mean).nan_to_num().square().sum(0) / count).sqrt()


def spectrum_normalisation(corpus: ClipStore) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of `cepstra` `(cepstra,)` in about 500 clips."""
    sample = range(0, len(corpus), max(1, len(corpus) // 500))
    tokens = torch.cat([cepstra(corpus.batch([clip])[0])[0, : corpus.tokens(clip)] for clip in sample])
    return tokens.mean(0), tokens.std(0)


def batches_by_length(corpus: ClipStore, size: int, generator: torch.Generator) -> list[list[int]]:
    """Batches of clips of similar length, in random order."""
    lengths = torch.tensor([corpus.tokens(i) for i in range(len(corpus))])
    order = (lengths + 6 * torch.rand(len(corpus), generator=generator)).argsort().tolist()
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _loss(
    backbone: AudioLanguageModel,
    readouts: nn.ModuleList,
    corpus: ClipStore,
    indices: list[int],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and those of the lessons that are in it."""
    mel, lengths, targets = corpus.batch(indices)
    gain = (torch.rand(len(indices), generator=generator) * 2 - 1) * _GAIN_DB
    measures = corpus.measures[indices].clone()
    measures[:, LEVELS] += gain[:, None]
    targets[:, :, 1] += gain[:, None]
    mel = mel + gain[:, None, None] / _DB_PER_MEL
    statistics = LayerStatistics()
    states = backbone.encode_audio(Clips(mel, lengths.tolist()), statistics)
    counts = [corpus.tokens(i) for i in indices]
    clips = states.split(counts)
    mean = torch.stack([clip.mean(0) for clip in clips])
    random_token = torch.stack([clip[torch.randint(len(clip), (), generator=generator)] for clip in clips])
    labels = corpus.labels[indices]

    def real(rows: Tensor) -> Tensor:
        return torch.cat([row[:count] for row, count in zip(rows, counts, strict=True)])

    own: Any = readouts[0]
    loss = (
        own.clip_loss(mean, measures, labels)
        + 0.5 * own.clip_loss(random_token, measures, labels)
        + own.frame_loss(states, real(targets))
        + 2 * own.spectrum_loss(states, real(cepstra(mel)))
    )
    if len(readouts) == 1:
        return loss, torch.zeros(2)
    lessons: Any = readouts[1]
    taught = lessons.loss(states, statistics.clips, corpus, indices)
    return loss + (_LESSONS * taught).sum(), taught.detach()
