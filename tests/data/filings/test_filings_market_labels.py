"""Labels above the market's: what the whole market did is in none of them, and a session without it gives a reason."""

from __future__ import annotations

from datetime import date

import numpy as np
import polars as pl
import pytest

from quantattn.data.filings.clock import new_york_sessions, session_days, session_on
from quantattn.data.filings.labels import NO_MARKET, label_filings
from quantattn.data.filings.prepare import check_filings
from quantattn.data.filings.prices import Prices

FIRST = session_on(date(2022, 1, 3)) or 0
LONG, HORIZON = 60, 10
ENTRY = 30
FILING = pl.DataFrame({"entity": ["1"], "available_time": [int(new_york_sessions().open[FIRST + ENTRY]) - 1]})
VALUES = ("volatility", "forward_return", "history_volatility", "history_return")


def of(name: str, closes: np.ndarray, without: int | None = None) -> Prices:
    table = pl.DataFrame({"entity": name, "date": session_days()[FIRST : FIRST + LONG], "close": closes})
    kept = table if without is None else table[[n for n in range(LONG) if n != without]]
    return Prices(kept, {name: None}, {name: f"{name}.csv"})


def walk(seed: int) -> np.ndarray:
    return np.asarray(100 * np.exp(np.cumsum(np.random.default_rng(seed).normal(0, 0.02, LONG))))


def label(closes: np.ndarray, market: Prices | None = None) -> dict[str, float]:
    return label_filings(FILING, of("A", closes), {"1": "A"}, horizon=HORIZON, market=market).to_dicts()[0]


def test_a_labels_definition_by_hand() -> None:
    stock, index = walk(1), walk(2)
    found = label(stock, of("M", index))
    above = {
        side: np.diff(stock[cut]) / stock[cut][:-1] - np.diff(index[cut]) / index[cut][:-1]
        for side, cut in (("after", slice(ENTRY, ENTRY + HORIZON + 1)), ("before", slice(ENTRY - HORIZON - 1, ENTRY)))
    }
    assert found["volatility"] == pytest.approx(np.log(np.std(above["after"], ddof=1)), rel=1e-12)
    assert found["history_volatility"] == pytest.approx(np.log(np.std(above["before"], ddof=1)), rel=1e-12)
    last = ENTRY + HORIZON
    assert found["forward_return"] == pytest.approx(stock[last] / stock[ENTRY] - index[last] / index[ENTRY], rel=1e-12)


def test_a_market_that_does_not_move_changes_nothing_and_one_that_is_the_stock_leaves_nothing() -> None:
    stock = walk(1)
    still, alone = label(stock, of("M", np.full(LONG, 7.0))), label(stock)
    assert [still[name] for name in VALUES] == pytest.approx([alone[name] for name in VALUES], rel=1e-12)
    same = label(stock, of("M", stock))
    assert (same["label_reason"], same["volatility"]) == ("constant price", None)


def test_what_the_market_does_to_every_stock_is_not_in_a_label() -> None:
    """Of closes that are a stock's own times the market's, what stands above the market is the stock's own."""
    index = walk(3)
    own = label(walk(1) * index / 100, of("M", index))
    plain = label(walk(1))
    assert own["forward_return"] == pytest.approx(
        plain["forward_return"] * index[ENTRY + HORIZON] / index[ENTRY], rel=1e-9
    )


@pytest.mark.parametrize(
    ("without", "reasons"),
    [
        (ENTRY + 3, (NO_MARKET, None)),
        (ENTRY - 3, (None, NO_MARKET)),
        (ENTRY + HORIZON + 1, (None, None)),  # beyond what any label reads
    ],
)
def test_a_session_without_a_close_of_the_market_has_a_reason(without: int, reasons: tuple[str | None, ...]) -> None:
    found = label(walk(1), of("M", walk(2), without))
    assert (found["label_reason"], found["history_reason"]) == reasons


def test_a_market_is_one_series() -> None:
    one, other = of("M", walk(1)), of("N", walk(2))
    both = Prices(pl.concat([one.frame, other.frame]), {"M": None, "N": None}, {"M": "m", "N": "n"})
    with pytest.raises(ValueError, match="market must hold the closes of one series, it has 2"):
        check_filings("volatility", one, {"1": "A"}, market=both)
