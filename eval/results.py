"""Reports as files: JSON, and the statistics of a report as tidy rows (`COLUMNS`), ``results.csv``; and signatures."""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..core.version import __version__
from ..core.written import write_files
from .rendering import ranged
from .report.base import Part, Versioned
from .report.dataset import Ranking, Report
from .report.others import StressReport
from .statistics.agreement import Statistic

if TYPE_CHECKING:
    from ..data_modules.schema import PairDataset
    from .judges import Judge

REPORT_FILE = "agreement.json"
ITEMS_FILE = "items.csv"

COLUMNS = (
    "judge", "dimension", "slice", "check", "statistic", "value", "low", "high", "n", "reason", "signature",
)  # fmt: skip
"""Columns of a table of results, one statistic per row: the judge (``FIRST against SECOND`` where two are compared);
the dimension; the slice of the items (``COLUMN=VALUE``; None = all); the listening check (None = the unchanged pairs);
the name of the statistic, joined by dots to what it is part of (``ceiling.panel_mean``); its value (None = undefined)
and the ends of its 95 % interval (None = there is none); n, mostly the number of items; why value or interval
is missing; the signature of its report."""


def results_frame(reports: Sequence[Report], rankings: Mapping[str, Ranking] | None = None) -> pd.DataFrame:
    """The statistics of the reports of judges and of the rankings of dimensions: a row of `COLUMNS` each, which its
    first five columns identify."""
    rows = [(report.judge, *row, report.signature) for report in reports for row in _of_judge(report)]
    for dimension, ranking in (rankings or {}).items():
        shared = joined([report.signature for report in reports])
        for pair in ranking.comparisons:
            (difference,) = statistic_rows({"difference": pair.difference})
            rows.append((f"{pair.first} against {pair.second}", dimension, None, None, *difference, shared))
    return pd.DataFrame(rows, columns=pd.Index(COLUMNS))


def stress_frame(found: StressReport) -> pd.DataFrame:
    """The statistics of a report of `stress` as rows of `results.COLUMNS`."""
    rows = [
        (found.judge, dimension, None, check, *row, found.signature)
        for dimension, checks in found.dimensions.items()
        for check, result in checks.items()
        for row in statistic_rows(result)
    ]
    return pd.DataFrame(rows, columns=pd.Index(COLUMNS))


def write_results(command: str, folder: Path, files: Mapping[str, Any]) -> None:
    """`written.write_files` of tables as CSV, reports as strict JSON, and texts and bytes as they are.

    Raises:
        ValueError: If a report holds NaN or infinity; nothing is written.
        UserError, OSError: As `write_files`.
    """
    write_files(command, folder, {name: _content(content) for name, content in files.items()})


