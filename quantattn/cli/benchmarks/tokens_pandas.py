"""Features, labels and tokens of book events as one writes them with pandas and numpy, vectorised throughout.

What is computed is defined by `book_features`, `MidLabel` and `Tokenizer`, with an entity's table as one session; it is
written here from those definitions. There are two manners: "pandas" sums windows by `rolling` and bins by `pd.cut`;
"pandas_tuned" takes differences of running sums and `searchsorted`, which is faster.

What it is spared, and the library does: it gets every entity's rows as a table of its own and never looks for where one
ends; moves are floats, and prices too where one is missing, which is exact as long as the numbers are small, where the
library keeps whole numbers and fractions of them and decides ties exactly; it takes order of time, prices above zero
and room in 64 bits for granted; and there are no sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from quantattn.data.market.features import SQUARE_UNIT, WINDOWS
from quantattn.data.protocol.labels.reasons import REASONS
from quantattn.data.schema import EXECUTE
from quantattn.data.tokens import CLIP, FIRST_CODE, LINEAR, MISSING

Columns = dict[str, Any]
DAY = 86_400 * 10**9


class Pandas:
    """The three steps over a list of tables, one an entity, in canonical order; their results end to end.

    Args:
        tables: columns of `BookEvents` with numpy's types: integers, or floats with NaN where a value is missing.
        ticks: smallest price step of each.
        horizon: of the label, in events.
        until: thresholds and tokens are fitted on what is known before this time, ns UTC.
        n_bins: the most bins of a numeric field.
        most: with more training rows than this, bins and scales come from every k-th of them.
        tuned: the faster of the two manners.
    """

    def __init__(
        self,
        tables: Sequence[Mapping[str, Any]],
        ticks: Sequence[int],
        *,
        horizon: int,
        until: int,
        n_bins: int,
        most: int,
        tuned: bool,
    ) -> None:
        self.tables, self.ticks = [pd.DataFrame(table) for table in tables], ticks
        self.horizon, self.until = horizon, until
        self.n_bins, self.most = n_bins, most
        self.sums: Callable[[pd.Series, int], Any] = running if tuned else rolling
        self.bins: Callable[[Any, Any], Any] = search if tuned else cut

    def features(self) -> Columns:
        """The columns of `FEATURES`."""
        return _end_to_end([features(*each, self.sums) for each in zip(self.tables, self.ticks, strict=True)])

    def labels(self) -> Columns:
        """Row, label and end of every labelled event, and every event's reason for none, −1 for a label."""
        found, first = [], 0
        for table in self.tables:
            found.append(moves(table, self.horizon, first))
            first += len(table)
        made = _end_to_end(found)
        sizes = np.abs(made["move"])
        theta = sizes[made["end"] < self.until].mean() / 2
        way = np.where(sizes > theta, np.sign(made.pop("move")), 0)
        return {**made, "label": (way + 1).astype(np.int8)}

    def tokens(self) -> Columns:
        """Code and scaled value of every field."""
        raw = _end_to_end([raw_values(*each) for each in zip(self.tables, self.ticks, strict=True)])
        time = np.concatenate([table["available_time"] for table in self.tables])
        past = np.flatnonzero(time < self.until)
        made: Columns = {}
        for name in ("kind", "side"):
            column = raw.pop(name)
            known = np.unique(column[past])
            codes = pd.Categorical(column, categories=known).codes.astype(np.int16)  # −1 for a value never seen
            made[f"{name}_code"] = np.where(codes < 0, MISSING, codes + FIRST_CODE).astype(np.uint16)
        past = past[:: -(-len(past) // self.most)]
        for name, column in raw.items():
            made |= self._numeric(name, column, column[past])
        return made

    def _numeric(self, name: str, column: Any, seen: Any) -> Columns:
        seen = np.sort(seen[~pd.isna(seen)])
        edges = np.unique(seen[np.arange(1, self.n_bins) * len(seen) // self.n_bins])
        bent = _bend(name, seen)
        center, scale = bent.mean(), bent.std() or 1.0
        codes = np.where(pd.isna(column), MISSING, self.bins(column, edges) + FIRST_CODE)
        value = np.clip((_bend(name, column) - center) / scale, -CLIP, CLIP)
        return {f"{name}_code": codes.astype(np.uint16), f"{name}_value": np.nan_to_num(value).astype(np.float32)}


def rolling(column: pd.Series, k: int) -> pd.Series:
    """The sum of the last k rows, of as many as there are at the beginning."""
    return column.rolling(k, min_periods=1).sum()


def running(column: pd.Series, k: int) -> pd.Series:
    """The same, as a difference of two running sums."""
    total = column.cumsum()
    return total - total.shift(k, fill_value=0)


def cut(column: Any, edges: Any) -> Any:
    """How many edges are not above each value."""
    return pd.cut(column, [-np.inf, *edges, np.inf], right=False, labels=False)


def search(column: Any, edges: Any) -> Any:
    """The same by bisection."""
    return np.searchsorted(edges, column, side="right")


def features(table: pd.DataFrame, tick: int, sums: Callable[[pd.Series, int], Any]) -> Columns:
    """`book_features` of one entity with one level of the book, without sessions."""
    ask, bid = table["ask_price_1"], table["bid_price_1"]
    ask_size, bid_size = table["ask_size_1"].fillna(0), table["bid_size_1"].fillna(0)
    time, usable = table["available_time"], ask > bid
    known = (ask + bid).where(usable).ffill()
    depth = ask_size + bid_size
    spread = (ask - bid).where(usable).ffill().fillna(0) / tick
    imbalance = ((bid_size - ask_size) / depth).where(usable & (depth > 0), 0.0)
    ask_before, bid_before = ask.shift(), bid.shift()
    flow = (
        (bid >= bid_before) * bid_size
        - (bid <= bid_before) * bid_size.shift(fill_value=0)
        - (ask <= ask_before) * ask_size
        + (ask >= ask_before) * ask_size.shift(fill_value=0)
    ).where(usable & usable.shift(fill_value=False), 0)
    trade = (-table["side"].astype(np.int64) * table["size"]).where(table["kind"] == EXECUTE, 0)
    # Squares are whole multiples of a unit, so that no order of summation matters.
    square = (np.log(known).diff() ** 2 / SQUARE_UNIT).clip(upper=2.0**62 / max(WINDOWS))
    square = square.round().fillna(0).astype(np.int64)
    first = known.bfill().iloc[0]
    made = {"spread_ticks": spread, "imbalance": imbalance, "microprice": imbalance * spread, "depth": depth}
    for k in WINDOWS:
        made[f"ofi_{k}"] = sums(flow, k)
        made[f"trade_flow_{k}"] = sums(trade, k)
        made[f"return_{k}"] = (known - known.shift(k).fillna(first)).fillna(0) / tick
        made[f"volatility_{k}"] = np.sqrt(sums(square, k) * SQUARE_UNIT)
        made[f"log_span_{k}"] = np.log(1 + time - time.shift(k, fill_value=time.iloc[0]))
    return {name: column.to_numpy() for name, column in made.items()}


def moves(table: pd.DataFrame, horizon: int, first: int) -> Columns:
    """Move to the mean of the next mids (method 1), of one entity whose first row has the number `first`."""
    ask, bid, time = table["ask_price_1"], table["bid_price_1"], table["available_time"]
    mid = ask + bid
    total = mid.fillna(0).cumsum()
    move = (total.shift(-horizon) - total - horizon * mid) / (horizon * mid)
    row = np.arange(len(table))
    last = np.minimum(row + horizon, len(table) - 1)
    flags = {"halt": table.get("halted"), "crossed book": bid >= ask, "no data": ask.isna() | bid.isna()}
    reason = np.full(len(table), -1, np.int8)
    for name, flag in reversed(flags.items()):
        if flag is not None and flag.any():
            count = np.concatenate([[0], np.cumsum(flag)])
            reason[count[last + 1] > count[row]] = REASONS.index(name)
    reason[-horizon:] = REASONS.index("session end")
    kept = np.flatnonzero(reason < 0)
    end = time.to_numpy()[last[kept]]
    return {"row": first + kept, "end": end, "move": move.to_numpy()[kept], "reason": reason}


def raw_values(table: pd.DataFrame, tick: int) -> Columns:
    """What tokens are made of (`raw_fields`), of one entity."""
    ask, bid, ask_size, bid_size = (table[f"{side}_{what}_1"] for what in ("price", "size") for side in ("ask", "bid"))
    usable, time = ask > bid, table["available_time"]
    mid = (ask + bid).where(usable)
    before, depth = mid.shift(), ask_size + bid_size
    made = {
        "kind": table["kind"],
        "side": table["side"],
        "size": table["size"],
        "price": (2 * table["price"] - before) // tick,
        "mid_move": (mid - before) // tick,
        "spread": ((ask - bid) // tick).where(usable),
        "ask_size": ask_size,
        "bid_size": bid_size,
        "imbalance": ((bid_size - ask_size) * 1000 // depth.where(depth > 0)).where(usable),
        "gap": time.diff(),
        "clock": time % DAY,
    }
    return {name: column.to_numpy() for name, column in made.items()}


def _bend(name: str, values: Any) -> Any:
    values = values.astype(np.float64)
    return values if name in LINEAR else np.sign(values) * np.log1p(np.abs(values))


def _end_to_end(pieces: Sequence[Mapping[str, Any]]) -> Columns:
    if len(pieces) == 1:
        return dict(pieces[0])
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
