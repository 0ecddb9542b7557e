"""A report as CSV: every statistic once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def statistics(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        if "undefined_resamples" in tree:
            yield tree
        else:
            for branch in tree.values():
                yield from statistics(branch)
    elif isinstance(tree, list):
        for branch in tree:
            yield from statistics(branch)


def test_every_statistic_of_the_report_is_one_row(two_dimensions):
    table = two_dimensions.to_frame()
    key = ["judge", "dimension", "slice", "check", "statistic"]
    assert not table.duplicated(key).any()
    assert set(table["judge"]) == {"tone judge"}
    whole: Any = two_dimensions.report
    parts = [whole.as_json()[part] for part in ("dimensions", "checks", "slices", "voice_and_words")]
    assert len(table) == sum(1 for part in parts for _ in statistics(part))
    found = table.fillna({"slice": "", "check": ""}).set_index(key[1:])
    for name, own in whole.dimensions.items():
        for where, wanted in {
            ("", "", "spearman"): own.spearman,
            ("", "", "ceiling.panel_mean"): own.ceiling.panel_mean,
            ("", "", "system_level.spearman"): own.system_level.spearman,
            ("", "response_only", "drop"): whole.checks["response_only"][name].drop,
            ("setting=tone_variant", "", "spearman"): whole.slices["setting"]["tone_variant"][name].spearman,
        }.items():
            row: Any = found.loc[(name, *where)]
            assert (row.value, row.low, row.n) == (wanted.value, wanted.low, wanted.n)
