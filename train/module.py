"""The judge as Lightning trains it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import lightning as L
import numpy as np
import torch
from accelerate.utils import find_executable_batch_size
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.utilities import GradClipAlgorithmType
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..core.errors import UserError
from ..core.processes import say
from ..data_modules.datamodule import SHARES, PairDataModule
from ..data_modules.splits import kept_together
from ..models.backbones.layers import compile_layers
from ..models.description import Provenance
from ..models.heads import Prediction
from ..models.judge import EmpathyJudge
from ..models.lora import FUSION, weights_of
from ..models.weight_files import check_keys, fingerprints
from ..scoring.artifact import describe
from ..scoring.batches import ran_out_of_memory
from .collate import Batch, Collate, gather
from .objective import Objective, RaterEmbedding
from .run_folder import check_continues
from .settings import OptimizerSettings
from .strategies import ShardedStrategy, checkpointed, shard
from .validation import Agreement, People, Validation, overall, people_of

MONITOR = "val_agreement"
"""What early stopping and the choice of the best checkpoint look at: the mean of `Agreement.value` over dimensions."""


class JudgeModule(L.LightningModule):
    """Trains adapters, pooling and head on human scores; the backbone stays frozen.

    Attributes:
        probe: The closed-form regression that the judge is, in words; "" = it was trained further (`Provenance.probe`).
        refit: Whether it is trained on the pairs that chose it, too (`Provenance.refit`).
        added: What training has added to the probe that it started from (`Provenance.start`).
    """

    def __init__(
        self,
        judge: EmpathyJudge,
        objective: Objective,
        collate: Collate,
        settings: OptimizerSettings,
        raters: RaterEmbedding | None = None,
    ) -> None:
        """Initialise the module.

        Args:
            judge: For the dimensions of the data, with whole weights (or deferred ones).
            objective: What is minimised.
            collate: Makes a batch of items; the data module calls it.
            settings: Of the optimizer.
            raters: What is learned of each rater, if anything.
        """
        super().__init__()
        self.judge, self.objective, self.collate, self.raters = judge, objective, collate, raters
        self._settings = settings
        # Checkpoints hold no frozen weights; `on_load_checkpoint` is strict about the rest
        self.strict_loading = False
        self._agreement: dict[str, Agreement] = {}
        self._from_probe = False  # whether the first validation was that of a probe
        self.probe, self.refit = "", False
        self.added: dict[str, dict[str, float | None]] = {}
        # taken while no weight is sharded yet
        self._fingerprints = fingerprints(judge)
        self.forget_shapes()

    def forget_shapes(self) -> None:
        """Expect checkpoints of the weights that there are now."""
        # On the meta device only shapes are kept, and no second copy of the weights
        self._shapes = {name: weight.detach().to("meta") for name, weight in checkpointed(self).items()}

    @property
    def data(self) -> PairDataModule:
        """The data module of the trainer."""
        data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(data, PairDataModule)
        return data

    def configure_model(self) -> None:
        """Shard the weights where the strategy does not do that itself."""
        # Lightning calls this hook again for `validate` after `fit`
        if isinstance(self.trainer.strategy, ShardedStrategy) and not isinstance(self.judge, FSDPModule):
            shard(self.judge, [] if self.raters is None else [self.raters], self.trainer.strategy.shards)

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
        local = self._predict(batch)
        # Losses that compare items (concordance, ranks, preferences) would be other losses if each device saw its own
        # rows alone
        prediction, labels = gather(local, batch.labels)
        terms = self.objective.terms(prediction, labels)
        loss = torch.stack(list(terms.values())).sum()
        rows = len(batch.labels.targets)
        self.log("train_loss", loss, prog_bar=True, batch_size=rows)
        # A single loss is `train_loss` itself
        if len(terms) > 1:
            self.log_dict({f"train_loss/{name}": value for name, value in terms.items()}, batch_size=rows)
        # ranks average their gradients, and each rank has only the gradients of its own rows
        return loss * self.trainer.world_size

    def _predict(self, batch: Batch) -> Prediction:
        """Predictions of each row, for its rater."""
        pooled = self.judge.pooled(batch.inputs)
        if self.raters is not None:
            # Before the head, so that the head without any rater predicts for the mean rater
            pooled = self.raters(pooled, batch.labels.raters)
        return self.judge.head(pooled)

    @cached_property
    def validation(self) -> Validation:
        """Scores of the last validation, and their agreement with people."""
        return Validation(self.data.validation, self.data.validation_preferences, self.judge.dimensions)

    @cached_property
    def people(self) -> dict[str, People]:
        """What the raters of the validation split reach, by dimension."""
        return people_of(self.data)

    def on_validation_epoch_start(self) -> None:
        """Drop the scores of the last validation."""
        self.validation.clear()

    def measure(self, scores: Mapping[str, Prediction]) -> None:
        """Use the scores of other judges, by pair, as those of a validation; some pairs may have none."""
        self.on_validation_epoch_start()
        for index, pair in enumerate(self.data.validation.pairs):
            if (outcome := scores.get(pair.pair_id)) is not None:
                score, deviation = outcome.score[None], None if outcome.deviation is None else outcome.deviation[None]
                self.validation.add(torch.tensor([index]), Prediction(score, deviation))
        self._agreed()

    def keep_start(self) -> None:
        """The last validation was that of a probe, from which training begins."""
        self._from_probe = True
        self.added = self.validation.added(self._groups)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Keep the scores."""
        self.validation.add(batch.indices, self._predict(batch))

    def on_validation_epoch_end(self) -> None:
        """Agreement per dimension over the whole validation split, the same value on every rank."""
        agreements = self._agreed()
        for name, agreement in agreements.items():
            if agreement.spearman is None and self.global_rank == 0:
                say(f"validation: no Spearman for {name}: {agreement.reason}")
            spearman = math.nan if agreement.spearman is None else agreement.spearman
            # Nothing is averaged over ranks: each has the same value, and its own callbacks read it
            self.log(f"val_spearman/{name}", spearman, rank_zero_only=False, sync_dist=False)
            for what, value in self.people[name].reached.items() if name in self.people else ():
                self.log(f"val_{what}/{name}", value, rank_zero_only=False, sync_dist=False)
            if agreement.preferences_met is not None:
                self.log(f"val_preferences_met/{name}", agreement.preferences_met, sync_dist=False)
        self.log(MONITOR, overall([*agreements.values()]), prog_bar=True, sync_dist=False)

    def _agreed(self) -> dict[str, Agreement]:
        step = self.trainer.global_step
        agreements = dict(zip((d.name for d in self.judge.dimensions), self.validation.agreement(step), strict=True))
        self._agreement = agreements
        if self._from_probe:
            self.added = self.validation.added(self._groups)
        return agreements

    @cached_property
    def _groups(self) -> np.ndarray:
        """What is kept together of the validation split."""
        # By speaker only if the splits keep speakers apart, which all pairs of the dataset show
        return kept_together(self.data.validation.pairs, self.data.dataset.pairs)

    def left_out(self) -> dict[str, Prediction]:
        """Predictions for the validation split by pair, each of weights that pairs of other groups chose."""
        score, deviation = torch.from_numpy(self.validation.left_out(self._groups)).float().unbind(-1)
        found = zip(self.data.validation.pairs, Prediction.from_stored(score, deviation).each(), strict=True)
        return {pair.pair_id: prediction for pair, prediction in found if not prediction.score.isnan().all()}

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW with linear warm-up and cosine decay; no weight decay on biases and norms."""
        # The size of batches decides how many steps there are, which the schedule needs
        if self.data.settings.batch_tokens == "auto":
            self._find_batch_tokens()
        trained, settings = self._trained(), self._settings
        # weights that are not pre-trained have a higher learning rate
        fresh = {name for name in trained if not name.startswith("judge.network.")}
        if FUSION in self.judge.backbone.parts:
            fresh |= {f"judge.network.{name}" for name, _ in weights_of(self.judge.backbone, FUSION)}
        # Biases and the weights of norms are vectors. Decay would pull the latter to zero, and with them the states
        # that they scale
        groups: dict[tuple[float, float], list[Tensor]] = {}
        for name, weight in trained.items():
            rate = settings.head_learning_rate if name in fresh else settings.learning_rate
            groups.setdefault((rate, settings.weight_decay if weight.ndim > 1 else 0.0), []).append(weight)
        optimizer = AdamW(
            [{"params": weights, "lr": rate, "weight_decay": decay} for (rate, decay), weights in groups.items()],
            fused=wants_fused(self.trainer.precision_plugin),
        )
        steps = steps_of_training(self.trainer, self.data.batches_per_epoch)
        # The cosine has to know when it reaches zero
        if steps == math.inf:
            raise UserError("trainer: max_epochs -1 and max_steps -1; expected one of them above 0")
        schedule = cosine_schedule(optimizer, int(steps), settings.warmup)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _find_batch_tokens(self) -> None:
        """Find the largest `batch_tokens` with which a step fits the memory of the smallest device.

        What is tried is forward and backward pass of the largest batch, by each process alone. Nothing is trained, so
        that every pair is still to come.

        Raises:
            UserError: If the longest item does not fit by itself.
        """
        data, least = self.data, self.data.longest_item()

        # accelerate 1.15 takes 10 % less after each failure. The first try is as many pairs as the recipe asks for,
        # each as long as the longest
        @find_executable_batch_size(starting_batch_size=data.settings.batch_size * least)
        def try_step(tokens: int) -> int:
            if tokens < least:
                raise UserError(
                    f"data.batch_tokens auto: one item has {least} tokens, for which {self.device} has no memory; "
                    "expected gradient_checkpointing true, shorter clips, or fewer layers (judge.depth)"
                )
            # A failed try has left gradients, which would take memory in this one
            self.zero_grad()
            on_gpu = self.device.type == "cuda"
            if on_gpu:
                torch.cuda.reset_peak_memory_stats(self.device)
            batch = data.largest_batch(tokens).to(self.device)
            try:
                with self.trainer.precision_plugin.forward_context():
                    terms = self.objective.terms(self._predict(batch), batch.labels)
                torch.stack(list(terms.values())).sum().backward()
            except RuntimeError as error:
                # accelerate does not recognise the message of cuBLAS
                if ran_out_of_memory(error):
                    raise torch.OutOfMemoryError("CUDA out of memory.") from None
                raise
            if on_gpu:  # AdamW allocates its moments in the first step
                moments = 2 * sum(weight.nbytes for weight in self._trained().values())
                limit = 0.9 * torch.cuda.mem_get_info(self.device)[1]
                if torch.cuda.max_memory_allocated(self.device) + moments > limit:
                    raise torch.OutOfMemoryError("CUDA out of memory.")
            return tokens

        # the first of decreasing numbers that fits; all ranks take the smallest
        gathered = self.all_gather(torch.tensor(try_step(), device=self.device))  # pyright: ignore[reportCallIssue]
        self.zero_grad()
        # The smallest: all ranks make equally many batches, of the same size
        data.settings = replace(data.settings, batch_tokens=int(torch.as_tensor(gathered).min()))

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip as the recipe says (`trainer.gradient_clip_val`), over all ranks where gradients are sharded.

        Lightning 2.6 refuses to clip for a fused optimizer under mixed precision, since float16 gradients are still
        scaled then. bfloat16 gradients are not scaled: they are clipped as in full precision.
        """
        precision, algorithm = self.trainer.precision_plugin, gradient_clip_algorithm
        if isinstance(precision, MixedPrecision) and precision.scaler is None:
            algorithm = GradClipAlgorithmType(algorithm or "norm")
            Precision.clip_gradients(precision, optimizer, gradient_clip_val or 0.0, algorithm)
        else:
            # DeepSpeed clips in its own step
            self.clip_gradients(optimizer, gradient_clip_val, algorithm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what is trained; leave out the frozen backbone but say which it was."""
        names = checkpointed(self)
        # With frozen weights each checkpoint would be as large as the backbone, which its hub repository holds
        # already
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k in names}
        checkpoint["description"], checkpoint["order"] = self._description(), self._order()
        checkpoint["agreement"] = overall([*self._agreement.values()]) if self._agreement else math.nan
        steps = steps_of_epoch(self.trainer)
        # number of epochs it was trained for; a refit is trained as long
        checkpoint["epochs"] = self.trainer.global_step / steps if 0 < steps < math.inf else 0.0
        # float32, as the head gave them
        checkpoint["validations"] = {step: torch.from_numpy(v).float() for step, v in self.validation.history.items()}
        checkpoint["from_probe"] = self._from_probe

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint whose weights are not exactly those that this configuration trains.

        Raises:
            UserError: Naming a missing, unexpected or misshapen weight, or another backbone.
        """
        # `strict_loading` is off (see `__init__`): a weight that is missing would keep its first value, and nobody
        # would notice
        check_keys("checkpoint", checkpoint["state_dict"], self._shapes)
        check_continues(checkpoint, self._description(), self._order(), self.data.settings.path)
        provenance = checkpoint["description"]["provenance"]
        self.validation.history = {step: v.double().numpy() for step, v in checkpoint["validations"].items()}
        self._from_probe, self.added = checkpoint["from_probe"], provenance["start"]
        # A checkpoint that is saved again before the next validation says the same of its agreement
        self._agreement = {
            name: Agreement(value, None, provenance["preferences_met"].get(name))
            for name, value in provenance["validation"].items()
        }

    def _order(self) -> dict[str, Any]:
        # All that decides which items a step reads: a run that goes on in mid-epoch must neither skip one nor read it
        # twice
        return {**self.data.order(), "trainer.accumulate_grad_batches": self.trainer.accumulate_grad_batches}

    def _trained(self) -> dict[str, Tensor]:
        """Names and values of all trained weights, including those that are not part of the judge."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def _description(self) -> dict[str, Any]:
        card = self.data.dataset.card
        return describe(
            self.judge,
            Provenance(
                dataset=card.name,
                synthetic=card.synthetic,
                content_hash=card.content_hash,
                split_hash=self.data.dataset.split_hash(),
                validation={name: agreement.spearman for name, agreement in self._agreement.items()},
                preferences_met={name: agreement.preferences_met for name, agreement in self._agreement.items()},
                losses=self.objective.used(self.data.shares[0] > 0, sum(self.data.shares[1:]) > 0),
                shares=dict(zip(SHARES, self.data.shares, strict=True)),
                train_splits=list(self.data.train_splits),
                validation_splits=list(self.data.validation_splits),
                target=self.data.settings.target,
                refit=self.refit,
                start=self.added,
                probe=self.probe,
            ),
            self._fingerprints,
        )


def wants_fused(precision: Precision) -> bool:
    """Whether to use a fused optimizer: always, except with scaled gradients (float16).

    A fused optimizer takes scaled gradients and divides them itself, so that they could not be clipped before. On a
    CPU it is fused as well, so that what a test runs is what a GPU runs.
    """
    return getattr(precision, "scaler", None) is None


def cosine_schedule(optimizer: Optimizer, steps: int, warmup: float) -> LambdaLR:
    """Learning rates that rise over a share `warmup` of all steps and fall to zero along a cosine."""
    rise = max(1, round(warmup * steps))

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))

    return LambdaLR(optimizer, factor)


def steps_of_training(trainer: L.Trainer, batches: int) -> float:
    """Optimizer steps of the whole training; infinite if no setting ends it.

    What `trainer.estimated_stepping_batches` says, which starts the processes that read data: they would read their
    first batches before the feature cache is filled.
    """
    if trainer.max_epochs == -1:
        return math.inf if trainer.max_steps == -1 else trainer.max_steps
    limit = trainer.limit_train_batches
    batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    steps = math.ceil(batches / trainer.accumulate_grad_batches) * max(trainer.max_epochs or 1, 1)
    return steps if trainer.max_steps == -1 else min(steps, trainer.max_steps)


def steps_of_epoch(trainer: L.Trainer) -> float:
    """Optimizer steps of an epoch."""
    batches = trainer.num_training_batches
    return batches if batches == math.inf else math.ceil(batches / trainer.accumulate_grad_batches)


class FillCache(Callback):
    """Fills the feature cache, if there is one.

    When training begins: the model is on its device then, and no process that reads data was started yet.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compute what is missing in the cache."""
        assert isinstance(pl_module, JudgeModule)
        data, features = pl_module.data, pl_module.collate.features
        if features is not None:
            # Pairs of comparisons need not be among the rated ones
            compared = [pair for item in data.items.comparisons for pair in (item.chosen, item.rejected)]
            pairs = [*data.train.pairs, *compared, *data.validation.pairs]
            features.prepare(pairs, trainer.precision_plugin.forward_context, (trainer.local_rank, trainer.num_devices))


class CompileLayers(Callback):
    """Compiles the layers that training computes, once the feature cache is filled and the start is validated."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compile the layers.

        Raises:
            UserError: If there are no layers.
        """
        assert isinstance(pl_module, JudgeModule)
        features = pl_module.collate.features
        if not compile_layers(pl_module.judge.network, [] if features is None else features.lower_layers):
            name = pl_module.judge.backbone.name
            raise UserError(f"compile_layers: backbone {name} has no layers that can be compiled")
