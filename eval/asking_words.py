"""What it took to ask a prompted judge, whether it stands by its answers, and its length bias: in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from . import numerals
from .numerals import counted, number, percent, signed
from .report_schema import AgreementReport, DimensionReport, StatisticReport

_KINDS_SHOWN = 5
_LENGTHS = {"seconds": "the duration of the response", "words": "the number of its words"}


class AskedRow(NamedTuple):
    """A judge on a dimension in a table of what judges took."""

    judge: str
    dimension: str
    cost: str
    seconds: str
    failures: str
    repeats: str
    inconsistent: str
    first: str


ASKED_HEAD = AskedRow(
    "judge",
    "dimension",
    "$ per 1,000 pairs",
    "seconds per pair",
    "failures",
    "ICC of repeats",
    "orders disagree",
    "prefers the first",
)
SECONDS_MEAN = "Seconds: what requests took, several at a time, or the time of the whole pass where nobody is asked."


def asked_rows(reports: Sequence[AgreementReport]) -> list[AskedRow]:
    """Of every judge and dimension; none where no judge is prompted."""
    if all(report["asking"] is None for report in reports):
        return []
    return [_row(report, name, own) for report in reports for name, own in report["dimensions"].items()]


def _row(report: AgreementReport, name: str, own: DimensionReport) -> AskedRow:
    asking, asked = report["asking"], own["asked"]
    seconds = seconds_in_words(report["effort"]["seconds_per_pair"])
    if asking is None or asked is None:
        return AskedRow(report["judge"], name, numerals.NONE, seconds, *[numerals.NONE] * 4)
    return AskedRow(
        report["judge"],
        name,
        dollars(asking["cost_per_1000_pairs"]),
        seconds,
        percent(asking["failure_rate"]),
        numerals.ranged(asked["repeats"]["icc"]),
        numerals.percent_ranged(asked["orders"]["inconsistent"]),
        numerals.percent_ranged(asked["orders"]["first_preferred"]),
    )


def seconds_in_words(seconds: float) -> str:
    """A time that may be very short."""
    return "<0.01" if 0 < seconds < 0.01 else f"{seconds:.2g}" if seconds < 10 else f"{seconds:,.0f}"


def dollars(amount: float | None) -> str:
    """An amount of money, small ones with as many digits as they need."""
    if amount is None:
        return numerals.NONE
    return f"{amount:,.2f}" if amount >= 1 or amount == 0 else f"{amount:.2g}"


def asking_sentences(report: AgreementReport) -> list[str]:
    """All there is to tell of a prompted judge; nothing of others."""
    asking = report["asking"]
    if asking is None:
        return []
    sentences = [_requests(asking), _effort(report, asking)]
    if asking["version_changed"]:
        versions = ", ".join(f"{name} ({counted(count, 'pair')})" for name, count in asking["versions"].items())
        sentences.append(f"The model changed while it was asked: {versions}.")
    for name, own in report["dimensions"].items():
        if own["asked"] is not None:
            start = f"{name}: " if len(report["dimensions"]) > 1 else ""
            sentences += [start + sentence for sentence in _answers(own["asked"])]
    return sentences


def _requests(asking: dict[str, Any]) -> str:
    text = f"{asking['questions']:,} questions about {counted(asking['pairs'], 'pair')}"
    if asking["kept"]:
        text += f", {asking['kept']:,} of them answered in earlier runs"
    checks = asking["check_requests"]
    more = f" The listening checks took {checks:,} more requests." if checks else ""
    if not asking["failed"]:
        return f"{text}; every answer could be read.{more}"
    without = asking["pairs"] - asking["scored"]
    left = "every pair has a score" if not without else f"{counted(without, 'pair')} without a score"
    return f"{text}; {asking['failed']:,} failed ({percent(asking['failure_rate'])}: {_kinds(asking)}); {left}.{more}"


def _kinds(asking: dict[str, Any]) -> str:
    """The ways in which answers failed, the most frequent first."""
    kinds = list(asking["failures"].items())
    named = "; ".join(f"{own['count']:,} x {kind}" for kind, own in kinds[:_KINDS_SHOWN])
    more = len(kinds) - _KINDS_SHOWN
    return f"{named}; and {more} more kinds" if more > 0 else named


def _effort(report: AgreementReport, asking: dict[str, Any]) -> str:
    seconds = (
        f"Requests took {seconds_in_words(report['effort']['seconds_per_pair'])} s for each pair, several at a time."
    )
    if asking["cost"] is None:
        return f"{seconds} Cost: {asking['cost_reason']}."
    each = dollars(asking["cost_per_1000_pairs"])
    return f"{seconds} Cost: ${dollars(asking['cost'])} in all, ${each} per 1,000 pairs."


def _answers(asked: dict[str, Any]) -> Iterator[str]:
    repeats, orders = asked["repeats"], asked["orders"]
    if repeats["within_sd"]["value"] is not None:
        icc = repeats["icc"]
        said = f"ICC {numerals.ranged(icc)}" if icc["value"] is not None else f"no ICC: {icc['reason']}"
        spread = number(repeats["within_sd"]["value"])
        yield f"Repeated answers lie {spread} rating points around their mean (standard deviation; {said})."
    if orders["inconsistent"]["value"] is not None:
        yield (
            f"The two orders of a comparison prefer different responses in "
            f"{numerals.percent_ranged(orders['inconsistent'])} of {orders['inconsistent']['n']:,} comparisons; "
            f"{numerals.percent_ranged(orders['first_preferred'])} of verdicts are for the first place"
            f"{_position_bias(orders['first_preferred'])}."
        )
    for own in asked["drift"]:
        difference = own["difference"]
        where = f"From {own['first']} to {own['second']}"
        if difference["value"] is None:
            yield f"{where} nothing can be compared: {difference['reason']}."
        else:
            between = (
                "" if difference["low"] is None else f" ({signed(difference['low'])} to {signed(difference['high'])})"
            )
            pairs = counted(difference["n"], "pair")
            yield f"{where} scores moved by {signed(difference['value'])}{between} on {pairs}."


def _position_bias(first: StatisticReport) -> str:
    if first["low"] is None or first["high"] is None or first["low"] <= 0.5 <= first["high"]:
        return ""
    return ", which it clearly prefers" if first["low"] > 0.5 else ", which it clearly avoids"


def length_sentences(dimension: DimensionReport) -> list[str]:
    """Where the scores follow the length of the responses clearly more, or less, than people's ratings do."""
    found = []
    lengths: Mapping[str, str] = _LENGTHS
    for unit, name in lengths.items():
        own = dimension["length"]["seconds" if unit == "seconds" else "words"]
        low, high = own["difference"]["low"], own["difference"]["high"]
        if low is None or high is None or low <= 0 <= high:
            continue
        found.append(
            f"Its scores follow {name} {'more' if low > 0 else 'less'} than people's ratings do: Spearman "
            f"{signed(own['judge']['value'])} against {signed(own['human']['value'])}, difference "
            f"{signed(own['difference']['value'])} ({signed(low)} to {signed(high)})."
        )
    return found


def notes(report: AgreementReport) -> list[str]:
    """How the judge was asked, and its length bias."""
    several = len(report["dimensions"]) > 1
    return [
        *asking_sentences(report),
        *(
            f"{name}: {sentence}" if several else sentence
            for name, own in report["dimensions"].items()
            for sentence in length_sentences(own)
        ),
    ]
