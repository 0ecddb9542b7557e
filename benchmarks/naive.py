"""The baseline: an audio-LLM trained to rate as one writes it today with plain transformers and PEFT.

The generation model with its LM head and all hidden states, the processor's padding of every clip to the full window,
every clip encoded in every step, random batches of fixed size padded to their longest, LoRA by a regular expression,
a head on the mean over the response's audio tokens, AdamW, squared error. The model is the product's: the same question
in the same template, the same head (layer norm, linear, sigmoid over the scale).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import soundfile
import torch
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.models.backbones.audio_language_model import messages
from empathy_judge.models.heads import Prediction
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.predictor import Predictor
from empathy_judge.train.run import train
from lightning.pytorch.callbacks import LambdaCallback
from peft import LoraConfig, get_peft_model
from timing import Turns
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoProcessor, Qwen2AudioForConditionalGeneration

RANK, ALPHA = 16, 32
LEARNING_RATE, HEAD_LEARNING_RATE, WEIGHT_DECAY = 2e-4, 1e-3, 0.01
MINIMUM, MAXIMUM = 1.0, 5.0


@dataclass
class NaiveBatch:
    """Inputs of the model, and the targets `(pairs,)` as shares of the scale."""

    inputs: dict[str, Tensor]
    response: Tensor
    targets: Tensor

    def to(self, device: torch.device) -> NaiveBatch:
        """The same batch on another device."""
        inputs = {name: value.to(device) for name, value in self.inputs.items()}
        return NaiveBatch(inputs, self.response.to(device), self.targets.to(device))


class NaiveRater(nn.Module):
    """Backbone with LoRA, and head."""

    def __init__(self, folder: str, layers: Sequence[int] | None, device: torch.device, backbone: Any = None) -> None:
        """Load a checkpoint, unless its generation model is in memory already, and adapt these layers; None = all."""
        super().__init__()
        self.device = device
        if backbone is None:
            dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
            backbone = Qwen2AudioForConditionalGeneration.from_pretrained(folder, dtype=dtype)
        chosen = r"\d+" if layers is None else "|".join(map(str, layers))
        pattern = rf".*language_model\.layers\.(?:{chosen})\.\w+\.(?:q|k|v|o|gate|up|down)_proj"
        config = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=pattern)
        self.backbone: Any = get_peft_model(backbone, config).to(device)
        size = backbone.config.text_config.hidden_size
        self.norm, self.linear = nn.LayerNorm(size).to(device), nn.Linear(size, 1).to(device)

    def forward(self, batch: NaiveBatch) -> Tensor:
        """Scores as shares of the scale `(pairs,)`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            hidden = self.backbone(**batch.inputs, output_hidden_states=True).hidden_states[-1]
        mask = batch.response[..., None].float()
        pooled = (hidden.float() * mask).sum(1) / mask.sum(1)
        return self.linear(self.norm(pooled)).sigmoid()[:, 0]

    @torch.no_grad()
    def begin_with(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the values of all that the product trains, under its names (`EmpathyJudge.trainable`)."""
        names = {"head.norm.": "norm.", "head.linear.": "linear.", "network.": "backbone.base_model.model.model."}
        trainable = {name: weight for name, weight in self.named_parameters() if weight.requires_grad}
        for name, value in weights.items():
            prefix = next(prefix for prefix in names if name.startswith(prefix))
            trainable.pop(names[prefix] + name.removeprefix(prefix)).copy_(value)
        assert not trainable, f"trained here and not there: {list(trainable)[:3]}"

    def optimizer(self) -> torch.optim.AdamW:
        """AdamW with a higher rate for the fresh head; no decay of vectors."""
        adapter = [weight for name, weight in self.named_parameters() if "lora_" in name]
        groups = [
            {"params": adapter, "lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY},
            {"params": [self.linear.weight], "lr": HEAD_LEARNING_RATE, "weight_decay": WEIGHT_DECAY},
            {"params": [self.linear.bias, *self.norm.parameters()], "lr": HEAD_LEARNING_RATE, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups)

    def step(self, batch: NaiveBatch, optimizer: torch.optim.Optimizer) -> float:
        """One step of training; returns the loss before it."""
        loss = (self(batch) - batch.targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def train_in_turns(self, batches: Iterable[NaiveBatch], optimizer: torch.optim.Optimizer, turns: Turns) -> None:
        """A step for each batch, until no further turn is wanted."""
        turns.wait()
        for batch in batches:
            turns.batch_came(len(batch.targets), batch.inputs["attention_mask"])
            self.step(batch.to(self.device), optimizer)
            turns.step_done()

    @torch.no_grad()
    def score(self, batches: Iterator[NaiveBatch]) -> Tensor:
        """Rating points `(pairs,)` of all pairs of these batches, on the CPU."""
        return torch.cat([MINIMUM + (MAXIMUM - MINIMUM) * self(batch.to(self.device)).cpu() for batch in batches])


class NaiveCollate:
    """Reads clips and builds inputs."""

    def __init__(self, folder: str) -> None:
        """Load the processor of this checkpoint."""
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        self.audio_token = self.processor.tokenizer.convert_tokens_to_ids("<|AUDIO|>")

    def __call__(self, items: Sequence[tuple[Pair, float]]) -> NaiveBatch:
        """A batch of pairs with their scores (rating points)."""
        chats = [messages(pair) for pair, _ in items]
        texts = [self.processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
        clips: list[Any] = [clip for pair, _ in items for clip in (pair.context[0].audio, pair.response)]
        audio = [soundfile.read(clip, dtype="float32")[0] for clip in clips]
        rate = self.processor.feature_extractor.sampling_rate
        inputs = self.processor(text=texts, audio=audio, sampling_rate=rate, padding=True, return_tensors="pt")
        states = self._states(inputs["feature_attention_mask"].sum(-1))[1::2]  # of the responses
        is_audio = inputs["input_ids"] == self.audio_token
        rank_from_end = is_audio.flip(-1).cumsum(-1).flip(-1)
        scores = torch.tensor([score for _, score in items])
        targets = (scores - MINIMUM) / (MAXIMUM - MINIMUM)
        return NaiveBatch(dict(inputs), is_audio & (rank_from_end <= states[:, None]), targets)

    @staticmethod
    def _states(frames: Tensor) -> Tensor:
        """Audio tokens of a clip with so many frames of spectrogram."""
        return ((frames - 1) // 2 + 1 - 2) // 2 + 1


def read_items(dataset: PairDataset, split: str) -> list[tuple[Pair, float]]:
    """The pairs of a split with their mean ratings."""
    part = dataset.subset(split)
    return list(zip(part.pairs, part.mean_scores().iloc[:, 0].tolist(), strict=True))


def training_batches(folder: str, dataset: PairDataset, batch: int, workers: int) -> Iterator[NaiveBatch]:
    """Random batches of fixed size of the training split for the checkpoint in `folder`, epoch after epoch."""
    loader = DataLoader(
        read_items(dataset, "train"),  # pyright: ignore[reportArgumentType] a list is a data set
        batch,
        shuffle=True,
        drop_last=True,
        collate_fn=NaiveCollate(folder),
        num_workers=workers,
    )
    return chain.from_iterable(repeat(loader))


# ---------------------------------------------------------------- the command `train`, and whether both are one model


@dataclass(frozen=True)
class Place:
    """Settings that all ways have in common."""

    checkpoint: str
    data: str
    upper: tuple[int, int]  # layers of the language model in its upper quarter, the first and one past the last
    batch: int
    workers: int  # data-loader processes
    device: str


def command_line(place: Place, run: Path, in_upper: bool, values: Mapping[str, object]) -> list[str]:
    """Arguments of `train` for what the baseline trains. Nothing is validated or written in between."""
    on_gpu = place.device != "cpu"
    arguments = {
        "run": run,
        "data.path": place.data,
        "data.batch_size": place.batch,
        "data.num_workers": place.workers,
        "judge.backbone": place.checkpoint,
        "judge.dtype": "bfloat16" if on_gpu else "float32",
        "judge.lora.rank": RANK,
        "judge.lora.alpha": ALPHA,
        "judge.lora.layers": list(place.upper) if in_upper else "null",
        "optimizer.learning_rate": LEARNING_RATE,
        "optimizer.head_learning_rate": HEAD_LEARNING_RATE,
        "trainer.accelerator": "gpu" if on_gpu else "cpu",
        "trainer.devices": 1,
        "trainer.precision": "bf16-mixed" if on_gpu else "32-true",
        "trainer.max_epochs": 1000,
        "trainer.check_val_every_n_epoch": 1000,
        **values,
    }
    return [f"--{name}={value}" for name, value in arguments.items()]


def taking_turns(turns: Turns) -> LambdaCallback:
    """Lets the command `train` take turns."""
    return LambdaCallback(
        on_train_start=lambda *_: turns.wait(),  # all is loaded, and cached activations are computed
        on_train_batch_start=lambda trainer, module, batch, _: turns.batch_came(
            len(batch.indices), batch.inputs.attention_mask
        ),
        on_train_batch_end=lambda *_: turns.step_done(),
    )


@dataclass(frozen=True)
class Same:
    """How far both are apart after the same steps; scores in rating points."""

    losses: list[float]  # losses of our steps
    loss_difference: float  # largest difference at one step
    score_difference: float  # largest difference of one pair
    moved: float  # largest change of a score by the training


def train_both(place: Place, folder: Path, steps: int) -> Same:
    """Train by the command `train`, then naively on the same batches from the same beginning."""
    beginning: dict[str, Tensor] = {}  # what is trained, before the first step
    schedule: list[tuple[list[int], float]] = []  # of each step: positions of its pairs, share of the peak rate
    losses: list[float] = []

    def begin(trainer: Any, module: Any) -> None:
        beginning.update({name: weight.detach().clone() for name, weight in module.judge.trainable().items()})

    def batch_came(trainer: Any, module: Any, batch: Any, number: int) -> None:
        group = trainer.optimizers[0].param_groups[0]
        schedule.append((batch.indices.tolist(), group["lr"] / group["initial_lr"]))

    recorder = LambdaCallback(
        on_train_start=begin,
        on_train_batch_start=batch_came,
        on_train_batch_end=lambda trainer, module, outputs, *_: losses.append(outputs["loss"].item()),
    )
    trainer_values = {"check_val_every_n_epoch": 1, "max_epochs": 1, "limit_train_batches": steps}
    words = command_line(place, folder, False, {f"trainer.{name}": value for name, value in trainer_values.items()})
    train(words, watching=[recorder])
    device = torch.device(place.device)
    rater = NaiveRater(place.checkpoint, None, device)
    rater.begin_with({name: value.to(device) for name, value in beginning.items()})
    items, collate = read_items(PairDataset.load(place.data), "train"), NaiveCollate(place.checkpoint)
    probe = items[: 2 * place.batch]
    batches = [collate(probe[start : start + place.batch]) for start in range(0, len(probe), place.batch)]
    before = rater.score(iter(batches))
    optimizer = rater.optimizer()
    peaks = [group["lr"] for group in optimizer.param_groups]
    naive_losses = []
    for positions, rate in schedule:
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * rate
        naive_losses.append(rater.step(collate([items[position] for position in positions]).to(device), optimizer))
    judge = load_any(folder).judge.to(device).eval()
    after, ours = rater.score(iter(batches)), scores(judge, [pair for pair, _ in probe], place.batch)
    return Same(
        losses,
        max(abs(left - right) for left, right in zip(naive_losses, losses, strict=True)),
        float((after - ours).abs().max()),
        float((after - before).abs().max()),
    )


def scores(judge: EmpathyJudge, pairs: Sequence[Pair], batch: int = 16) -> Tensor:
    """Our scores of these pairs `(pairs,)`, nothing known of them before."""
    predictions = [prediction for _, prediction in Predictor(judge, batch).predict(pairs)]
    assert all(isinstance(prediction, Prediction) for prediction in predictions), predictions
    points = torch.cat([prediction.score for prediction in predictions])  # pyright: ignore[reportAttributeAccessIssue] see above
    assert points.isfinite().all()
    return points
