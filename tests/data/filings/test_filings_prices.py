"""Reading closes, and joining them to filings without looking ahead."""

from __future__ import annotations

import gzip
import json
import math
from datetime import date
from itertools import pairwise
from pathlib import Path
from statistics import stdev

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.filings.clock import new_york_sessions, parse_acceptance, public_ns, session_days, session_on
from quantattn.data.filings.labels import CONSTANT, GAP, NO_PRICES_YET, NO_TICKER, PRICES_END, label_filings
from quantattn.data.filings.prices import Prices, match_tickers, read_prices, read_tickers

YFINANCE = "Price,Close,High,Low,Open,Volume\nTicker,KO,KO,KO,KO,KO\nDate,,,,,\n"
YFINANCE += "2024-01-02,10.5,1,1,1,7\n2024-01-03,11,1,1,1,7\n"


def rows(prices: Prices) -> list[tuple[str, str, float]]:
    return [(entity, day.isoformat(), close) for entity, day, close in prices.frame.iter_rows()]


def test_three_layouts(tmp_path: Path) -> None:
    expected = [("KO", "2024-01-02", 10.5), ("KO", "2024-01-03", 11.0)]
    (tmp_path / "anything.csv.gz").write_bytes(gzip.compress(YFINANCE.encode()))
    prices = read_prices(tmp_path)
    assert rows(prices) == expected
    assert prices.adjusted == {"KO": True}
    flat = tmp_path / "KO.csv"
    flat.write_text("Date,Close\n2024-01-03,11\n2024-01-02,10.5\n")
    assert rows(read_prices(flat)) == expected
    assert read_prices(flat).adjusted == {"KO": None}
    flat.write_text("symbol,date,close\nKO,2024-01-02,10.5\nKO,2024-01-03,11\nPG,2024-01-03,9\n")
    assert rows(read_prices(flat)) == [*expected, ("PG", "2024-01-03", 9.0)]
    flat.write_text("date,KO,PG\n2024-01-02,10.5,\n2024-01-03,11,9\n")
    assert rows(read_prices(flat)) == [*expected, ("PG", "2024-01-03", 9.0)]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("date,close\n2024-01-02,-1\n", r"x\.csv: price 0 is \(x, 2024-01-02, -1\)"),
        ("date,close\n2024-01-02,1\n2024-13-01,1\n", r"price 1 is \(x, 2024-13-01, 1\)"),
        ("date,close\n2024-01-02,n/a\n", "expected a ticker, a date YYYY-MM-DD and a positive number"),
        ("date,close\n2024-01-02,inf\n", "price 0"),
        ("date,close\n2024-01-02,1\n2024-01-02,2\n", "x has two closes on 2024-01-02"),
        ("day,close\n2024-01-02,1\n", "no column 'date'"),
        ("date,close\n", "fewer than two rows"),
        ("date,close\n2024-01-02,1,2\n", r"x\.csv: line 2 has 3 columns, the first has 2$"),
        ("date,close\n2024-01-02,'1\n\n,,,\n", r"x\.csv: line 4 has 4 columns, the first has 2$"),
        (YFINANCE.replace("KO,KO,KO", "KO,PG,KO"), "second row of this layout must name one ticker, got KO, PG"),
    ],
)
def test_bad_prices_are_one_sentence(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=what):
        read_prices(tmp_path)


