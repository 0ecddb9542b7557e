"""Settings of a run, and the recipes of the package.

Imports nothing heavy, so that `train --help` is instant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..core.errors import UserError, nearest
from ..core.yaml_files import read_yaml
from ..data_modules.settings import DataSettings
from ..models.settings import JudgeSettings

CONFIGS = Path(__file__).parents[1] / "configs"
LOGS = "logs"
"""Folder of the loggers in the folder of a run."""
_NEEDS = "# needs: "
Cache = Literal["auto", "none", "audio", "layers"]
"""What is computed once: nothing, audio states, or the hidden states that enter the first layer with LoRA."""


@dataclass(frozen=True)
class LossWeights:
    """Weight of each loss; 0 = not used.

    If every loss on ratings is 0, the head's own loss is used: mse (regression head), gaussian_nll, ordinal (corn
    head) or histogram. Losses are computed over the batch of all devices. Distances are shares of the scale, so that
    dimensions on different scales count alike.

    Attributes:
        mse: Squared error of the score.
        ccc: One minus the concordance correlation of the batch.
        gaussian_nll: Half the squared error of the score, and the negative log likelihood of the target given that
            score, from which the deviation learns (gaussian head).
        ordinal: Cross-entropy of the thresholds between the steps (corn head).
        histogram: Cross-entropy with the raters' histogram (corn and histogram heads).
        soft_spearman: One minus a differentiable Spearman correlation of the batch.
        bradley_terry: Bradley-Terry loss of comparisons, by people or counterfactual, if the data has them. It also
            keeps compared pairs near the middle of the scale, because comparisons do not determine the level.
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
        temperature: Temperature of soft_spearman: higher values make the ranks softer.
        preference_temperature: Difference of two scores at which bradley_terry gives the better one a probability of
            0.73 (sigmoid of 1). Low values trust single, noisy preferences too much.
    """

    temperature: float = 0.1
    preference_temperature: float = 0.3


NATURAL = LossWeights()
DEFAULT_SETTINGS = LossSettings()


@dataclass(frozen=True)
class ObjectiveSettings:
    """What is minimised.

    Attributes:
        losses: Weight of each loss; by default the head's own.
        settings: Settings of single losses.
        rater_embedding: Size of the embedding that is learned for each rater, with data.target single; the judge then
            predicts for the mean rater. 0 = none.
    """

    losses: LossWeights = NATURAL
    settings: LossSettings = DEFAULT_SETTINGS
    rater_embedding: int = 0


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and its learning rates.

    Attributes:
        learning_rate: Peak learning rate of the adapters and of fully fine-tuned parts of the backbone.
        head_learning_rate: Peak learning rate of what is not pre-trained: pooling, head and cross-attention fusion.
        weight_decay: Weight decay of the weight matrices.
        warmup: Share of all steps during which the learning rates rise; they then follow a cosine to zero.
    """

    learning_rate: float = 2e-4
    head_learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.05


@dataclass(frozen=True)
class CacheSettings:
    """Cache of the outputs of frozen layers.

    Attributes:
        what: none, the output of a frozen audio tower (audio), or the input of the first layer of the language model
            with LoRA (layers, see judge.lora.layers). auto: audio, unless the tower is trained, clips are augmented, or
            weights are sharded.
        folder: Folder of the cache, which later runs and scoring can use. By default a temporary folder on each machine
            (TMPDIR) that its processes share and that is deleted when training ends.
        gigabytes: Maximum size of the folder; the least recently used entries are deleted.
    """

    what: Cache = "auto"
    folder: str | None = None
    gigabytes: float = 100.0


@dataclass(frozen=True)
class Recipe:
    """Settings of a run.

    Attributes:
        run: Folder of this run: checkpoints, logs, resolved configuration.
        resume: Continue from the last checkpoint of the run. auto: start if there is none.
        method: probe: fit the head in closed form, as a regression (ridge or Gaussian kernel) of the ratings or their
            ranks on features of the frozen backbone. lora: start at that regression of the ratings (ridge with several
            processes, a rater embedding, or more than 5,000 pairs), then train adapters, pooling and head; the start
            may remain the best checkpoint. auto: the probe, then lora, which is kept only if the 90 % interval of its
            gain over the probe, on pairs that neither was trained on, does not reach below 0.
        refit: Also train on the validation splits, after model selection. lora: for the best number of epochs of a
            first run; probe: kernel and penalty by cross-validation on all pairs. The judge is calibrated with scores
            of judges that were not trained on the pair.
        folds: Number of folds of a cross-validation on the train and validation splits that keeps speakers (or groups)
            whole. RUN/left_out.csv holds the score of each pair by the judge of the other folds, RUN/ensemble all
            judges as one; the run itself is a judge of all pairs, as with refit. 0 = no cross-validation.
        seed: Random seed of weights, order and dropout.
        patience: Validations without better agreement before training stops.
        checkpoint_steps: Optimizer steps between checkpoints within an epoch; 0 = only at the end of epochs.
        gradient_checkpointing: Recompute activations in the backward pass: less memory, about a third more time.
        compile_layers: Compile each transformer layer (torch.compile): a minute or more at the start, then faster steps
            on a GPU.
        expected_trainable: Expected number of trained parameters of each part, as in the table at the start; training
            does not start with other numbers.
        dry_run: Read the data and print what would be trained, in how many steps, in what memory and how long,
            without weights and without training.
        json: Print JSON: the counts of a dry run, otherwise the paths of the run and of its best checkpoint.
        clip_seconds: Length of every clip in a dry run that reads no data.
        gpu_gib: GPU memory for a dry run; by default that of the GPU of this machine.
        judge: The judge.
        objective: The loss.
        optimizer: AdamW and its learning rates.
        cache: Cache of the outputs of frozen layers.
        data: The training data.
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
    dry_run: bool = False
    json: bool = False
    clip_seconds: float | None = None
    gpu_gib: float | None = None
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    data: DataSettings = field(kw_only=True)
    trainer: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @property
    def several_runs(self) -> bool:
        """Whether judges are trained and compared before the one that the run is."""
        return self.method == "auto" or self.folds > 0 or (self.refit and self.method == "lora")


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

    @property
    def step_gib(self) -> float | None:
        """Memory of a step; None where it is that of another recipe."""
        # Of the line `# needs:` in the recipe, the one place that says what a recipe takes
        found = re.search(r"takes (?:at most the )?([\d.]+) GiB", self.needs)
        return None if found is None else float(found[1])

    @property
    def gpu(self) -> str:
        """The GPU that it needs, in a few words."""
        if self.needs.startswith("what "):
            return "as the other"
        size = re.match(r"(no GPU|one|several)[^;]*?(\d+ GB)?(?: with [^;]*)?;", self.needs)
        if size is None or size[1] == "no GPU":
            return "none"
        return f"{'several ' if size[1] == 'several' else ''}{size[2] or ''}".strip()

    def fits(self, gpu_gib: float | None) -> bool:
        """Whether it is a judge whose step has room in a GPU of this size; None = any recipe."""
        if gpu_gib is None:
            return True
        # The share of `train.memory.ROOM`, a module that loads torch
        return self.backbone is not None and (self.step_gib is None or self.step_gib <= 0.95 * gpu_gib)


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
    # A name alone: with folders in it (`../x`) it could reach a file outside the recipes
    if path.name == name and shipped.is_file():
        return shipped
    names = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    if (near := nearest(name, names)) is not None:
        raise UserError(f"{option} {name}: no such file or recipe (did you mean {near}?); see empathy-judge recipes")
    raise UserError(f"{option} {name}: no such file or recipe; expected a YAML file or one of {', '.join(names)}")
