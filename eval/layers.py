"""How deep a judge has to read: what each layer of a frozen backbone says of the ratings.

One pass over the rated pairs pools the states of every layer, of the language model and of the audio encoder. They go
to a file, so that memory is bounded by one layer of all pairs. A ridge for each layer predicts the ratings of groups
that it was not fitted to; its penalty is chosen inside (nested cross-validation). No layer of a backbone is trained.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from rich.table import Table
from sklearn.model_selection import GroupKFold
from torch import Tensor
from torch.nn.functional import layer_norm

from ..data_modules.errors import DataError, UserError
from ..data_modules.parallel import progress
from ..data_modules.schema import Pair, PairDataset
from ..data_modules.splits import kept_together
from ..models.backbones.audio_language_model import AudioLanguageModel
from ..models.backbones.base import Inputs
from ..models.closed_form import EXACT, FOLDS, LANDMARKS, Portion, fit
from ..models.head_input import HeadInputSettings
from ..models.judge import EmpathyJudge
from ..models.probe import ClipReader, shuffled, without_adapters
from ..models.scoring import choose_device
from .judges.baselines.probe import settings_of
from .pages.charts import ACCENT, MUTED, STYLE
from .statistics.agreement import Statistic, spearman
from .statistics.bootstrap import Resamples, difference, estimate

LANGUAGE_MODEL, ENCODER = "language model", "audio encoder"
_BATCH, _PORTION = 16, 2_000
_FURTHEST = 5.0  # standard deviations


@dataclass(frozen=True)
class Layer:
    """What a ridge on the states of one layer says of the ratings on one dimension.

    Attributes:
        part: Of the backbone.
        depth: How many layers are read; 0 = what the first layer of an encoder reads.
        dimension: Of the ratings.
        cost: Share of the weights of all layers of this part that are read, and of their products.
        spearman: On groups left out; low and high of its 95 % interval.
        low: See `spearman`.
        high: See `spearman`.
        behind: Spearman of the best layer of this part less this one.
        behind_low: Its 95 % interval, on the same draws; above 0 = this layer is worse.
        behind_high: See `behind_low`.
        n: Pairs.
        reason: Why there is no value or no interval.
    """

    part: str
    depth: int
    dimension: str
    cost: float
    spearman: float | None
    low: float | None
    high: float | None
    behind: float | None
    behind_low: float | None
    behind_high: float | None
    n: int
    reason: str | None


@dataclass(frozen=True)
class Layers:
    """The result.

    Attributes:
        backbone: What was read.
        rows: By part, depth and dimension.
        depth: The fewest layers that are told apart from the best on no dimension; None where no interval says so.
        layers: Layers that `depth` counts.
    """

    backbone: str
    rows: Sequence[Layer]
    depth: int | None
    layers: int

    @property
    def line(self) -> str:
        """What to write into a recipe."""
        return f"judge: {{depth: {self.depth}}}" if self.depth is not None else "judge: {depth: null}"

    def to_frame(self) -> pd.DataFrame:
        """One row for each part, depth and dimension."""
        return pd.DataFrame([asdict(row) for row in self.rows])

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        found = {"backbone": self.backbone, "layers": self.layers, "depth": self.depth, "recipe": self.line}
        return {**found, "rows": [asdict(row) for row in self.rows]}

    def save(self, folder: Path) -> None:
        """Write `layers.csv`, `layers.json` and `layers.png`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.to_frame().to_csv(folder / "layers.csv", index=False)
        text = json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"
        (folder / "layers.json").write_text(text, encoding="utf-8")
        picture(self).savefig(folder / "layers.png", dpi=150)


def measure_layers(
    what: str,
    dataset: PairDataset,
    splits: Sequence[str] = ("train", "validation"),
    *,
    device: str | None = None,
    resamples: int = 1_000,
    seed: int = 0,
) -> Layers:
    """Measure every layer.

    Args:
        what: A judge folder, a run folder or a backbone. Of a judge, nothing that was trained is used.
        dataset: With ratings.
        splits: Whose pairs.
        device: "cpu", "cuda", ...; None = a GPU if there is one.
        resamples: Of the intervals.
        seed: Of the order of pairs, folds and resamples.

    Raises:
        UserError: If there is no such judge or backbone, or its layers pass on more than one state for each token.
        DataError: If a dimension has ratings of fewer than two groups.
    """
    part = dataset.subset([name for name in splits if any(pair.split == name for pair in dataset.pairs)])
    means = part.mean_scores().dropna(axis=1, how="all")
    dimensions = tuple(own for own in dataset.card.dimensions if own.name in means)
    values = means[[own.name for own in dimensions]].to_numpy(np.float64)
    of_pair = dict(zip((pair.pair_id for pair in part.pairs), values, strict=True))
    pairs = shuffled([pair for pair in part.pairs if np.isfinite(of_pair[pair.pair_id]).any()], seed)
    if not pairs:
        raise DataError(f"{dataset.root}: no pair of {', '.join(splits)} has a rating")
    heard = HeadInputSettings("all_layers")
    settings = replace(settings_of(what), depth=None, depth_norm=True, pooling="response_mean", head_input=heard)
    judge = EmpathyJudge(without_adapters(settings), dimensions).to(choose_device(device)).eval().requires_grad_(False)
    costs = _costs(judge)
    rows: list[Layer] = []
    with tempfile.TemporaryDirectory() as folder:
        heard, files = _read(judge, pairs, Path(folder))
        targets = np.stack([of_pair[pair.pair_id] for pair in heard])
        groups = np.array(kept_together(heard, dataset.pairs))
        draws = Resamples.draw(groups, resamples, seed)
        for name, own in files.items():
            predicted = []
            for depth in progress(range(len(own)), f"ridge on each layer of the {name}", len(own)):
                predicted.append(_left_out(_standardised(own[depth]), targets, groups, seed))
            first = len(costs[name]) - len(own)  # an encoder begins with what its first layer reads
            for column, dimension in enumerate(dimensions):
                made = [values[:, column] for values in predicted]
                rows += _rows(name, first, dimension.name, costs[name], made, targets[:, column], draws)
    rows.sort(key=lambda row: (row.part != LANGUAGE_MODEL, row.depth, row.dimension))
    counted = LANGUAGE_MODEL if isinstance(judge.backbone, AudioLanguageModel) else ENCODER
    return Layers(what, rows, _enough(rows, counted), len(judge.backbone.layers))