def _content(own: pd.DataFrame | Versioned | str | bytes) -> bytes:
    if isinstance(own, pd.DataFrame):
        own = own.to_csv(index=False, lineterminator="\n")
    elif isinstance(own, Versioned):
        own = json.dumps(own.as_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return own if isinstance(own, bytes) else own.encode()


def summary(reports: Sequence[Report]) -> pd.DataFrame:
    """The first figures to look at, as text: each judge on each dimension, with the people beside it."""
    rows = [
        {
            "judge": report.judge,
            "dimension": name,
            "items": result.n_items,
            "Spearman [95 %]": ranged(result.spearman),
            "one rater": ranged(result.ceiling.spearman),
            "noise ceiling": ranged(result.ceiling.panel_mean),
            "verdict": result.verdict.text,
        }
        for report in reports
        for name, result in report.dimensions.items()
    ]
    return pd.DataFrame(rows)


def summary_html(reports: Sequence[Report]) -> str:
    """`summary` for a notebook, with the dataset and split; every value is escaped."""
    data, split = reports[0].dataset, reports[0].split
    ratings = "synthetic" if data.synthetic else "human"
    where = f"{data.name}, {'all pairs' if split is None else f'split {split}'} ({ratings} ratings)"
    # pandas cuts a text after 50 characters
    with pd.option_context("display.max_colwidth", None):
        table = summary(reports).to_html(index=False, border=0)
    return f"<p>{html.escape(where)}</p>{table}"


def identified(name: str, content: Any, **more: str) -> str:
    """A part of a signature: a name, the short hash of what it names (None = unknown), and what else counts."""
    # A signature stands in Markdown, and its parts between bars
    text = re.sub(r"[^\w.:/+-]", "_", name)
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
    """All that figures of agreement depend on, in one line, as in sacreBLEU (Post, 2018).

    The first three parts come from `identified`. The noise ceiling is that of the panel mean, or none.
    """
    drawn = f"cluster={cluster},n={resamples},seed={seed},interval={interval}"
    return f"judge:{judge}|data:{data}|split:{split}|ceiling:{ceiling}|boot:{drawn}|version:{__version__}"


def signature_on(
    judge: Judge, dataset: PairDataset, split: str | None, provenance: Mapping[str, Any] | None, **bootstrap: Any
) -> str:
    """The `signature` of a judge at work on a split of a dataset; `bootstrap` are its other arguments."""
    left_out = (provenance or {}).get("raters_left_out", ())
    without = {"without": "+".join(left_out)} if left_out else {}
    # Judges of users may have no record
    record = getattr(judge, "record", None) or provenance
    return signature(
        identified(judge.name, getattr(judge, "identity", record)),
        identified(dataset.card.name, dataset.card.content_hash, **without),
        identified(split or "all", dataset.split_hash() if split else None),
        **bootstrap,
    )


def joined(signatures: Sequence[str]) -> str:
    """One signature for several judges that were measured in the same way."""
    judges = [text.split("|")[0].removeprefix("judge:") for text in signatures]
    return f"judge:{'+'.join(judges)}|{signatures[0].partition('|')[2]}"


def measured_apart(one: str, other: str) -> list[str]:
    """Parts of the first signature, of data, split and bootstrap, that differ from the second one."""
    first, second = ({part.partition(":")[0]: part for part in text.split("|")} for text in (one, other))
    differing = (name for name in ("data", "split", "boot") if first.get(name) != second.get(name))
    return [first.get(name, f"{name}: unknown") for name in differing]


def _of_judge(report: Report) -> Iterator[tuple[Any, ...]]:
    """Rows of `COLUMNS` without judge and signature."""
    for dimension, result in report.dimensions.items():
        panels = {str(raters.k): raters for raters in result.mean_of_k_raters}
        trees: list[tuple[str | None, str | None, Any]] = [(None, None, result)]
        trees.append((None, None, {"mean_of_k_raters": panels}))
        trees += [(None, check, own) for check, own in report.checks_of(dimension).items()]
        trees.append((None, None, {"voice_and_words": report.voice_and_words.get(dimension)}))
        for column, values in report.slices.items():
            for value, by_dimension in values.items():
                part, own = f"{column}={value}", by_dimension[dimension]
                # Checks of a slice have rows of their own below, under their names
                trees.append((part, None, {**dict(own), "checks": None}))
                trees += [(part, check, after) for check, after in own.checks.items()]
        for part, check, tree in trees:
            yield from ((dimension, part, check, *row) for row in statistic_rows(tree))


def statistic_rows(tree: Any, name: str = "") -> Iterator[tuple[Any, ...]]:
    """All statistics in a part of a report, at any depth but not in lists: name, value, low, high, n, reason."""
    if isinstance(tree, Statistic):
        yield name, tree.value, tree.low, tree.high, tree.n, tree.reason
        return
    if is_dataclass(tree):
        tree = {field.name: getattr(tree, field.name) for field in fields(tree)}
    for key, own in dict(tree).items() if isinstance(tree, Part | Mapping) else ():
        yield from statistic_rows(own, f"{name}.{key}" if name else key)
