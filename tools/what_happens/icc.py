"""ICC of R's psych, pingouin and this package: the table of Shrout and Fleiss (1979), whole and without a cell."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.icc import FORMS, icc

WHOLE = ((9, 2, 5, 8), (6, 1, 3, 2), (8, 4, 6, 8), (7, 1, 2, 6), (10, 5, 6, 9), (6, 2, 4, 7))
"""Six items by four raters."""
IN_R = """
library(psych)
cat(as.character(packageVersion("psych")), as.character(getRversion()), "\\n")
whole <- matrix(c(%s), ncol = 4, byrow = TRUE)
gap <- whole
gap[1, 1] <- NA
for (table in list(whole, gap)) for (lmer in c(FALSE, TRUE)) {
  cat(sprintf("%%.6f", ICC(table, missing = FALSE, lmer = lmer)$results$ICC), "\\n")
}
"""


def by_psych() -> tuple[str, str, list[list[float]]]:
    """Versions of psych and R, and six forms each: whole without and with lme4, with a gap without and with it."""
    program = IN_R % ", ".join(str(score) for row in WHOLE for score in row)
    done = subprocess.run(["Rscript", "-e", program], check=True, capture_output=True, text=True).stdout.splitlines()
    psych, r = done[0].split()
    return psych, r, [[float(value) for value in line.split()] for line in done[1:]]


def by_pingouin(table: np.ndarray, policy: str) -> list[float]:
    # the tests, which read the rest of this file, do without it
    import pingouin  # pyright: ignore[reportMissingImports]

    rows, raters = table.shape
    frame = pd.DataFrame({"item": np.repeat(range(rows), raters), "rater": np.tile(range(raters), rows)})
    frame["score"] = table.ravel()
    found = pingouin.intraclass_corr(frame, targets="item", raters="rater", ratings="score", nan_policy=policy)
    return found["ICC"].tolist()


def by_us(table: np.ndarray) -> list[float]:
    items, raters = np.nonzero(~np.isnan(table))
    names = tuple(map(str, range(table.shape[1])))
    found = icc(
        RatingTable(items, raters, table[items, raters], len(table), names), Resamples.sample(np.arange(6), 0, 0)
    )
    return [float(found[form].value or np.nan) for form in FORMS]


def measure() -> dict[str, Any]:
    """The table."""
    whole = np.array(WHOLE, float)
    gap = whole.copy()
    gap[0, 0] = np.nan
    psych, r, found = by_psych()
    columns = {
        "whole: all three": by_us(whole),
        "gap: psych with lme4": found[3],
        "gap: psych, `lmer = FALSE, missing = FALSE`": found[2],
        "gap: pingouin, `nan_policy='omit'`": by_pingouin(gap, "omit"),
        "gap: this package": by_us(gap),
    }
    for others in (found[0], found[1], by_pingouin(whole, "raise")):
        if np.abs(np.subtract(others, columns["whole: all three"])).max() > 5e-4:
            raise RuntimeError(f"the whole table: {others}")
    rows = [[f"`{form}`", *(f"{values[n]:.3f}" for values in columns.values())] for n, form in enumerate(FORMS)]
    versions = {"psych": psych, "R": r, "pingouin": version("pingouin")}
    return {"versions": versions, "columns": ["form", *columns], "rows": rows}
