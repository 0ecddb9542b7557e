"""How deep a judge has to read: how well each layer of a frozen backbone predicts the ratings.

One pass over the rated pairs pools the states of every layer, of the language model and of the audio encoder. They go
to a file, so that memory is bounded by one layer of all pairs. A ridge regression for each layer predicts the ratings
of groups that it was not fitted to; its penalty is chosen inside (nested cross-validation). No layer is trained.
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
from ..data_modules.unchanged import check_unchanged
from ..models.backbones.audio_language_model import AudioLanguageModel
from ..models.backbones.base import Inputs
from ..models.backbones.layers import made_by
from ..models.closed_form import EXACT, FOLDS, LANDMARKS, Portion, fit
from ..models.judge import EmpathyJudge
from ..models.probe import ClipReader, shuffled, without_adapters
from ..models.scoring import choose_device
from ..models.settings import HeadInputSettings
from .judges.baselines.probe import settings_of
from .pages.charts import ACCENT, MUTED, STYLE, png
from .rendering import percent, ranged
from .results import Report, write_results
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
        dataset: Pairs with ratings.
        splits: Splits whose pairs are used.
        device: "cpu", "cuda", ...; None = a GPU if there is one.
        resamples: Bootstrap resamples of the intervals.
        seed: Seed of the order of pairs, of folds and of resamples.

    Returns:
        ``backbone``; ``layers`` of it; ``depth``: the fewest that are told apart from the best on no dimension (null
        where no interval says so); ``encoder_ahead``: dimensions on which the best layer of the audio encoder is ahead
        of every layer of the language model (best on these very pairs: of many layers, one may be best by chance);
        ``recipe``: what to write into one; ``rows``: for each ``part`` of the backbone, ``depth`` (layers read; 0 =
        what the first layer of an encoder reads) and ``dimension`` the ``cost`` (share of the weights of all layers of
        this part that are read, and of their products), ``spearman`` on groups left out with ``low, high``, ``behind``:
        Spearman of the best layer of this part less this one, with ``behind_low, behind_high`` on the same draws (above
        0 = this layer is worse), ``n`` pairs, and the ``reason`` why there is no value or no interval.

    Raises:
        UserError: If there is no such judge or backbone, or its layers pass on more than one state for each token.
        DataError: If a dimension has ratings of fewer than two groups, or audio is not what was imported.
    """
    check_unchanged(dataset)
    part = dataset.subset(
        [name for name in splits if any(pair.split == name for pair in dataset.pairs)] or list(splits)
    )
    means = part.mean_scores().dropna(axis=1, how="all")
    dimensions = tuple(dimension for dimension in dataset.card.dimensions if dimension.name in means)
    values = means[[dimension.name for dimension in dimensions]].to_numpy(np.float64)
    ratings_of = dict(zip((pair.pair_id for pair in part.pairs), values, strict=True))
    pairs = shuffled([pair for pair in part.pairs if np.isfinite(ratings_of[pair.pair_id]).any()], seed)
    if not pairs:
        raise DataError(f"{dataset.root}: no pair of {', '.join(splits)} has a rating")
    heard = HeadInputSettings("all_layers")
    settings = replace(settings_of(what), depth=None, depth_norm=True, pooling="response_mean", head_input=heard)
    judge = EmpathyJudge(without_adapters(settings), dimensions).to(choose_device(device)).eval().requires_grad_(False)
    costs = _costs(judge)
    rows: list[Report] = []
    best: dict[str, list[Statistic]] = {LANGUAGE_MODEL: [], ENCODER: []}  # of the dimensions
    with tempfile.TemporaryDirectory() as folder:
        heard, files = _read(judge, pairs, Path(folder))
        targets = np.stack([ratings_of[pair.pair_id] for pair in heard])
        groups = np.array(kept_together(heard, dataset.pairs))
        draws = Resamples.draw(groups, resamples, seed)
        for name, layer_states in files.items():
            by_layer = []
            for depth in progress(range(len(layer_states)), f"ridge on each layer of the {name}", len(layer_states)):
                by_layer.append(left_out(layer_states[depth], targets, groups, seed))
            first = len(costs[name]) - len(layer_states)  # an encoder begins with what its first layer reads
            for column, dimension in enumerate(dimensions):
                predictions = [prediction[:, column] for prediction in by_layer]
                own, of_part = _rows(name, first, dimension.name, costs[name], predictions, targets[:, column], draws)
                rows += own
                best[name].append(of_part)
        ahead = [
            dimension.name
            for dimension, ear, model, rated in zip(
                dimensions, best[ENCODER], best[LANGUAGE_MODEL], ~np.isnan(targets.T), strict=False
            )
            if (difference(ear, model, draws.select(rated)).low or 0.0) > 0
        ]
    rows.sort(key=lambda row: (row["part"] != LANGUAGE_MODEL, row["depth"], row["dimension"]))
    depth = _enough(rows, LANGUAGE_MODEL if isinstance(judge.backbone, AudioLanguageModel) else ENCODER)
    parts = [] if ahead and len(ahead) == len(dimensions) else [f"depth: {'null' if depth is None else depth}"]
    parts += ["head_input: {audio: all_layers}"] if ahead else []
    found = {"backbone": what, "layers": len(judge.backbone.layers), "depth": depth, "encoder_ahead": ahead}
    return {**found, "recipe": f"judge: {{{', '.join(parts)}}}", "rows": rows}


