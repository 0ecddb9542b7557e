"""The judge as Lightning trains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from rich.console import Console
from torch import Tensor

from ..data_modules.datamodule import PairDataModule
from ..data_modules.errors import UserError
from ..data_modules.rated_pairs import RatedPair
from ..eval.statistics.agreement import spearman
from ..models.artifact import Provenance, check_keys, describe
from ..models.backbones.common.base import Attention, Inputs, PartName, Quantization
from ..models.heads import HeadName, HistogramHead
from ..models.judge import EmpathyJudge, JudgeSettings, LongClips
from ..models.lora import JOINER, LoraMethod, LoraSettings, TrainedDtype
from ..models.losses import histogram_cross_entropy, masked_mse
from ..models.parts import check_trainable, count_parameters, parameter_table, weights_of
from ..models.pooling import PoolingName
from ..models.recompute import recompute_activations
from .features import encode_all

MONITOR = "val_spearman"
"""What early stopping and the choice of the best checkpoint look at."""


@dataclass(frozen=True)
class Batch:
    """Inputs of the judge with what people said.

    Attributes:
        indices: Position of each pair in its split `(batch,)`.
        inputs: See `Inputs`.
        targets: Scores to predict, in rating points `(batch, dimensions)`, NaN where nobody rated.
        histograms: How many raters gave each score `(batch, dimensions, steps)`, where that is the target.
    """

    indices: Tensor
    inputs: Inputs
    targets: Tensor
    histograms: Tensor | None = None


class JudgeModule(L.LightningModule):
    """Trains adapters, pooling and head on human scores; the backbone stays frozen."""

    def __init__(
        self,
        backbone: str = "nano",
        revision: str | None = None,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        attention: Attention = "sdpa",
        quantization: Quantization = "none",
        pooling: PoolingName = "response_mean",
        head: HeadName = "regression",
        padding_side: Literal["left", "right"] = "right",
        lora_parts: list[PartName] = ["language_model"],  # noqa: B006 read only; a literal shows in --help
        lora_rank: int = 16,
        lora_alpha: float = 32.0,
        lora_dropout: float = 0.0,
        lora_method: LoraMethod = "lora",
        lora_layers: tuple[int, int] | None = None,
        full_parts: list[PartName] = [],  # noqa: B006 as above
        trained_dtype: TrainedDtype = "float32",
        expected_trainable: dict[str, int] | None = None,
        gradient_checkpointing: bool = False,
        long_clips: LongClips = "refuse",
        learning_rate: float = 2e-4,
        head_learning_rate: float = 1e-3,
        weight_decay: float = 0.01,
        warmup: float = 0.05,
        cache_audio: bool = False,
    ) -> None:
        """Settings; the judge is built in `setup`, when the rating scales are known.

        Args:
            backbone: "nano", a hub id or a folder in the hub's layout.
            revision: Commit, tag or branch on the hub.
            dtype: Of the frozen backbone weights.
            attention: Attention kernel: eager, sdpa, or flash_attention_2 where it is installed.
            quantization: nf4 keeps the linear layers of the language model in 4 bits (QLoRA).
            pooling: How hidden states become one vector per pair.
            head: How that vector becomes a score: regression on the mean, or the histogram of the raters' scores.
            padding_side: Side of the padding in a batch.
            lora_parts: Parts of the backbone that get an adapter: language_model, projector, audio_tower.
            lora_rank: Rank of the update.
            lora_alpha: The update is scaled by alpha / rank.
            lora_dropout: Dropout on the adapter's input.
            lora_method: lora, rslora (scaled by alpha / sqrt(rank)) or dora (magnitude and direction apart).
            lora_layers: Layers of the language model that get an adapter: from the first up to but without the second;
                negative numbers count from the end. By default all.
            full_parts: Parts whose weights are all trained themselves, such as the projector.
            trained_dtype: Of what is trained in the backbone; "backbone" (the dtype of the frozen weights) for ZeRO-3
                and FSDP1, which want one dtype.
            expected_trainable: How many parameters of each part are trained, as the table at the start shows them;
                training refuses to start with others.
            gradient_checkpointing: Compute layers again in the backward pass instead of keeping what they computed:
                less memory, about a third more time.
            long_clips: What happens to clips longer than the backbone hears: refuse, or window (cut and averaged).
            learning_rate: Peak, of the adapters and of parts of the backbone that are trained in full.
            head_learning_rate: Peak, of what starts from nothing: pooling, head, and the joiner where there is one.
            weight_decay: Of the weight matrices.
            warmup: Share of all steps during which the learning rates rise; they then fall along a cosine to zero.
            cache_audio: Compute the output of a frozen audio tower once and keep it in memory (float32).
        """
        super().__init__()
        self.judge_settings = JudgeSettings(
            backbone=backbone,
            revision=revision,
            dtype=dtype,
            attention=attention,
            pooling=pooling,
            padding_side=padding_side,
            quantization=quantization,
            lora=LoraSettings(
                lora_parts,
                lora_rank,
                lora_alpha,
                lora_dropout,
                lora_method,
                lora_layers,
                full_parts,
                trained_dtype,
            ),
            head=head,
            long_clips=long_clips,
        )
        self.learning_rate, self.head_learning_rate = learning_rate, head_learning_rate
        self.weight_decay, self.warmup, self.cache_audio = weight_decay, warmup, cache_audio
        self.expected_trainable, self.gradient_checkpointing = expected_trainable, gradient_checkpointing
        self.strict_loading = False  # checkpoints hold no frozen weights; on_load_checkpoint is strict about the rest
        self.judge: EmpathyJudge | None = None
        self._audio = None
        self._validated: list[tuple[Tensor, Tensor]] = []
        self._validation: dict[str, float | None] = {}

    @property
    def built(self) -> EmpathyJudge:
        """The judge.

        Raises:
            RuntimeError: Before `setup`.
        """
        if self.judge is None:
            raise RuntimeError("the judge is built in setup(), when the data is known")
        return self.judge

    @property
    def data(self) -> PairDataModule:
        """The data module of the trainer."""
        data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(data, PairDataModule)
        return data

    def setup(self, stage: str) -> None:
        """Build the judge for the dimensions of the data and print what will be trained.

        Raises:
            UserError: If the backbone cannot be loaded, or a dimension has no rating to train on.
        """
        if self.judge is not None:
            return
        if self.cache_audio and self.data.augmentation.active:
            raise UserError(
                "cache_audio: true with augmentation: each epoch hears every clip anew, so that nothing can be kept; "
                "accepted: cache_audio: false, or no augmentation"
            )
        if (self.judge_settings.head == "histogram") != (self.data.target == "histogram"):
            raise UserError(
                f"model.head {self.judge_settings.head!r} with data.target {self.data.target!r}; accepted: histogram "
                "for both, or for neither"
            )
        for column, dimension in enumerate(self.data.dimensions):
            if self.data.train.scores[:, column].isnan().all():
                raise UserError(
                    f"{self.data.path}: nobody rated {dimension.name!r} in split "
                    f"{' or '.join(map(repr, self.data.train_splits))}; accepted: ratings of every "
                    "dimension, or a dataset without this one"
                )
        self.judge = EmpathyJudge(self.judge_settings, self.data.dimensions)
        backbone = self.judge.backbone
        if self.gradient_checkpointing and not recompute_activations(self.judge.network):
            raise UserError(f"gradient_checkpointing: backbone {backbone.name} has no layers that can be recomputed")
        self.judge.head.start_at(self.data.train.scores.nanmean(0))
        self.data.collate = self.collate
        counts = count_parameters(backbone, {"pooling": self.judge.pooling, "head": self.judge.head})
        if self.global_rank == 0:
            Console(stderr=True).print(parameter_table(counts))
            unread = sum(pair.situation is not None for pair in self.data.train.pairs)
            if unread and not backbone.reads_text:
                Console(stderr=True).print(
                    f"{unread} training pairs have a situation text, which backbone {backbone.name} cannot read",
                    style="yellow",
                    soft_wrap=True,
                )
        check_trainable(counts, self.expected_trainable or {})

    def on_fit_start(self) -> None:
        """Encode all clips once if the configuration says so."""
        if self.cache_audio:
            self._audio = encode_all(self.built, [*self.data.train.pairs, *self.data.validation.pairs])

    def collate(self, items: Sequence[RatedPair]) -> Batch:
        """Inputs and targets of several pairs."""
        return Batch(
            indices=torch.tensor([item.index for item in items]),
            inputs=self.built.build_inputs([item.pair for item in items], self._audio),
            targets=torch.stack([item.scores for item in items]),
            histograms=_stacked([item.histogram for item in items]),
        )

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move a batch; Lightning does not look into frozen dataclasses."""
        histograms = None if batch.histograms is None else batch.histograms.to(device)
        return Batch(batch.indices.to(device), batch.inputs.to(device), batch.targets.to(device), histograms)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed dropout by epoch and batch, so that a resumed run repeats what the uninterrupted one does.

        By epoch alone would not do: a data loader draws from the same generator, in a resumed run before the epoch
        starts and otherwise after.
        """
        torch.manual_seed(
            self.data.seed * 1_000_003 + self.current_epoch * 100_003 + batch_idx * 1_009 + self.global_rank
        )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of the batch.

        Regression: mean squared error in units of the scale, so that dimensions on different scales count alike.
        Histogram: cross-entropy with what the raters said.
        """
        pooled, head = self.built.pooled(batch.inputs), self.built.head
        if isinstance(head, HistogramHead):
            assert batch.histograms is not None
            loss = histogram_cross_entropy(head.log_probabilities(pooled), batch.histograms)
        else:
            rated = ~batch.targets.isnan()
            loss = masked_mse(head(pooled) / head.span, batch.targets / head.span, rated)
        self.log("train_loss", loss, prog_bar=True, batch_size=len(batch.indices))
        return loss

    def on_validation_epoch_start(self) -> None:
        """Forget the scores of the last validation."""
        self._validated.clear()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Keep the scores; agreement is a property of the whole set, not of a batch."""
        self._validated.append((batch.indices, self.built(batch.inputs)))

    def on_validation_epoch_end(self) -> None:
        """Spearman per dimension over the whole validation split, the same value on every rank."""
        scores = self._gather_validated()
        targets = self.data.validation.scores.double().numpy()
        values = []
        for column, dimension in enumerate(self.built.dimensions):
            found = spearman(scores[:, column], targets[:, column])
            self._validation[dimension.name] = found.value
            value = math.nan if found.value is None else found.value
            if found.value is None and self.global_rank == 0:
                Console(stderr=True).print(f"validation: no Spearman for {dimension.name}: {found.reason}")
            self.log(f"{MONITOR}/{dimension.name}", value, rank_zero_only=False, sync_dist=False)
            values.append(value)
        self.log(MONITOR, sum(values) / len(values), prog_bar=True, sync_dist=False)

    def _gather_validated(self):
        """Scores in the order of the split `(items, dimensions)`, float64, each item once whatever the ranks saw."""
        indices = torch.cat([part[0] for part in self._validated]).cpu()
        scores = torch.cat([part[1] for part in self._validated]).double().cpu()
        gathered: list[Any] = [(indices, scores)]
        if self.trainer.world_size > 1:
            gathered = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(gathered, (indices, scores))
        whole = torch.full((len(self.data.validation), len(self.built.dimensions)), torch.nan, dtype=torch.float64)
        for part_indices, part_scores in gathered:
            whole[part_indices] = part_scores
        return whole.numpy()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW with linear warm-up and cosine decay; no weight decay on biases and norms."""
        judge = self.built
        # what has no pre-trained weights may move faster
        fresh = {name for name in judge.trainable() if not name.startswith("network.")}
        if JOINER in judge.backbone.parts:
            fresh |= {f"network.{name}" for name, _ in weights_of(judge.backbone, JOINER)}
        groups: dict[tuple[float, float], list[Tensor]] = {}
        for name, weight in self.built.trainable().items():
            rate = self.head_learning_rate if name in fresh else self.learning_rate
            decay = self.weight_decay if weight.ndim > 1 else 0.0
            groups.setdefault((rate, decay), []).append(weight)
        optimizer = torch.optim.AdamW(
            [{"params": weights, "lr": rate, "weight_decay": decay} for (rate, decay), weights in groups.items()]
        )
        steps = self.trainer.estimated_stepping_batches
        if steps == math.inf:
            raise UserError("trainer: max_epochs -1 and max_steps -1; accepted: one of them above 0")
        rise = max(1, round(self.warmup * steps))

        def share(step: int) -> float:
            if step < rise:
                return (step + 1) / rise
            return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep adapters, pooling and head; leave out the frozen backbone but say which it was."""
        kept = {f"judge.{name}" for name in self.built.trainable()}
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k in kept}
        checkpoint["description"] = self._description()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint whose weights are not exactly those that this configuration trains.

        Raises:
            UserError: Naming a missing, unexpected or misshapen weight, or another backbone.
        """
        expected = {f"judge.{name}": weight for name, weight in self.built.trainable().items()}
        check_keys("checkpoint", checkpoint["state_dict"], expected)
        now, then = self._description(), checkpoint["description"]
        for key, name in (("backbone_fingerprint", "backbone"), ("dimensions", "rating scales")):
            if now[key] != then[key]:
                raise UserError(f"checkpoint: was trained with other {name}: {then[key]!r}, now {now[key]!r}")
        for key in ("content_hash", "split_hash", "train_splits", "validation_splits", "target"):
            if now["provenance"][key] != then["provenance"].get(key):
                raise UserError(f"checkpoint: was trained on other data: {key} differs from that of {self.data.path}")
        self._validation = dict(then["provenance"]["validation"])
        self.data.first_epoch = checkpoint["epoch"] + 1

    def _description(self) -> dict[str, Any]:
        card = self.data.dataset.card
        return describe(
            self.built,
            Provenance(
                dataset=card.name,
                synthetic=card.synthetic,
                content_hash=card.content_hash,
                split_hash=self.data.dataset.split_hash(),
                validation=dict(self._validation),
                train_splits=list(self.data.train_splits),
                validation_splits=list(self.data.validation_splits),
                target=self.data.target,
            ),
        )


def _stacked(histograms: Sequence[Tensor | None]) -> Tensor | None:
    """`(batch, dimensions, steps)`, or None where histograms are not the target."""
    given = [histogram for histogram in histograms if histogram is not None]
    return torch.stack(given) if given else None
