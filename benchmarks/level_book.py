"""Changes per second of `rebuild_levels` on one core, and its books beside those that `rebuild_book` makes of orders.

    python benchmarks/level_book.py [--messages 2000000] [--levels 1 10]

The orders are those of `order_book.py`; a change is the size that stands at the price of an order after its message.
Times are those of the processor, the best of five.
"""

from __future__ import annotations

import argparse
import time

import polars as pl
from order_book import stream

from quantattn.data.market import rebuild_book, rebuild_levels
from quantattn.data.schema import NEW, UPDATE, level_columns


def changes(orders: pl.DataFrame) -> pl.DataFrame:
    """What a feed without orders tells of the same market."""
    signed = pl.when(pl.col("kind") == NEW).then("size").otherwise(-pl.col("size"))
    return orders.with_columns(
        size=signed.cum_sum().over("side", "price"), kind=pl.lit(UPDATE, pl.UInt8), order_id=pl.lit(0, pl.Int64)
    )


def main() -> None:
    """Print one line for each depth."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 10])
    given = parser.parse_args()
    orders = stream(given.messages)
    told = changes(orders)
    rebuild_levels(told.head(10), from_empty=True)  # compiles
    for levels in given.levels:
        times = []
        for _ in range(5):
            start = time.process_time()
            made = rebuild_levels(told, levels, from_empty=True)
            times.append(time.process_time() - start)
        names = [name for level in range(1, levels + 1) for name in level_columns(level)]
        equal = made.frame.select(names).equals(rebuild_book(orders, levels, zone=None).frame.select(names))
        fast = given.messages / min(times) / 1e6
        print(f"levels {levels}: {fast:.2f} M changes/s; books of orders equal: {equal}; {made.tally}")


if __name__ == "__main__":
    main()