def save_layers(found: Report, folder: Path) -> None:
    """Write `layers.csv`, `layers.json` and `layers.png`."""
    image = png(picture(found), dpi=150)
    write_results(
        "layers", folder, {"layers.csv": pd.DataFrame(found["rows"]), "layers.json": found, "layers.png": image}
    )


def _costs(judge: EmpathyJudge) -> dict[str, np.ndarray]:
    """For each part of the backbone, the share of the weights of its layers that are read at depth 0, 1, ..."""
    backbone = judge.backbone
    of_encoder = np.arange(backbone.layer_sizes[0]) / max(1, backbone.layer_sizes[0] - 1)
    counts = np.cumsum([0, *(sum(weights.numel() for weights in layer.parameters()) for layer in backbone.layers)])
    if not isinstance(backbone, AudioLanguageModel):
        return {ENCODER: counts / counts[-1]}
    return {LANGUAGE_MODEL: counts / counts[-1], ENCODER: of_encoder}


@torch.inference_mode()
def _read(judge: EmpathyJudge, pairs: Sequence[Pair], folder: Path) -> tuple[list[Pair], dict[str, np.ndarray]]:
    """Run the backbone once over all pairs. Returns the pairs whose audio can be used, and for each part the states of
    each layer `(layers, pairs, size)`, float32 on the disk."""
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
    """For each part, the states of each layer as the head could read them `(layers, pairs, size)`."""
    inputs = judge.heard(inputs)
    pooled_states = {}
    backbone = judge.backbone
    if isinstance(backbone, AudioLanguageModel):
        norm = backbone.network.get_submodule(backbone.final_norm or "")

        def pooled(states: Tensor) -> Tensor:
            if states.ndim != 3:
                name = backbone.name
                raise UserError(f"layers: backbone {name}: its layers pass on more than one state for each token")
            return judge.pool_states(norm(states), inputs)

        with made_by(backbone.layers, pooled) as layer_states:
            backbone.hidden_states(replace(inputs, packed=None))
        pooled_states[LANGUAGE_MODEL] = torch.stack([layer_norm(states, states.shape[-1:]) for states in layer_states])
    layers, _ = judge.head_input.raw(inputs)  # (rows, 3, layers, 2, size)
    assert layers is not None
    pooled_states[ENCODER] = layers.transpose(0, 2).transpose(1, 2).flatten(2)
    if inputs.window_weights is not None:
        # what is not known of a context is not known in any of its windows
        pooled_states = {name: inputs.window_weights @ states for name, states in pooled_states.items()}
    return pooled_states


def _standardised(states: np.ndarray) -> np.ndarray:
    """Scale every feature to mean 0 and standard deviation 1 over the pairs; NaN becomes 0, the mean."""
    values = np.array(states, np.float64)
    values[:, np.isnan(values).all(0)] = 0.0  # what no pair has, such as a context
    mean, deviation = np.nanmean(values, 0), np.nanstd(values, 0)
    varies = deviation > 1e-6 * np.abs(mean) + 1e-9
    scaled = np.where(varies, (values - mean) / np.where(varies, deviation, 1.0), 0.0)
    return np.clip(np.nan_to_num(scaled), -_FURTHEST, _FURTHEST)


