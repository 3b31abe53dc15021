"""What happened to a filer's price after a filing: volatility (Kogan et al. 2009) and return, with their intervals.

With P_0 the close of the *entry session*, the first session that opens at or after the filing became public, and
P_1 … P_h the closes of the next h sessions, r_i = P_i / P_{i−1} − 1:

    volatility v(+h) = ln sqrt( Σ (r_i − r̄)² / (h − 1) ),      return = P_h / P_0 − 1.

The history features v(−h) and return are the same over the h returns that end with the last close strictly before the
filing became public. The return across the publication itself belongs to neither. A label needs a close on every
session it uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.filings.clock import new_york_sessions, session_days
from quantattn.data.filings.prices import Prices

NO_TICKER = "no ticker"
NO_PRICES = "no prices of its ticker"
"""What `NO_TICKER` is called where the filer has one, and the folder of prices lacks it."""
NO_PRICES_YET = "prices start later"
PRICES_END = "prices end too early"
GAP = "a session without a price"
CONSTANT = "constant price"
NO_MARKET = "no close of the market"
REASONS = (NO_TICKER, NO_PRICES_YET, PRICES_END, GAP, CONSTANT, NO_MARKET)

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Closes:
    """Closes of one ticker by session number: `values[i]` is that of session `first + i`, NaN where there is none."""

    first: int
    values: npt.NDArray[np.float64]

    def window(self, start: int, stop: int) -> npt.NDArray[np.float64] | str:
        """Closes of sessions start … stop, both included, or the reason why some are missing."""
        if start < self.first:
            return NO_PRICES_YET
        if stop >= self.first + len(self.values):
            return PRICES_END
        closes = self.values[start - self.first : stop - self.first + 1]
        return GAP if np.isnan(closes).any() else closes


def label_filings(
    filings: pl.DataFrame,
    prices: Prices,
    tickers: Mapping[str, str],
    *,
    horizon: int = 252,
    history: int | None = None,
    market: Prices | None = None,
) -> pl.DataFrame:
    """`filings` with what its filers' prices did afterwards; rows and their order stay.

    Args:
        filings: with `entity` and `available_time` (nanoseconds UTC).
        prices: daily closes.
        tickers: entity → ticker; see `match_tickers`.
        horizon: h, number of returns after the filing, in sessions (252: twelve months).
        history: number of returns before it; h when not given.
        market: closes of one series, m of session i: then Σ is over r_i − m_i, and the return is P_h / P_0 − M_h / M_0.

    Returns:
        The table with `ticker`, `volatility`, `forward_return`, `history_volatility`, `history_return` (Float64),
        `label_start` and `label_end` (Int64 nanoseconds UTC: closes of the first and last session that the label
        reads), `label_reason` and `history_reason` (null when there is a value, else one of `REASONS`).

    Raises:
        ValueError: fewer than two returns, or times outside the years of the calendar.
    """
    history = require_returns(horizon, history)
    closes = _by_session(prices)
    (market_closes,) = _by_session(market).values() if market is not None else (None,)
    rows = [
        _label(int(time), closes.get(tickers.get(entity, "")), horizon, history, market_closes)
        for entity, time in filings.select("entity", "available_time").iter_rows()
    ]
    schema = {
        **{"volatility": pl.Float64, "forward_return": pl.Float64},
        **{"history_volatility": pl.Float64, "history_return": pl.Float64},
        **{"label_start": pl.Int64, "label_end": pl.Int64, "label_reason": pl.String, "history_reason": pl.String},
    }
    labels = pl.DataFrame(rows, schema=schema, orient="row")
    ticker = pl.Series("ticker", [tickers.get(entity) for entity in filings["entity"]], dtype=pl.String)
    return pl.concat([filings, ticker.to_frame(), labels], how="horizontal")


_Moves = tuple[float, float]
_Row = tuple[float | None, float | None, float | None, float | None, int | None, int | None, str | None, str | None]


def require_returns(horizon: int, history: int | None) -> int:
    """The history, `horizon` when None; ValueError for fewer than two returns on either side."""
    history = horizon if history is None else history
    if horizon < 2 or history < 2:
        raise ValueError(f"a standard deviation needs at least 2 returns, got horizon {horizon}, history {history}")
    return history


def _label(available: int, closes: _Closes | None, horizon: int, history: int, market: _Closes | None) -> _Row:
    if closes is None:
        return None, None, None, None, None, None, NO_TICKER, NO_TICKER
    sessions = new_york_sessions()
    entry = int(np.searchsorted(sessions.open, available, side="left"))
    last = int(np.searchsorted(sessions.close, available, side="left")) - 1
    after, before = (
        _moves(closes.window(*ends), None if market is None else market.window(*ends))
        for ends in ((entry, entry + horizon), (last - history, last))
    )
    past = (None, None, before) if isinstance(before, str) else (*before, None)
    if isinstance(after, str):
        return None, None, *past[:2], None, None, after, past[2]
    interval = int(sessions.close[entry]), int(sessions.close[entry + horizon])
    return *after, *past[:2], *interval, None, past[2]


def _moves(closes: _Floats | str, market: _Floats | str | None) -> _Moves | str:
    """Log volatility and return over a window of closes, above the market's if there is one, or why there is none."""
    if isinstance(closes, str):
        return closes
    if isinstance(market, str):
        return NO_MARKET
    volatility = log_volatility(closes, market)
    if isinstance(volatility, str):
        return volatility
    return volatility, float(closes[-1] / closes[0] - (1.0 if market is None else market[-1] / market[0]))


def log_volatility(closes: _Floats, market: _Floats | None = None) -> float | str:
    """Natural log of the sample standard deviation (n − 1) of the simple returns of (n + 1,) closes, n ≥ 2.

    With (n + 1,) closes of the market, of the returns above the market's. Returns `CONSTANT` when all returns are
    equal, where the logarithm has no value.
    """
    returns = closes[1:] / closes[:-1] - (1.0 if market is None else market[1:] / market[:-1])
    deviation = float(np.std(returns, ddof=1))
    return math.log(deviation) if deviation > 0.0 else CONSTANT


def closes_without_session(prices: Prices) -> int:
    """How many closes stand on days on which New York held no session; no label and no history uses them."""
    _, held = _sessions_of(prices.frame)
    return int((~held).sum())


def _sessions_of(table: pl.DataFrame) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(n,) number of the session on or after each `date`, and whether it is held on that very day."""
    days, dates = session_days(), table["date"].to_numpy().astype("datetime64[D]")
    at = np.searchsorted(days, dates)
    return at, (at < len(days)) & (days[np.minimum(at, len(days) - 1)] == dates)


def _by_session(prices: Prices) -> dict[str, _Closes]:
    """Closes by session number; a close on a day without a session is not used."""
    found = {}
    for (ticker,), table in prices.frame.group_by("entity", maintain_order=True):
        at, held = _sessions_of(table)
        numbers = at[held]
        if not len(numbers):
            continue
        values = np.full(int(numbers[-1] - numbers[0]) + 1, np.nan)
        values[numbers - numbers[0]] = table["close"].to_numpy()[held]
        found[str(ticker)] = _Closes(int(numbers[0]), values)
    return found