def _costs(judge: EmpathyJudge) -> dict[str, np.ndarray]:
    """Of each part the share of the weights of its layers that are read at depth 0, 1, ..."""
    backbone = judge.backbone
    of_encoder = np.arange(backbone.layer_sizes[0]) / max(1, backbone.layer_sizes[0] - 1)
    counts = np.cumsum([0, *(sum(own.numel() for own in layer.parameters()) for layer in backbone.layers)])
    if not isinstance(backbone, AudioLanguageModel):
        return {ENCODER: counts / counts[-1]}
    return {LANGUAGE_MODEL: counts / counts[-1], ENCODER: of_encoder}


@torch.inference_mode()
def _read(judge: EmpathyJudge, pairs: Sequence[Pair], folder: Path) -> tuple[list[Pair], dict[str, np.ndarray]]:
    """One pass: the pairs whose audio can be used, and of each part the states of each layer `(layers, pairs, size)`,
    float32 on the disk."""
    files: dict[str, np.ndarray] = {}
    heard: list[Pair] = []
    batches = ClipReader(judge, _BATCH).inputs(pairs)
    for usable, inputs in progress(batches, "every layer, batches", -(-len(pairs) // _BATCH)):
        for name, states in _of_layers(judge, inputs).items():
            if name not in files:
                shape = states.shape[0], len(pairs), states.shape[2]
                files[name] = np.memmap(folder / name, np.float32, "w+", shape=shape)
            files[name][:, len(heard) : len(heard) + len(usable)] = states.float().cpu().numpy()
        heard += usable
    if not heard:
        raise DataError("no pair has audio that can be used")
    return heard, {name: states[:, : len(heard)] for name, states in files.items()}


def _of_layers(judge: EmpathyJudge, inputs: Inputs) -> dict[str, Tensor]:
    """Of each part what the head could read of each layer `(layers, pairs, size)`."""
    inputs = judge.heard(inputs)
    found = {}
    if isinstance(judge.backbone, AudioLanguageModel):
        with _pooled(judge, inputs) as made:
            judge.backbone.hidden_states(inputs)
        found[LANGUAGE_MODEL] = torch.stack([layer_norm(own, own.shape[-1:]) for own in made])
    layers, _ = judge.head_input.raw(inputs)  # (rows, 3, layers, 2, size)
    assert layers is not None
    found[ENCODER] = layers.transpose(0, 2).transpose(1, 2).flatten(2)
    if inputs.window_weights is not None:
        # what is not known of a context is not known in any of its windows
        found = {name: inputs.window_weights @ own for name, own in found.items()}
    return found


@contextmanager
def _pooled(judge: EmpathyJudge, inputs: Inputs) -> Iterator[list[Tensor]]:
    """Takes what each layer of the language model makes: behind the norm, pooled `(rows, size)`."""
    made: list[Tensor] = []
    backbone = judge.backbone
    norm = backbone.network.get_submodule(backbone.final_norm or "")

    def keep(module: Any, args: Any, output: Any) -> None:
        states = output if isinstance(output, Tensor) else output[0]
        if states.ndim != 3:
            raise UserError(f"layers: backbone {backbone.name}: its layers pass on more than one state for each token")
        made.append(judge.pool_states(norm(states), inputs))

    hooks = [layer.register_forward_hook(keep) for layer in backbone.layers]
    try:
        yield made
    finally:
        for hook in hooks:
            hook.remove()


def _standardised(states: np.ndarray) -> np.ndarray:
    """Every feature at mean 0 and deviation 1 over the pairs; what is not known is 0."""
    values = np.asarray(states, np.float64)
    with np.errstate(invalid="ignore"):
        mean, deviation = np.nanmean(values, 0), np.nanstd(values, 0)
    varies = deviation > 1e-6 * np.abs(mean) + 1e-9
    scaled = np.where(varies, (values - mean) / np.where(varies, deviation, 1.0), 0.0)
    return np.clip(np.nan_to_num(scaled), -_FURTHEST, _FURTHEST)


def _left_out(features: np.ndarray, targets: np.ndarray, groups: np.ndarray, seed: int) -> np.ndarray:
    """Ratings of each pair `(pairs, dimensions)` by a ridge on the pairs of other groups."""
    predicted = np.full_like(targets, np.nan)
    blocks, ones = np.zeros(features.shape[1], int), np.ones_like(targets)
    folds = GroupKFold(min(FOLDS, len(set(groups.tolist()))), shuffle=True, random_state=seed)
    try:
        for rows, left_out in folds.split(features, groups=groups):
            every = Portion(features[rows], targets[rows], ones[rows], groups[rows])
            if len(rows) <= min(EXACT, 2 * len(blocks)):
                solution = fit(every, blocks, None, (None,), seed)
            else:
                cuts = range(0, len(rows), _PORTION)
                portions = (Portion(*(own[start : start + _PORTION] for own in every)) for start in cuts)
                # a ridge on fewer features than these landmarks is the whole ridge
                few = Portion(*(own[: min(LANDMARKS, 2 * len(blocks))] for own in every))
                solution = fit(few, blocks, portions, (None,), seed)
            predicted[left_out] = solution.predict(features[left_out])
    except ValueError as error:
        raise DataError(f"layers: {error}") from None
    return predicted


def _rows(
    part: str,
    first: int,
    dimension: str,
    costs: np.ndarray,
    predicted: Sequence[np.ndarray],
    human: np.ndarray,
    draws: Resamples,
) -> list[Layer]:
    rated = ~np.isnan(human)
    seen = draws.select(rated)
    found = [estimate(spearman, own[rated], human[rated], resamples=seen) for own in predicted]
    best = max(found, key=lambda own: -1.0 if own.value is None else own.value)
    rows = []
    for number, own in enumerate(found):
        apart = Statistic(0.0, 0.0, 0.0) if own is best else difference(best, own, seen)
        rows.append(
            Layer(
                part,
                first + number,
                dimension,
                float(costs[first + number]),
                own.value,
                own.low,
                own.high,
                apart.value,
                apart.low,
                apart.high,
                own.n,
                own.reason or apart.reason,
            )
        )
    return rows


def _enough(rows: Sequence[Layer], part: str) -> int | None:
    """The fewest layers of a part that are told apart from the best on no dimension."""
    depths = sorted({row.depth for row in rows if row.part == part and row.depth > 0})
    for depth in depths:
        own = [row for row in rows if row.part == part and row.depth == depth]
        if all(row.behind_low is not None and row.behind_low <= 0 for row in own):
            return depth
    return None


def layer_table(found: Layers) -> Table:
    """For the terminal: Spearman by depth, with what a depth costs."""
    names = list(dict.fromkeys(row.dimension for row in found.rows))
    table = Table("part", "depth", "cost", *names, title=f"Spearman on groups left out: {found.backbone}")
    for part, depth in dict.fromkeys((row.part, row.depth) for row in found.rows):
        own = {row.dimension: row for row in found.rows if (row.part, row.depth) == (part, depth)}
        cost = f"{100 * next(iter(own.values())).cost:.0f} %"
        table.add_row(part, str(depth), cost, *(_in_words(own[name]) for name in names))
    return table


def _in_words(row: Layer) -> str:
    if row.spearman is None:
        return "-"
    interval = "" if row.low is None else f" ({row.low:.2f} to {row.high:.2f})"
    return f"{row.spearman:.2f}{interval}{' *' if row.behind_low is not None and row.behind_low > 0 else ''}"


def picture(found: Layers) -> Figure:
    """Spearman with intervals against depth, a panel for each dimension."""
    frame = found.to_frame()
    names = list(dict.fromkeys(frame["dimension"]))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.0 + 4.0 * len(names), 3.4), layout="constrained")
        panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axes, name in zip(panels, names, strict=True):
            for part, colour, marker in ((LANGUAGE_MODEL, ACCENT, "o"), (ENCODER, MUTED, "s")):
                own = frame[(frame["dimension"] == name) & (frame["part"] == part)]
                if len(own):
                    value = own["spearman"].astype(float)
                    axes.plot(own["depth"], value, marker=marker, color=colour, label=part)
                    low, high = own["low"].astype(float), own["high"].astype(float)
                    axes.fill_between(own["depth"], low, high, color=colour, alpha=0.15, linewidth=0)
            if found.depth is not None:
                axes.axvline(found.depth, color=MUTED, linestyle=":", label=f"depth {found.depth}")
            axes.set_title(name)
            axes.set_xlabel("layers read")
            axes.xaxis.get_major_locator().set_params(integer=True)
        panels[0].set_ylabel("Spearman on groups left out")
        panels[0].legend(fontsize="small")
    return figure