def left_out(features: np.ndarray, targets: np.ndarray, groups: np.ndarray, seed: int) -> np.ndarray:
    """Predicted ratings of each pair `(pairs, dimensions)`, by a ridge regression on the pairs of other groups.

    Args:
        features: Shape (pairs, k); NaN = not known, and counts as the mean.
        targets: Shape (pairs, dimensions), rating points; NaN = no rating.
        groups: Shape (pairs,); pairs of a group are in the same fold.
        seed: Seed of the folds.

    Raises:
        DataError: If a dimension has ratings of fewer than two groups.
    """
    predicted, features = np.full_like(targets, np.nan), _standardised(features)
    blocks, ones = np.zeros(features.shape[1], int), np.ones_like(targets)
    folds = GroupKFold(min(FOLDS, len(set(groups.tolist()))), shuffle=True, random_state=seed)
    try:
        for rows, test in folds.split(features, groups=groups):
            train = Portion(features[rows], targets[rows], ones[rows], groups[rows])
            if len(rows) <= min(EXACT, 2 * len(blocks)):
                solution = fit(train, blocks, None, (None,), seed)
            else:
                cuts = range(0, len(rows), _PORTION)
                portions = (Portion(*(array[start : start + _PORTION] for array in train)) for start in cuts)
                # a ridge on fewer features than these landmarks is the whole ridge
                landmarks = Portion(*(array[: min(LANDMARKS, 2 * len(blocks))] for array in train))
                solution = fit(landmarks, blocks, portions, (None,), seed)
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
) -> tuple[list[Report], Statistic]:
    """The rows of a part on one dimension, and the Spearman of its best layer."""
    rated = ~np.isnan(human)
    rated_draws = draws.select(rated)
    correlations = [
        estimate(spearman, prediction[rated], human[rated], resamples=rated_draws) for prediction in predicted
    ]
    best = max(correlations, key=lambda correlation: -1.0 if correlation.value is None else correlation.value)
    rows = []
    for depth, correlation in enumerate(correlations, first):
        behind = Statistic(0.0, 0.0, 0.0) if correlation is best else difference(best, correlation, rated_draws)
        row = {"part": part, "depth": depth, "dimension": dimension, "cost": float(costs[depth])}
        row |= {"spearman": correlation.value, "low": correlation.low, "high": correlation.high}
        row |= {"behind": behind.value, "behind_low": behind.low, "behind_high": behind.high}
        rows.append({**row, "n": correlation.n, "reason": correlation.reason or behind.reason})
    return rows, best


def _enough(rows: Sequence[Report], part: str) -> int | None:
    """The fewest layers of a part that are told apart from the best on no dimension."""
    candidates = [row for row in rows if row["part"] == part and row["depth"] > 0]
    worse = {row["depth"] for row in candidates if row["behind_low"] is None or row["behind_low"] > 0}
    return min({row["depth"] for row in candidates} - worse, default=None)


def layer_views(found: Report) -> Iterator[Table | str]:
    """A table for the terminal, Spearman and cost by depth, and a sentence on how deep to read."""
    names = dict.fromkeys(row["dimension"] for row in found["rows"])
    table = Table("part", "depth", "cost", *names, title=f"Spearman on groups left out: {found['backbone']}")
    cells: dict[tuple[str, int, float], list[str]] = {}
    for row in found["rows"]:  # of one part and depth in the order of the dimensions
        spearman = ranged({"value": row["spearman"], "low": row["low"], "high": row["high"]})
        worse = " *" if (row["behind_low"] or 0) > 0 else ""
        cells.setdefault((row["part"], row["depth"], row["cost"]), []).append(f"{spearman}{worse}")
    for (part, depth, cost), spearman in cells.items():
        table.add_row(part, str(depth), percent(cost), *spearman)
    yield table
    if any("*" in text for spearman in cells.values() for text in spearman):
        yield "* worse than the best layer of its part (95 % interval of the difference above 0)"
    ahead = found["encoder_ahead"]
    if ahead:
        yield f"{', '.join(ahead)}: the audio encoder alone is ahead of every layer of the language model"
    if len(ahead) == len(names):
        yield f"What the head reads matters more than the depth. In a recipe: {found['recipe']}"
    elif found["depth"] is None:
        yield "no depth stands out: there are too few groups for intervals"
    else:
        depth = f"A judge of depth {found['depth']} (of {found['layers']}) is not told apart from the best"
        yield f"{depth}. In a recipe: {found['recipe']}"


def picture(found: Report) -> Figure:
    """Spearman with intervals against depth, a panel for each dimension."""
    frame = pd.DataFrame(found["rows"])
    names = list(frame["dimension"].unique())
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.0 + 4.0 * len(names), 3.4), layout="constrained")
        panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axes, name in zip(panels, names, strict=True):
            for part, colour, marker in ((LANGUAGE_MODEL, ACCENT, "o"), (ENCODER, MUTED, "s")):
                rows = frame[(frame["dimension"] == name) & (frame["part"] == part)]
                depths, value, low, high = (rows[key].astype(float) for key in ("depth", "spearman", "low", "high"))
                if len(rows):
                    axes.plot(depths, value, marker=marker, color=colour, label=part)
                    axes.fill_between(depths, low, high, color=colour, alpha=0.15, linewidth=0)
            if found["depth"] is not None and len(found["encoder_ahead"]) < len(names):  # as the recipe
                axes.axvline(found["depth"], color=MUTED, linestyle=":", label=f"depth {found['depth']}")
            axes.set_title(name)
            axes.set_xlabel("layers read")
            axes.xaxis.get_major_locator().set_params(integer=True)
        panels[0].set_ylabel("Spearman on groups left out")
        panels[0].legend(fontsize="small")
    return figure
