"""Stage 1: the audio tower learns to hear delivery, by direct regression on what is known or measured.

Language-model loss from the start learns several times slower: the tower would have to find pitch through the words of
the answers.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from ...models.backbones.audio_language_model import AudioLanguageModel
from ...models.backbones.base import Clips
from .corpus import LABELS, MEASURES, ClipStore

_LEVEL = MEASURES.index("level")
_BATCH = 32
_GAIN_DB = 6.0  # random gain up and down, so that loudness is heard as level and not as a property of voices
_DB_PER_MEL = 40.0  # the extractor stores log10(power) / 4


class Readouts(nn.Module):
    """Linear readouts of delivery; they teach the tower and are thrown away.

    Clip-level targets are read from the mean over tokens and from one random token, so that every token learns to carry
    what the clip as a whole sounds like; frame-level ones from each token.
    """

    def __init__(self, width: int, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.mean, self.deviation = nn.Buffer(mean), nn.Buffer(deviation)
        self.measures = nn.Linear(width, len(MEASURES))
        self.labels = nn.ModuleList([nn.Linear(width, len(values)) for values in LABELS.values()])
        self.frames = nn.Linear(width, 3)

    def clip_loss(self, states: Tensor, measures: Tensor, labels: Tensor) -> Tensor:
        """Loss of clip-level readouts from `(clips, width)`."""
        wanted = (measures - self.mean) / self.deviation
        known = ~wanted.isnan()
        error = nn.functional.smooth_l1_loss(
            self.measures(states), wanted.nan_to_num().clamp(-3, 3), beta=0.3, reduction="none"
        )
        loss = 2 * (error * known).sum() / known.sum()
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


def train_tower(backbone: AudioLanguageModel, corpus: ClipStore, epochs: int, seed: int) -> None:
    """Train the audio tower in place."""
    generator = torch.Generator().manual_seed(seed)
    tower = backbone.network.get_submodule(backbone.parts["audio_tower"].path)
    readouts = Readouts(backbone.audio_size, *normalisation(corpus))
    weights = [weight for weight in tower.parameters() if weight.requires_grad] + list(readouts.parameters())
    optimizer = torch.optim.AdamW(weights, lr=2e-3, weight_decay=0.02, betas=(0.9, 0.98))
    batches = -(-len(corpus) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=epochs * batches, pct_start=0.08)
    start = time.monotonic()
    for epoch in range(epochs):
        total = 0.0
        for indices in batches_by_length(corpus, _BATCH, generator):
            loss = _loss(backbone, readouts, corpus, indices, generator)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        seconds = time.monotonic() - start
        print(f"tower epoch {epoch + 1}: loss {total / batches:.3f}, {seconds:.0f} s", flush=True)


def normalisation(corpus: ClipStore) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each measure `(measures,)`, unknown values left out."""
    count = (~corpus.measures.isnan()).sum(0)
    mean = corpus.measures.nansum(0) / count
    return mean, ((corpus.measures - mean).nan_to_num().square().sum(0) / count).sqrt()


def batches_by_length(corpus: ClipStore, size: int, generator: torch.Generator) -> list[list[int]]:
    """Batches of clips of similar length, in random order."""
    lengths = torch.tensor([corpus.tokens(i) for i in range(len(corpus))])
    order = (lengths + 6 * torch.rand(len(corpus), generator=generator)).argsort().tolist()
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _loss(backbone, readouts: Readouts, corpus: ClipStore, indices: list[int], generator: torch.Generator) -> Tensor:
    mel, lengths, targets = corpus.batch(indices)
    gain = (torch.rand(len(indices), generator=generator) * 2 - 1) * _GAIN_DB
    measures = corpus.measures[indices].clone()
    measures[:, _LEVEL] += gain
    targets[:, :, 1] += gain[:, None]
    states = backbone.encode_audio(Clips(mel + gain[:, None, None] / _DB_PER_MEL, lengths.tolist()))
    counts = [corpus.tokens(i) for i in indices]
    clips = states.split(counts)
    mean = torch.stack([clip.mean(0) for clip in clips])
    one = torch.stack([clip[torch.randint(len(clip), (), generator=generator)] for clip in clips])
    labels = corpus.labels[indices]
    flat = torch.cat([row[:count] for row, count in zip(targets, counts, strict=True)])
    return (
        readouts.clip_loss(mean, measures, labels)
        + 0.5 * readouts.clip_loss(one, measures, labels)
        + readouts.frame_loss(states, flat)
    )
