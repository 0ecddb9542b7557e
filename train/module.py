"""The judge as Lightning trains it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from rich.console import Console
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from ..data_modules.audio import AudioSource
from ..data_modules.comparisons import Comparison
from ..data_modules.datamodule import SHARES, PairDataModule
from ..data_modules.errors import UserError
from ..data_modules.rated_pairs import RatedPair
from ..data_modules.schema import Pair
from ..data_modules.targets import MAX_STEPS
from ..models.artifact import Provenance, describe
from ..models.backbones.base import Attention, PartName, Quantization
from ..models.feature_cache import DiskStore
from ..models.heads import HeadName, Prediction
from ..models.judge import EmpathyJudge, JudgeSettings, LongClips
from ..models.layers import compile_layers, recompute_activations
from ..models.lora import (
    JOINER,
    LoraMethod,
    LoraSettings,
    TrainedDtype,
    check_trainable,
    count_parameters,
    parameter_table,
    weights_of,
)
from ..models.pooling import PoolingName
from ..models.weight_files import Fingerprints, check_keys, fingerprints
from .batches import Batch, Collate
from .checkpoints import check_continues
from .features import Cache, Features, temporary_folder
from .gathering import gather
from .objective import DEFAULT_SETTINGS, NATURAL, LossSettings, LossWeights, Objective
from .optimization import adamw, clip_gradients, cosine_schedule, wants_fused
from .raters import RaterEmbedding
from .sharding import ShardedStrategy, shard
from .validation import Agreement, Validation

MONITOR = "val_agreement"
"""What early stopping and the choice of the best checkpoint look at: the mean of `Agreement.value` over dimensions."""


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
        losses: LossWeights = NATURAL,
        loss_settings: LossSettings = DEFAULT_SETTINGS,
        rater_embedding: int = 0,
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
        compile_layers: bool = False,
        long_clips: LongClips = "refuse",
        learning_rate: float = 2e-4,
        head_learning_rate: float = 1e-3,
        weight_decay: float = 0.01,
        warmup: float = 0.05,
        cache: Cache = "none",
        cache_folder: str | None = None,
        cache_gigabytes: float = 100.0,
    ) -> None:
        """Settings; the judge is built in `setup`, when the rating scales are known.

        Args:
            backbone: "nano", a hub id or a folder in the hub's layout.
            revision: Commit, tag or branch on the hub.
            dtype: Of the frozen backbone weights.
            attention: Attention kernel: eager, sdpa, or flash_attention_2 where it is installed.
            quantization: nf4 keeps the linear layers of the language model in 4 bits (QLoRA).
            pooling: How hidden states become one vector per pair.
            head: How that vector becomes a score: regression (a number), gaussian (a number and its spread), coral or
                corn (thresholds between the steps of the scale), histogram (the spread of raters over the steps).
            losses: How much each loss counts; by default the head's own.
            loss_settings: Settings of single losses.
            rater_embedding: Size of what is learned of each rater, with data.target single; the judge then predicts
                for the mean rater. 0 = nothing.
            padding_side: Side of the padding in a batch.
            lora_parts: Parts of the backbone that get an adapter: language_model, projector, audio_tower.
            lora_rank: Rank of the update.
            lora_alpha: The update is scaled by alpha / rank.
            lora_dropout: Dropout on the adapter's input.
            lora_method: lora, rslora (scaled by alpha / sqrt(rank)) or dora (magnitude and direction apart).
            lora_layers: Layers of the language model that get an adapter: from the first up to but without the second;
                negative numbers count from the end. By default all.
            full_parts: Parts whose weights are all trained themselves, such as the projector.
            trained_dtype: Of what is trained in the backbone; "backbone" = as the frozen weights: less memory, coarser
                steps. Not with ZeRO, which wants one dtype of all that is trained, and the head is float32.
            expected_trainable: How many parameters of each part are trained, as the table at the start shows them;
                training refuses to start with others.
            gradient_checkpointing: Compute layers again in the backward pass instead of keeping what they computed:
                less memory, about a third more time.
            compile_layers: Compile each transformer layer (torch.compile): a minute or more at the start, then faster
                steps on a GPU.
            long_clips: What happens to clips longer than the backbone hears: refuse, or window (cut and averaged).
            learning_rate: Peak, of the adapters and of parts of the backbone that are trained in full.
            head_learning_rate: Peak, of what starts from nothing: pooling, head, and the joiner where there is one.
            weight_decay: Of the weight matrices.
            warmup: Share of all steps during which the learning rates rise; they then fall along a cosine to zero.
            cache: What is computed once instead of in every epoch: audio (the output of a frozen audio tower) or
                layers (what enters the first layer of the language model with LoRA, see lora_layers).
            cache_folder: Where that is kept, for this and other runs and for scoring; by default in the temporary
                folder of each machine (TMPDIR), once for all of its processes, until training ends.
            cache_gigabytes: Most that the folder may take; what was used longest ago is deleted.
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
        self.losses, self.loss_settings, self.rater_embedding = losses, loss_settings, rater_embedding
        self.learning_rate, self.head_learning_rate = learning_rate, head_learning_rate
        self.weight_decay, self.warmup = weight_decay, warmup
        self.compile_layers = compile_layers
        self.cache: Cache = cache
        self.cache_folder, self.cache_gigabytes = cache_folder, cache_gigabytes
        self.expected_trainable, self.gradient_checkpointing = expected_trainable, gradient_checkpointing
        self.strict_loading = False  # checkpoints hold no frozen weights; on_load_checkpoint is strict about the rest
        self.judge: EmpathyJudge | None = None
        self.collate: Callable[[Sequence[RatedPair | Comparison]], Batch]  # made in `setup`
        self.raters: RaterEmbedding | None = None
        self._objective: Objective | None = None
        self._features: Features | None = None
        self._forget: Callable[[], object] = lambda: None
        self._validation: Validation | None = None
        self._agreement: dict[str, Agreement] = {}
        self._validated = -1  # step of the last validation
        self._fingerprints: Fingerprints | None = None
        self._shapes: dict[str, Tensor] = {}

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
        if self.cache != "none" and self.data.augmentation.active:
            raise UserError(
                f"cache: {self.cache} with augmentation: each epoch hears every clip anew, so that nothing can be "
                "kept; accepted: cache: none, or no augmentation"
            )
        self.data.check_supervision()
        dimensions = self.data.dimensions
        deferred = isinstance(self.trainer.strategy, ShardedStrategy)
        self.judge = EmpathyJudge(self.judge_settings, dimensions, deferred=deferred)
        self._objective = Objective(self.losses, self.loss_settings, self.judge_settings.head, dimensions)
        if self._objective.needs_counts and self.data.train.histograms is None:
            raise UserError(f"model.losses: a scale has more than {MAX_STEPS} steps; accepted: losses of the score")
        if self.rater_embedding and self.data.target != "single":
            raise UserError(
                f"model.rater_embedding {self.rater_embedding} with data.target {self.data.target}; accepted: single"
            )
        if self.rater_embedding:
            size = self.judge.backbone.hidden_size
            self.raters = RaterEmbedding(self.data.train.rater_counts, size, self.rater_embedding)
        backbone = self.judge.backbone
        if self.gradient_checkpointing and not recompute_activations(self.judge.network):
            raise UserError(f"gradient_checkpointing: backbone {backbone.name} has no layers that can be recomputed")
        self.judge.head.start_at(self.data.mean_ratings())
        learned = {} if self.raters is None else {"raters": self.raters}
        counts = count_parameters(backbone, {"pooling": self.judge.pooling, "head": self.judge.head, **learned})
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
        # while every weight is whole
        self._fingerprints = fingerprints(self.judge)
        self._shapes = {name: weight.detach().to("meta") for name, weight in self._trained().items()}
        if self.cache != "none":
            if self.cache_folder is None:
                folder, self._forget = temporary_folder(self, self.trainer)
            else:
                folder = Path(self.cache_folder)
            store = DiskStore(folder, self.cache_gigabytes)
            self._features = Features(self.judge, self.cache, store, str(self.trainer.precision))
        self.collate = Collate(
            self.judge,
            self._features,
            with_counts=self.objective.needs_counts,
            compare=self.loss_settings.compare,
        )

    def teardown(self, stage: str) -> None:
        """Delete what was kept for this run alone."""
        self._forget()

    def configure_model(self) -> None:
        """Shard the weights where the strategy does not do that itself."""
        if isinstance(self.trainer.strategy, ShardedStrategy) and not isinstance(self.judge, FSDPModule):
            beside = [] if self.raters is None else [self.raters]
            shard(self.built, beside, self.trainer.strategy.shards)

    @property
    def objective(self) -> Objective:
        """What is minimised.

        Raises:
            RuntimeError: Before `setup`.
        """
        if self._objective is None:
            raise RuntimeError("the losses are put together in setup(), when the rating scales are known")
        return self._objective

    def _compute_features(self) -> None:
        """Run frozen layers on all data, once, if the configuration says so."""
        if self._features is not None:
            compared = [pair for item in self.data.items.comparisons for pair in (item.chosen, item.rejected)]
            pairs = [*self.data.train.pairs, *compared, *self.data.validation.pairs]
            local = self.trainer.local_rank, self.trainer.num_devices
            self._features.prepare(pairs, self.trainer.precision_plugin.forward_context, local)

    def _compile(self) -> None:
        """Compile layers if the configuration says so; not those that are never computed again."""
        if self.compile_layers:
            below = [] if self._features is None else self._features.lower_layers
            if not compile_layers(self.built.network, below):
                name = self.built.backbone.name
                raise UserError(f"compile_layers: backbone {name} has no layers that can be compiled")

    def count_tokens(self, pairs: Sequence[Pair], seconds: Mapping[AudioSource, float]) -> np.ndarray:
        """Tokens that the backbone reads of each pair `(pairs,)`; for the data module."""
        return self.built.count_tokens(pairs, seconds)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move a batch; Lightning does not look into frozen dataclasses."""
        return batch.to(device)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed dropout by epoch and batch, so that a resumed run repeats what the uninterrupted one does.

        By epoch alone would not do: a data loader draws from the same generator, in a resumed run before the epoch
        starts and otherwise after.
        """
        torch.manual_seed(
            self.data.seed * 1_000_003 + self.current_epoch * 100_003 + batch_idx * 1_009 + self.global_rank
        )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Sum of the losses over the batch of all ranks."""
        own = self._predict(batch)
        prediction, said = gather(own, batch.said)
        terms = self.objective.terms(prediction, said)
        loss = torch.stack(list(terms.values())).sum()
        rows = len(batch.said.targets)
        self.log("train_loss", loss, prog_bar=True, batch_size=rows)
        if len(terms) > 1:
            self.log_dict({f"train_loss/{name}": value for name, value in terms.items()}, batch_size=rows)
        # ranks average their gradients, and each has those of its own rows alone
        return loss * self.trainer.world_size

    def _predict(self, batch: Batch) -> Prediction:
        """As each row's rater hears it."""
        pooled = self.built.pooled(batch.inputs)
        if self.raters is not None:
            pooled = self.raters(pooled, batch.said.raters)
        return self.built.head(pooled)

    @property
    def validation(self) -> Validation:
        """What the last validation found.

        Raises:
            RuntimeError: Before the first one.
        """
        if self._validation is None:
            raise RuntimeError("there was no validation yet")
        return self._validation

    def on_validation_epoch_start(self) -> None:
        """Forget the scores of the last validation."""
        if self._validation is None:
            self._validation = Validation(self.data.validation, self.data.validation_preferences, self.built.dimensions)
        self._validation.clear()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Keep the scores."""
        self.validation.add(batch.indices, self._predict(batch))

    def on_validation_epoch_end(self) -> None:
        """Agreement per dimension over the whole validation split, the same value on every rank."""
        found = dict(zip((d.name for d in self.built.dimensions), self.validation.agreement(), strict=True))
        self._agreement, self._validated = found, self.trainer.global_step
        for name, agreement in found.items():
            if agreement.spearman is None and self.global_rank == 0:
                Console(stderr=True).print(f"validation: no Spearman for {name}: {agreement.reason}")
            spearman = math.nan if agreement.spearman is None else agreement.spearman
            self.log(f"val_spearman/{name}", spearman, rank_zero_only=False, sync_dist=False)
            if agreement.preferences_met is not None:
                self.log(f"val_preferences_met/{name}", agreement.preferences_met, sync_dist=False)
        self.log(MONITOR, sum(a.value for a in found.values()) / len(found), prog_bar=True, sync_dist=False)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW with linear warm-up and cosine decay; no weight decay on biases and norms."""
        # here the model is on its device, and no process that reads data was started yet
        self._compute_features()
        self._compile()
        judge, trained = self.built, self._trained()
        # what has no pre-trained weights may move faster
        fresh = {name for name in trained if not name.startswith("judge.network.")}
        if JOINER in judge.backbone.parts:
            fresh |= {f"judge.network.{name}" for name, _ in weights_of(judge.backbone, JOINER)}
        rates = self.learning_rate, self.head_learning_rate
        fused = wants_fused(self.trainer.precision_plugin)
        optimizer = adamw(trained, fresh, *rates, self.weight_decay, fused=fused)
        steps = self.trainer.estimated_stepping_batches
        if steps == math.inf:
            raise UserError("trainer: max_epochs -1 and max_steps -1; accepted: one of them above 0")
        schedule = cosine_schedule(optimizer, int(steps), self.warmup)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip, also where the optimizer is fused."""
        clip_gradients(self, optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what is trained; leave out the frozen backbone but say which it was."""
        kept = self._trained()
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k in kept}
        checkpoint["description"], checkpoint["order"] = self._description(), self._order()
        values = [found.value for found in self._agreement.values()]
        checkpoint["agreement"] = float(sum(values) / len(values)) if values else math.nan
        if self._validation is not None and self._validated == self.trainer.global_step:  # of these weights
            found = self._validation.scores, self._validation.deviations
            checkpoint["validation"] = dict(zip(("score", "deviation"), map(torch.from_numpy, found), strict=True))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint whose weights are not exactly those that this configuration trains.

        Raises:
            UserError: Naming a missing, unexpected or misshapen weight, or another backbone.
        """
        check_keys("checkpoint", checkpoint["state_dict"], self._shapes)
        check_continues(checkpoint, self._description(), self._order(), self.data.path)
        then = checkpoint["description"]["provenance"]
        self._agreement = {
            name: Agreement(value, None, then.get("preferences_met", {}).get(name))
            for name, value in then["validation"].items()
        }

    def _order(self) -> dict[str, Any]:
        return {**self.data.order(), "trainer.accumulate_grad_batches": self.trainer.accumulate_grad_batches}

    def _trained(self) -> dict[str, Tensor]:
        """Names and values of all weights that training changes, those that the judge does not keep included."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def _description(self) -> dict[str, Any]:
        card = self.data.dataset.card
        return describe(
            self.built,
            Provenance(
                dataset=card.name,
                synthetic=card.synthetic,
                content_hash=card.content_hash,
                split_hash=self.data.dataset.split_hash(),
                validation={name: found.spearman for name, found in self._agreement.items()},
                preferences_met={name: found.preferences_met for name, found in self._agreement.items()},
                losses=self.objective.used(self.data.shares[0] > 0, sum(self.data.shares[1:]) > 0),
                shares=dict(zip(SHARES, self.data.shares, strict=True)),
                train_splits=list(self.data.train_splits),
                validation_splits=list(self.data.validation_splits),
                target=self.data.target,
            ),
            self._fingerprints,
        )
