"""The baseline: an audio-LLM trained to rate as one writes it today with plain transformers and PEFT.

The generation model with its LM head and all hidden states, the processor's padding of every clip to the full window,
every clip encoded in every step, random batches of fixed size padded to their longest, LoRA by a regular expression,
a head on the mean over the response's audio tokens, AdamW, squared error. The model is the product's: the same question
in the same template, the same head (layer norm, linear, sigmoid over the scale).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import soundfile
import torch
from accelerate import init_empty_weights
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.models.backbones.prompt import messages
from empathy_judge.models.judge import EmpathyJudge
from peft import LoraConfig, get_peft_model
from random_checkpoint import FAMILIES
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoProcessor, Qwen2AudioForConditionalGeneration

RANK, ALPHA = 16, 32
LEARNING_RATE, HEAD_LEARNING_RATE, WEIGHT_DECAY = 2e-4, 1e-3, 0.01
MINIMUM, MAXIMUM = 1.0, 5.0


@dataclass
class NaiveBatch:
    """What the model reads, and the targets `(pairs,)` as shares of the scale."""

    inputs: dict[str, Tensor]
    response: Tensor
    targets: Tensor

    def to(self, device: torch.device) -> NaiveBatch:
        """The same on another device."""
        inputs = {name: value.to(device) for name, value in self.inputs.items()}
        return NaiveBatch(inputs, self.response.to(device), self.targets.to(device))


class NaiveRater(nn.Module):
    """Backbone with LoRA, and head."""

    def __init__(self, folder: str, layers: Sequence[int] | None, device: torch.device, backbone: Any = None) -> None:
        """Load and adapt.

        Args:
            folder: The checkpoint.
            layers: Layers of the language model that get LoRA; None = all.
            device: Where it runs; on a GPU the frozen weights are bfloat16.
            backbone: The generation model of any family, where it is in memory already.
        """
        super().__init__()
        self.device = device
        self.lm_head = True  # False leaves it out of the computation, to see what it costs
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
            model = self.backbone if self.lm_head else self.backbone.base_model.model.model
            hidden = model(**batch.inputs, output_hidden_states=True).hidden_states[-1]
        mask = batch.response[..., None].float()
        pooled = (hidden.float() * mask).sum(1) / mask.sum(1)
        return self.linear(self.norm(pooled)).sigmoid()[:, 0]

    @torch.no_grad()
    def begin_with(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the values of all that the product trains, under its names (`EmpathyJudge.trainable`)."""
        names = {"head.norm.": "norm.", "head.linear.": "linear.", "network.": "backbone.base_model.model.model."}
        own = {name: weight for name, weight in self.named_parameters() if weight.requires_grad}
        for name, value in weights.items():
            prefix = next(prefix for prefix in names if name.startswith(prefix))
            own.pop(names[prefix] + name.removeprefix(prefix)).copy_(value)
        assert not own, f"trained here and not there: {list(own)[:3]}"

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

    @torch.no_grad()
    def score(self, batches: Iterator[NaiveBatch]) -> Tensor:
        """Rating points `(pairs,)` of all pairs of these batches, on the CPU."""
        return torch.cat([MINIMUM + (MAXIMUM - MINIMUM) * self(batch.to(self.device)).cpu() for batch in batches])


def naive_around(judge: EmpathyJudge, family: str, shapes: str, folder: str) -> NaiveRater:
    """The generation model of a family with an adapter and a head of its own, around the frozen weights of a judge that
    are in memory: what the judge left out (LM head) is drawn at random."""
    _, model_class, _ = FAMILIES[family](shapes)
    config = AutoConfig.from_pretrained(folder)
    frozen = {name: w for name, w in judge.network.named_parameters() if "lora_" not in name}
    with init_empty_weights(include_buffers=False):
        model: Any = model_class._from_config(
            getattr(config, "thinker_config", config), dtype=next(iter(frozen.values())).dtype
        )
    plain = {f"model.{name}".replace(".base_layer", ""): nn.Parameter(w.detach(), False) for name, w in frozen.items()}
    report = model.load_state_dict(
        {name.replace("model.projector.", "model.audio_tower.proj."): weight for name, weight in plain.items()},
        strict=False,
        assign=True,
    )
    left_out = re.compile(r"^lm_head|visual|audio_bos_eos_token")
    assert not report.unexpected_keys, report.unexpected_keys
    assert all(left_out.search(name) for name in report.missing_keys), report.missing_keys
    for name in report.missing_keys:
        owner, _, leaf = name.rpartition(".")
        part = model.get_submodule(owner)
        drawn = torch.empty_like(getattr(part, leaf), device=judge.device).normal_(0, 0.02)
        setattr(part, leaf, nn.Parameter(drawn, requires_grad=False))
    torch.manual_seed(0)
    return NaiveRater(folder, None, judge.device, model.eval())


class Collate:
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


def training_loader(
    items: Sequence[tuple[Pair, float]], collate: Collate, batch: int, workers: int
) -> DataLoader[tuple[Pair, float]]:
    """Random batches of fixed size."""
    return DataLoader(
        list(items),  # pyright: ignore[reportArgumentType] a list is a data set
        batch,
        shuffle=True,
        drop_last=True,
        collate_fn=collate,
        num_workers=workers,
    )
