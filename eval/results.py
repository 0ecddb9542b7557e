"""The report of a judge, ``agreement.json``, and its statistics as one table of results.

`results_frame` makes tidy rows of reports (`COLUMNS`), ``results.csv`` beside the JSON. Pages, Markdown and terminal
are views of the report. Every field of it, in the order of the file:

The file is strict JSON (no NaN, no Infinity). A *statistic* is an object with the fields of `agreement.Statistic`
(``value``, ``low``, ``high``, ``n``, ``dropped``, ``undefined_resamples``, ``reason``); one that is undefined has the
value null and a reason, and is never 0. Correlations stand on items (one pair, mean over its raters) unless they are
under ``system_level``. Dataclasses are written field by field (`as_report`) and described in their modules.

- ``schema_version``, ``judge``; ``dataset``: ``name, source, licence, synthetic`` (the ratings were not given by
  people), ``content_hash``; ``split`` (null = all pairs), ``split_hash`` (of the whole dataset), ``command``, ``seed``
- ``cluster``: the column whose values intervals draw whole; ``interval``: ``percentile`` or ``bca``; ``resamples``
- ``versions`` of Python and packages; ``provenance``: what the caller knows of the judge (artifact hash, ...)
- ``left_out``: dimensions that only one side has, ``not_judged`` and ``not_rated``
- ``signature``: all that the figures depend on, in one line (`signature`)
- ``in_windows``: pairs that were read in several windows, as a clip is longer than the judge hears at once; null =
  the judge does not say
- ``effort``: ``seconds_per_pair`` of the pass over the unchanged pairs; ``measured``: ``requests`` = what requests
  took, waiting and earlier runs included, several being under way at a time, or ``wall_clock``
- ``asking`` (null for judges that are not prompted): ``pairs`` to be scored, ``scored`` on every dimension,
  ``without_score`` (status -> pairs), ``questions`` to be asked, ``requests`` answered in whatever way, ``kept`` of
  them in earlier runs, ``failed`` questions, ``failure_rate``, ``failures`` (kind -> ``count, rate``), ``cost``
  (dollars, of all answers) and ``cost_per_1000_pairs``, both null for a ``cost_reason``, ``versions`` of the model ->
  pairs, ``version_changed``, ``check_requests`` (what the listening checks took beside these)
- ``dimensions``: name -> all fields of a judge, below, and

  - ``scale``: ``minimum, maximum, higher_is_better``; ``n_groups``, ``n_raters``, ``n_ratings``
  - ``coverage``: ``pairs`` of the split, of them ``rated``, of those ``scored``; ``missing``: rated pairs without a row
    of the judge; ``failed``: status -> rated pairs; ``out_of_scale``: scored outside the scale (they count)
  - ``ceiling``: how well raters agree on the same items (`reliability`): ``spearman`` (leave-one-out human agreement),
    ``panel_mean`` (noise ceiling), ``split_half, panel_reliability, krippendorff_alpha``, ``raters`` (one by one)
  - ``mean_of_k_raters``: list of ``k, expected, measured`` (`reliability.raters_ceiling`)
  - ``uncertainty`` (null where the judge states none): ``standard_error`` (``mean, sd``), ``error_ratio`` (root mean
    square of error / standard error; 1 = as large as stated), ``intervals`` (level in percent -> ``level``, ``covered``
    = share of mean ratings inside, mean ``width`` in rating points), ``surest_half`` (items with the smallest standard
    errors: ``spearman``, and ``gain`` over all items), ``abstained`` (items)
  - ``length``: by ``seconds`` and ``words``: Spearman with the length of the responses of the ``judge``, of the
    ``human`` means, and the ``difference`` (above 0: the judge follows length more than people do)
  - ``asked`` (null for others): ``repeats`` and ``orders`` (`prompted_report`), ``drift``: every two versions of the
    model, ``first, second``, and the mean ``difference`` of scores of the pairs that both answered

- ``checks``: listening check -> dimension -> ``expects`` (`probes.probe.Expects`), ``tolerance`` (95 % of the scores
  may move by so many ``judge_sd``; null where that is not asked), ``spearman`` with the human scores over the ``n``
  items scored in both runs, ``drop`` below the full Spearman of the same items, ``mean_change`` (mean absolute
  difference of scores), ``p95_change``, ``judge_sd`` (of the unchanged pairs; null where constant), ``failed`` (status
  -> items without a score)
- ``voice_and_words``: dimension -> `listening.voice_and_words`, where the two probes were run
- ``slices``: column -> value -> dimension -> ``n_items, n_groups, spearman, mae, bias``, ``checks`` (check ->
  ``expects, n, spearman, drop``), ``intervals`` as above; for columns with two values or more

A judge on a dimension, there and in tables (`agreement_table`):

- ``n_items``; ``judge`` and ``human``: ``mean, sd`` (over n) in rating points, null without items
- ``spearman, pearson, kendall`` (tau-b), ``ccc, icc_a1, icc_c1, mae, rmse, bias, loa_lower, loa_upper`` (`agreement`)
- ``spearman_by_rater``, ``spearman_two_way``: the same value with intervals for other raters of the same items, and for
  other items and raters (`two_way`)
- ``share_of_panel_ceiling``: ceiling-normalised agreement, spearman / noise ceiling: the disattenuated correlation,
  that with the true scores (Spearman, 1904)
- ``like_for_like``: judge and one rater against the same people (`like_for_like.LikeForLike`)
- ``item_pairs``: ``concordance`` (0.5 = chance), ``accuracy`` of pairs ordered or tied as by people, where scores less
  than ``epsilon`` rating points apart are tied, for an ``epsilon_reason`` (`pairwise`)
- ``within_group``: ``spearman, kendall, top_1``: means over groups (`pairwise.GroupLevel`)
- ``scale_use``, ``calibration`` (`calibration`): ``error`` (expected calibration error), ``slope`` and ``intercept`` of
  human on judge score, ``curve`` (bins), ``mapped``: by mapping (``linear, isotonic``) ``mae, rmse, error`` after one
  that was fitted on other groups
- ``system_level``: ``n_systems``, its statistics (``n`` counts systems), ``pairwise_accuracy``
  (`systems`), ``systems`` (``system_id, n_items``, mean scores ``human`` and ``judge``)
- ``verdict``: ``kind`` for machines (`judge_report.verdict`), ``tone``, ``text`` for people

Judges against each other (``ranking``): ``judges``, best first: ``judge``, significance ``cluster`` (1 = best; null
where its agreement is undefined, for a ``reason``), ``spearman``; ``comparisons`` over the ``n_items`` that both
scored: ``first, second, n_groups``, ``difference`` (first minus second, interval of the paired cluster bootstrap),
``p`` (paired permutation test, ``permutations``), ``p_adjusted`` (Holm), ``bootstrap_p, williams_p`` (which
takes items for independent), and `significance.Power`.

Judges over all dimensions (``overall``; statistics count dimensions as ``n``): ``n_dimensions, n_groups, resamples``;
``people``: means of ``spearman`` and ``panel_mean``; ``judges``: ``judge, cluster, n_dimensions, spearman``,
``share_of_panel_ceiling`` (mean over mean), ``like_for_like`` (a person is one rater in all dimensions), ``reason``;
``comparisons``: ``first, second, n_dimensions, difference, p`` (paired bootstrap), ``p_adjusted`` (Holm); ``text``.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from .. import __version__
from ..data_modules.schema import PairDataset
from .judges import Judge
from .rendering import ranged
from .statistics.agreement import Statistic

SCHEMA_VERSION = 3
REPORT_FILE = "agreement.json"
ITEMS_FILE = "items.csv"

Report = dict[str, Any]
"""A report, or a part of it, as it stands in JSON."""


COLUMNS = (
    "judge", "dimension", "slice", "check", "statistic", "value", "low", "high", "n", "reason", "signature",
)  # fmt: skip
"""Of a table of results, in which a row is a statistic: whose it is (``FIRST against SECOND`` where two judges are
compared); on which dimension and part of the items (``COLUMN=VALUE``; None = all); after which listening check (None =
of the unchanged pairs); its name, joined by dots to what it is part of (``ceiling.panel_mean``); its value (None =
undefined) and the ends of its 95 % interval (None = there is none); what it stands on, mostly items; why value or
interval is missing; the signature of the report that it stands in."""
_STATISTIC = {field.name for field in fields(Statistic)} - {"draws"}


@dataclass(frozen=True, eq=False, repr=False)
class Results:
    """What `evaluate` found of one judge; a notebook shows it as a short table.

    Attributes:
        report: All figures, as they stand in ``agreement.json``.
        items: ``pair_id``, ``group_id``, ``dimension``, `evaluate.DEFAULT_SLICES` and the columns that are sliced by,
            ``human_mean`` (NaN = not rated), ``n_raters``, ``score``, ``uncertainty`` (NaN = none), ``status``, and
            ``<check>_score`` per check; of a calibrated judge also its `judges.INTERVAL_COLUMNS` and, where it may
            abstain, `judges.ABSTAINED`.
        dataset: What was judged.
    """

    report: Report
    items: pd.DataFrame
    dataset: PairDataset

    def to_frame(self) -> pd.DataFrame:
        """Every statistic of the report, one row each: see `results_frame`."""
        return results_frame([self.report])

    def save(self, folder: str | Path) -> None:
        """Write what `empathy-judge evaluate` writes: page, JSON, tables of statistics and items, Markdown.

        Args:
            folder: Made if it does not exist.
        """
        from .pages.report import write_report

        write_report(self.report, self.items, Path(folder), self.dataset)

    def __repr__(self) -> str:
        return summary([self.report]).to_string(index=False)

    def _repr_html_(self) -> str:
        return summary_html([self.report])


def results_frame(reports: Sequence[Report], rankings: Mapping[str, Report] | None = None) -> pd.DataFrame:
    """The statistics of reports on datasets, one row each; no two rows have the same first five columns.

    Args:
        reports: One per judge.
        rankings: Dimension -> the judges against each other.

    Returns:
        With `COLUMNS`.
    """
    rows = [(report["judge"], *row, report["signature"]) for report in reports for row in _of_judge(report)]
    for dimension, ranking in (rankings or {}).items():
        shared = joined([report["signature"] for report in reports])
        for own in ranking["comparisons"]:
            (difference,) = _statistics({"difference": own["difference"]})
            rows.append((f"{own['first']} against {own['second']}", dimension, None, None, *difference, shared))
    return pd.DataFrame(rows, columns=pd.Index(COLUMNS))


def summary(reports: Sequence[Report]) -> pd.DataFrame:
    """The first figures to look at, as text: each judge on each dimension, with the people beside it."""
    rows = [
        {
            "judge": report["judge"],
            "dimension": name,
            "items": own["n_items"],
            "Spearman [95 %]": ranged(own["spearman"]),
            "one rater": ranged(own["ceiling"]["spearman"]),
            "noise ceiling": ranged(own["ceiling"]["panel_mean"]),
            "verdict": own["verdict"]["text"],
        }
        for report in reports
        for name, own in report["dimensions"].items()
    ]
    return pd.DataFrame(rows)


def summary_html(reports: Sequence[Report]) -> str:
    """`summary` for a notebook, and what was measured on; every value is escaped."""
    data, split = reports[0]["dataset"], reports[0]["split"]
    ratings = "synthetic" if data["synthetic"] else "human"
    where = f"{data['name']}, {'all pairs' if split is None else f'split {split}'} ({ratings} ratings)"
    with pd.option_context("display.max_colwidth", None):
        table = summary(reports).to_html(index=False, border=0)
    return f"<p>{html.escape(where)}</p>{table}"


def identified(name: str, content: Any, **more: str) -> str:
    """A part of a signature: a name, the short hash of what it names (None = unknown), and what else counts."""
    text = re.sub(r"[^\w.:/+-]", "_", name)  # stands in Markdown and between bars
    if content is not None:
        plain = content if isinstance(content, str) else json.dumps(content, sort_keys=True)
        text += f"@{hashlib.sha256(plain.encode()).hexdigest()[:8]}"
    return ",".join([text, *(f"{key}={value}" for key, value in more.items())])


def signature(
    judge: str,
    data: str,
    split: str,
    cluster: str,
    interval: str,
    resamples: int,
    seed: int,
    ceiling: str = "panel_mean",
) -> str:
    """All that figures of agreement depend on, in one line, as sacreBLEU has it (Post, 2018).

    The first three come from `identified`. Judges stand beside the noise ceiling with the panel mean, or none.
    """
    drawn = f"cluster={cluster},n={resamples},seed={seed},interval={interval}"
    return f"judge:{judge}|data:{data}|split:{split}|ceiling:{ceiling}|boot:{drawn}|version:{__version__}"


def signature_on(
    judge: Judge, dataset: PairDataset, split: str | None, provenance: Mapping[str, Any] | None, **drawn: Any
) -> str:
    """The `signature` of a judge at work on a split of a dataset; `drawn` are its other arguments."""
    left_out = (provenance or {}).get("raters_left_out", ())
    without = {"without": "+".join(left_out)} if left_out else {}
    record = getattr(judge, "record", None) or provenance  # judges of users may have no record
    return signature(
        identified(judge.name, getattr(judge, "identity", record)),
        identified(dataset.card.name, dataset.card.content_hash, **without),
        identified(split or "all", dataset.split_hash() if split else None),
        **drawn,
    )


def joined(signatures: Sequence[str]) -> str:
    """The signature of judges that were measured alike."""
    judges = [own.split("|")[0].removeprefix("judge:") for own in signatures]
    return f"judge:{'+'.join(judges)}|{signatures[0].partition('|')[2]}"


def measured_apart(one: str, other: str) -> list[str]:
    """The parts of one signature on data, split and bootstrap in which it differs from another."""
    first, second = ({part.partition(":")[0]: part for part in own.split("|")} for own in (one, other))
    apart = (name for name in ("data", "split", "boot") if first.get(name) != second.get(name))
    return [first.get(name, f"{name}: unknown") for name in apart]


def _of_judge(report: Report) -> Iterator[tuple[Any, ...]]:
    """Rows of `COLUMNS` without judge and signature."""
    for dimension, own in report["dimensions"].items():
        panels = {str(raters["k"]): raters for raters in own["mean_of_k_raters"]}
        trees: list[tuple[str | None, str | None, Report]] = [(None, None, own)]
        trees.append((None, None, {"mean_of_k_raters": panels}))
        trees += [(None, check, found[dimension]) for check, found in report["checks"].items()]
        trees.append((None, None, {"voice_and_words": report["voice_and_words"].get(dimension, {})}))
        for column, values in report["slices"].items():
            for value, found in values.items():
                part = f"{column}={value}"
                trees.append((part, None, found[dimension] | {"checks": None}))
                trees += [(part, check, left) for check, left in found[dimension]["checks"].items()]
        for part, check, tree in trees:
            yield from ((dimension, part, check, *row) for row in _statistics(tree))


def _statistics(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[Any, ...]]:
    """The statistics that stand in a report, at whatever depth."""
    for name, own in tree.items():
        if isinstance(own, Mapping) and set(own) == _STATISTIC:
            yield f"{prefix}{name}", own["value"], own["low"], own["high"], own["n"], own["reason"]
        elif isinstance(own, Mapping):
            yield from _statistics(own, f"{prefix}{name}.")
