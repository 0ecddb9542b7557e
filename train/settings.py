"""What a run is configured with, beside the judge and its data: the tree of a recipe, and the recipes that come with
the package. Loads nothing heavy, so that `train --help` is instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..data_modules.errors import UserError, nearest
from ..data_modules.settings import DataSettings
from ..data_modules.yaml_files import read_yaml
from ..models.settings import JudgeSettings

CONFIGS = Path(__file__).parents[1] / "configs"
_NEEDS = "# needs: "
Cache = Literal["auto", "none", "audio", "layers"]
"""What is computed once: nothing, audio states, or the hidden states that enter the first layer with LoRA."""


@dataclass(frozen=True)
class LossWeights:
    """How much each loss counts; 0 = not at all.

    If every loss on ratings is 0, the head's own is taken: mse for the regression head, gaussian_nll, ordinal
    (corn), histogram. Losses are taken over the items of a batch, those of all devices together. Distances are
    shares of the scale, so that dimensions on different scales count alike.

    Attributes:
        mse: Squared error of the score.
        ccc: One minus the concordance correlation of the batch.
        gaussian_nll: Half the squared error of the score, and the negative log likelihood of the target given that
            score, which the deviation learns from (gaussian head).
        ordinal: Thresholds between the steps (corn head).
        histogram: Cross-entropy with the raters' histogram (corn and histogram heads).
        soft_spearman: One minus a differentiable Spearman correlation of the batch.
        bradley_terry: Of comparisons, by people or counterfactual, where the data has a share of them. With it,
            compared pairs are kept around the middle of the scale, which comparisons leave open.
    """

    mse: float = 0.0
    ccc: float = 0.0
    gaussian_nll: float = 0.0
    ordinal: float = 0.0
    histogram: float = 0.0
    soft_spearman: float = 0.0
    bradley_terry: float = 1.0


@dataclass(frozen=True)
class LossSettings:
    """Settings of single losses; distances are shares of the scale.

    Attributes:
        temperature: Softness of soft_spearman's ranks.
        preference_temperature: Lead at which bradley_terry is three quarters sure (sigmoid of 1). Single preferences
            are noisy: a low one trusts each too much (on the sample 0.1 learned far more slowly than 0.3).
    """

    temperature: float = 0.1
    preference_temperature: float = 0.3


NATURAL = LossWeights()
DEFAULT_SETTINGS = LossSettings()


@dataclass(frozen=True)
class ObjectiveSettings:
    """What is minimised.

    Attributes:
        losses: How much each loss counts; by default the head's own.
        settings: Settings of single losses.
        rater_embedding: Size of what is learned of each rater, with data.target single; the judge then predicts for the
            mean rater. 0 = nothing.
    """

    losses: LossWeights = NATURAL
    settings: LossSettings = DEFAULT_SETTINGS
    rater_embedding: int = 0


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and its learning rates.

    Attributes:
        learning_rate: Peak, of the adapters and of fully fine-tuned parts of the backbone.
        head_learning_rate: Peak, of what starts from nothing: pooling, head, and a cross-attention fusion.
        weight_decay: Of the weight matrices.
        warmup: Share of all steps during which the learning rates rise; they then fall along a cosine to zero.
    """

    learning_rate: float = 2e-4
    head_learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.05


@dataclass(frozen=True)
class CacheSettings:
    """What frozen layers make of the data, computed once.

    Attributes:
        what: Nothing (none), the output of a frozen audio tower (audio), or what enters the first layer of the language
            model with LoRA (layers, see judge.lora.layers). auto: audio, unless the tower is trained, clips are
            augmented, or weights are sharded.
        folder: Where that is kept, for this and other runs and for scoring; by default in the temporary folder of each
            machine (TMPDIR), once for all of its processes, until training ends.
        gigabytes: Most that the folder may take; what was used longest ago is deleted.
    """

    what: Cache = "auto"
    folder: str | None = None
    gigabytes: float = 100.0