def test_one_ticker_in_two_files_is_an_error(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(YFINANCE)
    with pytest.raises(ValueError, match=r"KO has prices in a\.csv and b\.csv"):
        read_prices(tmp_path)
    with pytest.raises(ValueError, match=r"holds no \.csv"):
        read_prices(tmp_path / "missing")


def test_tickers_are_matched_by_the_list_alone(tmp_path: Path) -> None:
    path = tmp_path / "company_tickers.json.gz"
    content = {
        str(n): {"cik_str": cik, "ticker": ticker, "title": ""}
        for n, (cik, ticker) in enumerate([(1, "A"), (2, "B"), (2, "B2"), (3, "C")])
    }
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    tickers = read_tickers(path)
    assert tickers == {"0000000001": ("A",), "0000000002": ("B", "B2"), "0000000003": ("C",)}
    prices = made({"A": {}, "B": {}})
    assert match_tickers(tickers, prices, tickers) == {"0000000001": "A", "0000000002": "B"}
    both = made({"B": {}, "B2": {}})
    with pytest.raises(ValueError, match="0000000002 has prices under B and B2"):
        match_tickers(tickers, both, tickers)
    assert match_tickers(tickers, both, {"0000000002": "B2"}) == {"0000000002": "B2"}


def test_tickers_of_ones_own_come_before_those_of_today(tmp_path: Path) -> None:
    today, own = tmp_path / "today.json", tmp_path / "own.csv"
    today.write_text(json.dumps([{"cik_str": 1744489, "ticker": "DIS"}, {"cik_str": 2, "ticker": "NEW"}]))
    own.write_text("CIK,Ticker,since\n1001039,DIS,1996\n2,OLD,1990\n2,OLD.B,1990\n")
    expected = {"0001744489": ("DIS",), "0001001039": ("DIS",), "0000000002": ("OLD", "OLD.B")}
    assert read_tickers([today, own]) == expected
    assert read_tickers([own, today]) == expected | {"0000000002": ("NEW",)}
    own.write_text("cik,name\n1,A\n")
    with pytest.raises(ValueError, match=r"own\.csv: expected a row with cik and ticker, got"):
        read_tickers(own)
    with pytest.raises(ValueError, match="got none"):
        read_tickers([])


def made(closes: dict[str, dict[date, float]]) -> Prices:
    table = [(ticker, day, close) for ticker, by_day in closes.items() for day, close in by_day.items()]
    schema = {"entity": pl.String, "date": pl.Date, "close": pl.Float64}
    frame = pl.DataFrame(table, schema=schema, orient="row").sort("entity", "date")
    return Prices(frame, dict.fromkeys(closes), dict.fromkeys(closes, "made"))


def sessions_of(first: date, count: int) -> list[date]:
    at = session_on(first)
    assert at is not None
    return [day.item() for day in session_days()[at : at + count]]


DAYS = sessions_of(date(2024, 3, 1), 41)
CLOSES = {day: 100.0 + (7 * n % 11) + n / 10 for n, day in enumerate(DAYS)}


def label(
    accepted: str, closes: dict[date, float] = CLOSES, *, horizon: int = 5, history: int = 3
) -> dict[str, object]:
    available = public_ns(parse_acceptance(accepted))
    filings = pl.DataFrame({"entity": ["1"], "available_time": [available]})
    return label_filings(filings, made({"A": closes}), {"1": "A"}, horizon=horizon, history=history).to_dicts()[0]


def by_hand(closes: list[float]) -> float:
    return math.log(stdev(b / a - 1 for a, b in pairwise(closes)))


@pytest.mark.parametrize(
    ("accepted", "entry", "last"),
    [
        ("20240315080000", date(2024, 3, 15), date(2024, 3, 14)),  # before the open: that session
        ("20240315093000", date(2024, 3, 15), date(2024, 3, 14)),  # at the open
        ("20240315093001", date(2024, 3, 18), date(2024, 3, 14)),  # inside a session: the next one
        ("20240315160000", date(2024, 3, 18), date(2024, 3, 14)),  # at the close, which is not strictly before
        ("20240315160001", date(2024, 3, 18), date(2024, 3, 15)),  # after the close
        ("20240315180000", date(2024, 3, 18), date(2024, 3, 15)),  # public on Monday
        ("20240316120000", date(2024, 3, 18), date(2024, 3, 15)),  # a Saturday
    ],
)
def test_label_starts_at_the_first_session_after_publication(accepted: str, entry: date, last: date) -> None:
    row = label(accepted)
    start, end = DAYS.index(entry), DAYS.index(last)
    after = [CLOSES[day] for day in DAYS[start : start + 6]]
    before = [CLOSES[day] for day in DAYS[end - 3 : end + 1]]
    assert row["volatility"] == pytest.approx(by_hand(after), rel=1e-12)
    assert row["forward_return"] == pytest.approx(after[-1] / after[0] - 1, rel=1e-12)
    assert row["history_volatility"] == pytest.approx(by_hand(before), rel=1e-12)
    closes = new_york_sessions().close
    assert row["label_start"] == closes[session_on(entry)]  # type: ignore[index]
    assert row["label_end"] == closes[session_on(DAYS[start + 5])]  # type: ignore[index]
    assert row["label_start"] > public_ns(parse_acceptance(accepted))  # type: ignore[operator]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40), st.floats(1.0, 500.0), st.integers(6, 20), st.integers(0, 23), st.integers(0, 59))
def test_label_reads_its_interval_and_history_reads_the_past(
    changed: int, price: float, day: int, hour: int, minute: int
) -> None:
    """Changing one close changes the label inside its interval alone, the feature before publication alone."""
    accepted = f"202403{day:02}{hour:02}{minute:02}00"
    before, after = label(accepted), label(accepted, {**CLOSES, DAYS[changed]: price})
    moment = new_york_sessions().close[session_on(DAYS[changed])]  # type: ignore[index]
    if not before["label_start"] <= moment <= before["label_end"]:  # type: ignore[operator]
        assert after["volatility"] == before["volatility"]
        assert after["forward_return"] == before["forward_return"]
    if moment >= public_ns(parse_acceptance(accepted)):
        assert after["history_volatility"] == before["history_volatility"]


def test_every_missing_label_has_its_reason() -> None:
    accepted = "20240315080000"  # label: 15 to 22 March, history: 11 to 14 March
    without = {day: close for day, close in CLOSES.items() if day != date(2024, 3, 20)}
    assert label(accepted, without)["label_reason"] == GAP
    assert label(accepted, without)["history_reason"] is None
    early = {day: close for day, close in CLOSES.items() if day < date(2024, 3, 22)}
    assert label(accepted, early)["label_reason"] == PRICES_END
    late = {day: close for day, close in CLOSES.items() if day > date(2024, 3, 11)}
    row = label(accepted, late)
    assert (row["label_reason"], row["history_reason"]) == (None, NO_PRICES_YET)
    assert label(accepted, dict.fromkeys(CLOSES, 5.0))["label_reason"] == CONSTANT
    filings = pl.DataFrame({"entity": ["1"], "available_time": [parse_acceptance(accepted)]})
    row = label_filings(filings, made({"A": CLOSES}), {}, horizon=5).to_dicts()[0]
    assert (row["label_reason"], row["history_reason"], row["ticker"]) == (NO_TICKER, NO_TICKER, None)
    with pytest.raises(ValueError, match="at least 2 returns"):
        label_filings(filings, made({}), {}, horizon=1)


def test_a_close_on_a_day_without_a_session_is_not_used() -> None:
    weekend = {**CLOSES, date(2024, 3, 16): 1.0, date(2024, 3, 29): 1.0}
    assert label("20240315080000", weekend, horizon=20) == label("20240315080000", horizon=20)


def test_volatility_is_invariant_to_the_unit_of_price() -> None:
    scaled = {day: 8 * close for day, close in CLOSES.items()}
    assert label("20240315080000", scaled) == label("20240315080000")


def test_volatility_of_a_known_series() -> None:
    """Returns +10 %, −10 %, +10 %, −10 %: mean 0, sample variance 4·0.01/3."""
    closes = [100.0]
    for _ in range(20):
        closes += [closes[-1] * 1.1, closes[-1] * 1.1 * 0.9]
    row = label("20240315080000", dict(zip(DAYS, closes, strict=True)), horizon=4)
    assert row["volatility"] == pytest.approx(math.log(math.sqrt(4 * 0.01 / 3)), rel=1e-9)
    assert np.isfinite(float(str(row["history_volatility"])))
