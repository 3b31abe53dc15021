"""Messages per second of `rebuild_book` beside the loop that one would write first, on one core, in one run.

    python benchmarks/order_book.py [--messages 2000000] [--levels 1 10]

The stream is made here: new orders geometrically far from a mid that walks, each cancelled in part, deleted or executed
a few hundred messages later. The loop is pandas `itertuples` over a dict of orders and a sorted dict of levels for each
side; it sees the first messages alone, because it is slow, and its books are compared with ours to the last share.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pandas as pd
import polars as pl
from sortedcontainers import SortedDict

from quantattn.data.market import rebuild_book
from quantattn.data.schema import CANCEL, DELETE, EXECUTE, NEW, level_columns


def stream(messages: int, seed: int = 0) -> pl.DataFrame:
    """A whole feed of one entity that begins with an empty book."""
    rng = np.random.default_rng(seed)
    n = messages // 2
    born = np.arange(n) * 2
    mid = 1_000_000 + 100 * (np.cumsum(rng.choice([-1, 0, 0, 0, 0, 1], n)) // 200)
    side = rng.choice(np.array([-1, 1], np.int8), n)
    price = mid - side * 100 * rng.geometric(0.15, n)
    size = rng.integers(1, 6, n) * 100
    partly = rng.random(n) < 0.2
    life = rng.geometric(1 / 300, n) + 2
    ends = rng.choice(np.array([DELETE, EXECUTE], np.uint8), n, p=[0.9, 0.1])
    part = {"at": born[partly] + life[partly] // 2, "kind": np.uint8(CANCEL), "id": np.flatnonzero(partly)}
    rows = [
        {"at": born, "kind": np.uint8(NEW), "id": np.arange(n), "size": size},
        {**part, "size": np.full(partly.sum(), 50)},
        {"at": born + life, "kind": ends, "id": np.arange(n), "size": size - 50 * partly},
    ]
    frames = [pl.DataFrame(row).with_columns(pl.col("size").cast(pl.Int64)) for row in rows]
    table = pl.concat(frames).sort("at", "kind", maintain_order=True).head(messages)
    own = table["id"].to_numpy()
    return table.select(
        pl.lit("SYNTHETIC").alias("entity"),
        (pl.col("at") * 1000).alias("event_time"),
        (pl.col("at") * 1000).alias("available_time"),
        pl.int_range(pl.len(), dtype=pl.Int64).alias("seq"),
        "kind",
        pl.Series("side", side[own]),
        pl.Series("price", price[own]),
        "size",
        pl.col("id").cast(pl.Int64).alias("order_id"),
    )


def loop(messages: pd.DataFrame, levels: int) -> list[list[int]]:
    """The loop that one would write first."""
    orders: dict[int, list[int]] = {}
    books = {1: SortedDict(), -1: SortedDict()}
    found = []
    for row in messages.itertuples(index=False):
        if row.kind == NEW:
            orders[row.order_id] = [row.side, row.price, row.size]
            book = books[row.side]
            book[row.price] = book.get(row.price, 0) + row.size
        elif row.kind in (CANCEL, DELETE, EXECUTE) and row.order_id in orders:
            side, price, left = orders[row.order_id]
            amount = left if row.kind == DELETE else min(row.size, left)
            orders[row.order_id][2] -= amount
            if amount == left:
                del orders[row.order_id]
            books[side][price] -= amount
            if not books[side][price]:
                del books[side][price]
        top: list[int] = []
        for level in range(levels):
            for book, place in ((books[-1], level), (books[1], -1 - level)):
                top += book.peekitem(place) if level < len(book) else (0, 0)
        found.append(top)
    return found


def main() -> None:
    """Print one line for each depth and implementation."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--loop", type=int, default=100_000, help="messages that the loop sees")
    given = parser.parse_args()
    messages = stream(given.messages)
    rebuild_book(messages.head(10))  # compiles
    for levels in given.levels:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            ours = rebuild_book(messages, levels)
            times.append(time.perf_counter() - start)
        some = messages.head(given.loop).to_pandas()
        start = time.perf_counter()
        theirs = loop(some, levels)
        slow = given.loop / (time.perf_counter() - start)
        names = [name for level in range(1, levels + 1) for name in level_columns(level)]
        mine = ours.frame.head(given.loop).select(pl.col(names).fill_null(0)).to_numpy()
        equal = np.array_equal(mine, np.array(theirs))
        fast = given.messages / sorted(times)[2]
        print(
            f"levels {levels}: rebuild_book {fast / 1e6:.2f} M messages/s, loop {slow / 1e6:.3f} M messages/s, "
            f"{fast / slow:.0f} times; first {given.loop} books equal: {equal}; {ours.tally}"
        )


if __name__ == "__main__":
    main()
