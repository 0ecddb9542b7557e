"""Prices and last days of models are those of the page that users read."""

from __future__ import annotations

import re
from datetime import date

from empathy_judge.eval.judges.prompted.factory import PROVIDERS
from empathy_judge.eval.judges.prompted.prices import PRICES, RETIRED

from ....pages import DOCS


def test_every_model_that_retires_has_a_price_while_it_lives():
    living = {model for model, day in RETIRED.items() if day > date(2026, 11, 28)}
    assert living < {*PRICES}
    assert {model.partition(":")[0] for model in PRICES} <= {*PROVIDERS}


def test_the_page_has_all_prices_and_last_days():
    page = (DOCS / "howto" / "prompted-judges.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+:[^`]+)` \|(.*)\|$", page.partition("## Prices")[2], flags=re.MULTILINE)
    told = {model: [cell.strip() for cell in cells.split("|")][:4] for model, cells in rows}
    days = {model: day.isoformat() for model, day in RETIRED.items()}
    assert told == {
        model: [*(f"{dollars:g}" for dollars in price), days.get(model, "")] for model, price in PRICES.items()
    }