@dataclass(frozen=True)
class Recipe:
    """A run.

    Attributes:
        run: Folder of this run: checkpoints, logs, resolved configuration.
        resume: Continue from the last checkpoint in the folder of the run; auto: if there is one, else start.
        method: probe: no gradients; the head becomes the closed-form regression of ratings on what the frozen backbone
            hears, ridge or with a Gaussian kernel, or of their ranks, in one pass over the training split. lora: starts
            at that of ratings (ridge with several processes, a rater embedding, or more than 5,000 pairs) and trains
            adapters, pooling and head; its start may remain the best checkpoint. auto: the probe, then lora,
            which is kept only if it agrees better with people than the probe on pairs that neither was trained on (the
            90 % interval of its lead must not begin below 0).
        refit: Train on the validation splits, too, once they have chosen. lora: for as many epochs as a first run had
            at its best; probe: kernel and penalty by cross-validation on all. It is calibrated with scores of judges
            that were not trained on a pair.
        folds: Train a judge on all but one of so many parts of train and validation splits, once for each part, which
            keep speakers (or groups) whole; RUN/left_out.csv has what each says of its part, RUN/ensemble is all of
            them together, and the run itself is the judge that was fitted to all pairs, as with refit. 0 = none.
        seed: Of weights, order and dropout.
        patience: Validations without better agreement before stopping.
        checkpoint_steps: Steps of the optimizer between checkpoints in mid-epoch; 0: only at the end of epochs.
        gradient_checkpointing: Compute layers again in the backward pass instead of keeping what they computed: less
            memory, about a third more time.
        compile_layers: Compile each transformer layer (torch.compile): a minute or more at the start, then faster steps
            on a GPU.
        expected_trainable: How many parameters of each part are trained, as the table at the start shows them; training
            refuses to start with others.
        profile: Write where the time goes to RUN/profile: operations and a trace.
        log_audio: Players of the items that validation scored worst: true = in every logger that has some, false = in
            none; by default in TensorBoard's files alone, for with Weights & Biases recordings of people leave this
            machine, those of an offline run with `wandb sync`.
        dry_run: Train nothing: say what would be trained and what memory a step needs.
        json: Print JSON: of a dry run the counts, else where the run and its best checkpoint are.
        clip_seconds: Length of every clip in a dry run.
        gpu_gib: Memory of a GPU to fit in a dry run; by default that of the GPU here, if any.
        judge: What is built.
        objective: What is minimised.
        optimizer: AdamW and its learning rates.
        cache: What frozen layers make of the data, computed once.
        data: What is trained on.
        trainer: Arguments of `lightning.Trainer`.
    """

    run: str | None = None
    resume: bool | Literal["auto"] = False
    method: Literal["lora", "probe", "auto"] = "lora"
    refit: bool = False
    folds: int = 0
    seed: int = 0
    patience: int = 3
    checkpoint_steps: int = 200
    gradient_checkpointing: bool = False
    compile_layers: bool = False
    expected_trainable: dict[str, int] | None = None
    profile: bool = False
    log_audio: bool | None = None
    dry_run: bool = False
    json: bool = False
    clip_seconds: float = 8.0
    gpu_gib: float | None = None
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    data: DataSettings = field(kw_only=True)
    trainer: Mapping[str, Any] = field(default_factory=dict, kw_only=True)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as mappings in mappings."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *groups, key = name.split(".")
        inner = tree
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[key] = value
    return tree


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe that comes with the package."""

    name: str  # to be given to ``--config``
    about: str  # what it is
    backbone: str | None  # name or hub id; None where the file is laid over another recipe
    needs: str  # GPUs and memory; figures are those of ``train --dry-run``, counted from shapes, not measured
    command: str  # that runs it


def shipped_recipes() -> list[ShippedRecipe]:
    """All recipes that come with the package, sorted by name."""
    recipes = []
    for path in sorted(CONFIGS.glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        needs = next(line.removeprefix(_NEEDS) for line in lines if line.startswith(_NEEDS))
        backbone = read_yaml(path).get("judge", {}).get("backbone")
        command, about = (line.removeprefix("# ") for line in lines[:2])
        recipes.append(ShippedRecipe(path.stem, about, backbone, needs, command))
    return recipes


def find_recipe(name: str, option: str = "--config") -> Path:
    """The YAML file of this path or, of a recipe that comes with the package, of this name; `option` is where the user
    wrote it.

    Raises:
        UserError: If there is neither.
    """
    path, shipped = Path(name), CONFIGS / f"{name}.yaml"
    if path.is_file():
        return path
    if path.name == name and shipped.is_file():
        return shipped
    names = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    if (near := nearest(name, names)) is not None:
        raise UserError(f"{option} {name}: no such file or recipe (did you mean {near}?); see empathy-judge recipes")
    raise UserError(f"{option} {name}: no such file or recipe; expected a YAML file or one of {', '.join(names)}")
