"""How deep a judge has to read: what each layer of a frozen backbone says of the ratings.

One pass over the rated pairs pools the states of every layer, of the language model and of the audio encoder. They go
to a file, so that memory is bounded by one layer of all pairs. A ridge for each layer predicts the ratings of groups
that it was not fitted to; its penalty is chosen inside (nested cross-validation). No layer of a backbone is trained.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

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
from ..models.backbones.layers import made_by
from ..models.closed_form import EXACT, FOLDS, LANDMARKS, Portion, fit
from ..models.head_input import HeadInputSettings
from ..models.judge import EmpathyJudge
from ..models.probe import ClipReader, shuffled, without_adapters
from ..models.scoring import choose_device
from .judges.baselines.probe import settings_of
from .pages.charts import ACCENT, LIGHT, LIGHT_STYLE, MUTED, png
from .rendering import percent, ranged
from .results import Report, write_files
from .statistics.agreement import Statistic, spearman
from .statistics.bootstrap import Resamples, difference, estimate

LANGUAGE_MODEL, ENCODER = "language model", "audio encoder"
_BATCH, _PORTION = 16, 2_000
_FURTHEST = 5.0  # standard deviations


def measure_layers(
    what: str,
    dataset: PairDataset,
    splits: Sequence[str] = ("train", "validation"),
    *,
    device: str | None = None,
    resamples: int = 1_000,
    seed: int = 0,
) -> Report:
    """Measure every layer.

    Args:
        what: A judge folder, a run folder or a backbone. Of a judge, nothing that was trained is used.
        dataset: With ratings.
        splits: Whose pairs.
        device: "cpu", "cuda", ...; None = a GPU if there is one.
        resamples: Of the intervals.
        seed: Of the order of pairs, folds and resamples.

    Returns:
        ``backbone``; ``layers`` of it; ``depth``: the fewest that are told apart from the best on no dimension (null
        where no interval says so); ``recipe``: what to write into one; ``rows``: for each ``part`` of the backbone,
        ``depth`` (layers read; 0 = what the first layer of an encoder reads) and ``dimension`` the ``cost`` (share of
        the weights of all layers of this part that are read, and of their products), ``spearman`` on groups left out
        with ``low, high``, ``behind``: Spearman of the best layer of this part less this one, with ``behind_low,
        behind_high`` on the same draws (above 0 = this layer is worse), ``n`` pairs, and the ``reason`` why there is no
        value or no interval.

    Raises:
        UserError: If there is no such judge or backbone, or its layers pass on more than one state for each token.
        DataError: If a dimension has ratings of fewer than two groups.
    """
    part = dataset.subset(
        [name for name in splits if any(pair.split == name for pair in dataset.pairs)] or list(splits)
    )
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
    rows: list[Report] = []
    with tempfile.TemporaryDirectory() as folder:
        heard, files = _read(judge, pairs, Path(folder))
        targets = np.stack([of_pair[pair.pair_id] for pair in heard])
        groups = np.array(kept_together(heard, dataset.pairs))
        draws = Resamples.draw(groups, resamples, seed)
        for name, own in files.items():
            predicted = []
            for depth in progress(range(len(own)), f"ridge on each layer of the {name}", len(own)):
                predicted.append(left_out(own[depth], targets, groups, seed))
            first = len(costs[name]) - len(own)  # an encoder begins with what its first layer reads
            for column, dimension in enumerate(dimensions):
                made = [values[:, column] for values in predicted]
                rows += _rows(name, first, dimension.name, costs[name], made, targets[:, column], draws)
    rows.sort(key=lambda row: (row["part"] != LANGUAGE_MODEL, row["depth"], row["dimension"]))
    depth = _enough(rows, LANGUAGE_MODEL if isinstance(judge.backbone, AudioLanguageModel) else ENCODER)
    recipe = f"judge: {{depth: {'null' if depth is None else depth}}}"
    return {"backbone": what, "layers": len(judge.backbone.layers), "depth": depth, "recipe": recipe, "rows": rows}


def save_layers(found: Report, folder: Path) -> None:
    """Write `layers.csv`, `layers.json` and `layers.png`."""
    drawn = png(picture(found), dpi=150)
    write_files(folder, {"layers.csv": pd.DataFrame(found["rows"]), "layers.json": found, "layers.png": drawn})


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
    backbone = judge.backbone
    if isinstance(backbone, AudioLanguageModel):
        norm = backbone.network.get_submodule(backbone.final_norm or "")

        def pooled(states: Tensor) -> Tensor:
            if states.ndim != 3:
                name = backbone.name
                raise UserError(f"layers: backbone {name}: its layers pass on more than one state for each token")
            return judge.pool_states(norm(states), inputs)

        with made_by(backbone.layers, pooled) as made:
            backbone.hidden_states(replace(inputs, packed=None))
        found[LANGUAGE_MODEL] = torch.stack([layer_norm(own, own.shape[-1:]) for own in made])
    layers, _ = judge.head_input.raw(inputs)  # (rows, 3, layers, 2, size)
    assert layers is not None
    found[ENCODER] = layers.transpose(0, 2).transpose(1, 2).flatten(2)
    if inputs.window_weights is not None:
        # what is not known of a context is not known in any of its windows
        found = {name: inputs.window_weights @ own for name, own in found.items()}
    return found


def _standardised(states: np.ndarray) -> np.ndarray:
    """Every feature at mean 0 and deviation 1 over the pairs; what is not known is 0."""
    values = np.array(states, np.float64)
    values[:, np.isnan(values).all(0)] = 0.0  # what no pair has, such as a context
    mean, deviation = np.nanmean(values, 0), np.nanstd(values, 0)
    varies = deviation > 1e-6 * np.abs(mean) + 1e-9
    scaled = np.where(varies, (values - mean) / np.where(varies, deviation, 1.0), 0.0)
    return np.clip(np.nan_to_num(scaled), -_FURTHEST, _FURTHEST)


def left_out(features: np.ndarray, targets: np.ndarray, groups: np.ndarray, seed: int) -> np.ndarray:
    """Ratings of each pair `(pairs, dimensions)` by a ridge on the pairs of other groups.

    Args:
        features: Shape (pairs, k); NaN = not known, and counts as the mean.
        targets: Shape (pairs, dimensions), rating points; NaN = no rating.
        groups: Shape (pairs,), what folds keep together.
        seed: Of the folds.

    Raises:
        DataError: If a dimension has ratings of fewer than two groups.
    """
    predicted, features = np.full_like(targets, np.nan), _standardised(features)
    blocks, ones = np.zeros(features.shape[1], int), np.ones_like(targets)
    folds = GroupKFold(min(FOLDS, len(set(groups.tolist()))), shuffle=True, random_state=seed)
    try:
        for rows, test in folds.split(features, groups=groups):
            every = Portion(features[rows], targets[rows], ones[rows], groups[rows])
            if len(rows) <= min(EXACT, 2 * len(blocks)):
                solution = fit(every, blocks, None, (None,), seed)
            else:
                cuts = range(0, len(rows), _PORTION)
                portions = (Portion(*(own[start : start + _PORTION] for own in every)) for start in cuts)
                # a ridge on fewer features than these landmarks is the whole ridge
                few = Portion(*(own[: min(LANDMARKS, 2 * len(blocks))] for own in every))
                solution = fit(few, blocks, portions, (None,), seed)
            predicted[test] = solution.predict(features[test])
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
) -> list[Report]:
    rated = ~np.isnan(human)
    seen = draws.select(rated)
    found = [estimate(spearman, own[rated], human[rated], resamples=seen) for own in predicted]
    best = max(found, key=lambda own: -1.0 if own.value is None else own.value)
    rows = []
    for depth, own in enumerate(found, first):
        apart = Statistic(0.0, 0.0, 0.0) if own is best else difference(best, own, seen)
        row = {"part": part, "depth": depth, "dimension": dimension, "cost": float(costs[depth])}
        row |= {"spearman": own.value, "low": own.low, "high": own.high}
        row |= {"behind": apart.value, "behind_low": apart.low, "behind_high": apart.high}
        rows.append({**row, "n": own.n, "reason": own.reason or apart.reason})
    return rows


def _enough(rows: Sequence[Report], part: str) -> int | None:
    """The fewest layers of a part that are told apart from the best on no dimension."""
    own = [row for row in rows if row["part"] == part and row["depth"] > 0]
    worse = {row["depth"] for row in own if row["behind_low"] is None or row["behind_low"] > 0}
    return min({row["depth"] for row in own} - worse, default=None)


def layer_views(found: Report) -> Iterator[Table | str]:
    """For the terminal: Spearman by depth, with what a depth costs, and how deep to read."""
    names = dict.fromkeys(row["dimension"] for row in found["rows"])
    table = Table("part", "depth", "cost", *names, title=f"Spearman on groups left out: {found['backbone']}")
    cells: dict[tuple[str, int, float], list[str]] = {}
    for row in found["rows"]:  # of one part and depth in the order of the dimensions
        own = ranged({"value": row["spearman"], "low": row["low"], "high": row["high"]})
        worse = " *" if (row["behind_low"] or 0) > 0 else ""
        cells.setdefault((row["part"], row["depth"], row["cost"]), []).append(f"{own}{worse}")
    for (part, depth, cost), own in cells.items():
        table.add_row(part, str(depth), percent(cost), *own)
    yield table
    if found["depth"] is None:
        yield "no depth stands out: there are too few groups for intervals"
    else:
        depth = f"A judge of depth {found['depth']} (of {found['layers']}) is not told apart from the best"
        yield f"{depth}. In a recipe: {found['recipe']}"


def picture(found: Report) -> Figure:
    """Spearman with intervals against depth, a panel for each dimension."""
    frame = pd.DataFrame(found["rows"])
    names = list(frame["dimension"].unique())
    with matplotlib.rc_context(LIGHT_STYLE):
        figure = Figure(figsize=(1.0 + 4.0 * len(names), 3.4), layout="constrained")
        panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axes, name in zip(panels, names, strict=True):
            for part, colour, marker in ((LANGUAGE_MODEL, LIGHT[ACCENT], "o"), (ENCODER, LIGHT[MUTED], "s")):
                own = frame[(frame["dimension"] == name) & (frame["part"] == part)]
                depths, value, low, high = (own[of].astype(float) for of in ("depth", "spearman", "low", "high"))
                if len(own):
                    axes.plot(depths, value, marker=marker, color=colour, label=part)
                    axes.fill_between(depths, low, high, color=colour, alpha=0.15, linewidth=0)
            if found["depth"] is not None:
                axes.axvline(found["depth"], color=LIGHT[MUTED], linestyle=":", label=f"depth {found['depth']}")
            axes.set_title(name)
            axes.set_xlabel("layers read")
            axes.xaxis.get_major_locator().set_params(integer=True)
        panels[0].set_ylabel("Spearman on groups left out")
        panels[0].legend(fontsize="small")
    return figure
