"""Prices and last days of models are those of the page that users read."""

from __future__ import annotations

from datetime import date

from empathy_judge.eval.judges.prompted.factory import PROVIDERS
from empathy_judge.eval.judges.prompted.prices import PRICES, RETIRED

from ....conftest import loaded
from ....pages import DOCS


def test_every_model_that_retires_has_a_price_while_it_lives():
    living = {model for model, day in RETIRED.items() if day > date(2026, 11, 28)}
    assert living < {*PRICES}
    assert {model.partition(":")[0] for model in PRICES} <= {*PROVIDERS}


def test_the_page_has_all_prices_and_last_days():
    hooks, page = loaded(DOCS / "hooks.py"), (DOCS / "howto" / "prompted-judges.md").read_text(encoding="utf-8")
    assert hooks.PRICES in page
    rows = hooks.prices_table().splitlines()[2:]
    assert len(rows) == len(PRICES)
    assert "| `openai:gpt-audio-mini` | 0.6 | 10 | 2.4 | 2027-01-20 |" in rows
    assert "| `gemini:gemini-3.8-flash` | 0.75 | 0.75 | 3.75 |  |" in rows
