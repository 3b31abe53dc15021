"""The markets of `long_memory.py`, one a distance, and what who knows their law would lose on their test rows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from trained import market_of

from quantattn.data.market.prepare import bayes_in_context
from quantattn.data.pack import SequenceSet
from quantattn.data.prepared import Prepared
from quantattn.data.protocol.splits import WalkForward
from quantattn.data.synthetic import SyntheticMarket

EVENTS = {24: 65_536, 200: 65_536, 2_000: 131_072, 16_000: 524_288, 50_000: 1_572_864}
"""Distance → events of each of 32 entities; decisions are eight in a little more than the distance."""
TEST = {2_000: 0.25, 6_000: 0.25, 16_000: 0.35, 50_000: 0.35}
"""Distance → share of the decisions that are for the test: the fewer there are, the more; 0.1 where it is not named."""


def prepared_of(asked: argparse.Namespace, distance: int) -> Prepared:
    """The prepared market, whose sequences hold the marker of each of their decisions."""
    split = WalkForward(test=TEST.get(distance, 0.1), valid=0.05)
    return market_of(synthetic(asked, distance), split=split)


def synthetic(asked: argparse.Namespace, distance: int) -> SyntheticMarket:
    """The market of a distance."""
    return SyntheticMarket(marker_distance=distance, events_per_entity=events_of(asked, distance), copies=asked.copies)


@dataclass(frozen=True)
class Rung:
    """What stands ready at a distance: the prepared market, and the log loss of its law on the test rows."""

    prepared: Prepared
    best_here: float


def rung_of(asked: argparse.Namespace, distance: int) -> Rung:
    """The market of a distance, prepared, and what who knows its law would lose on its test rows."""
    prepared = prepared_of(asked, distance)
    return Rung(prepared, lost_by_the_law(synthetic(asked, distance), prepared))


def lost_by_the_law(market: SyntheticMarket, prepared: Prepared) -> float:
    """Mean −log p(outcome) over the test rows, nats, where p is the probability by which it was drawn."""
    made = market.truth()
    names = pl.DataFrame({"entity": market.names}).with_row_index("at")
    row = pl.col("at").cast(pl.Int64) * market.events_per_entity + pl.col("seq")
    told = made.join(names, on="entity", maintain_order="left").select("outcome", "probability_up", row=row)
    (target,) = prepared.test.decisions.targets.values()
    ours = pl.DataFrame({"row": prepared.test.decisions.row.astype(np.int64), "label": target})
    both = ours.join(told, on="row", maintain_order="left")
    up = both["outcome"] > 0
    if both.null_count().sum_horizontal().item() or (up.cast(pl.Int64) != both["label"]).any():
        raise ValueError("the market's truth and the labels that were prepared are not of the same events")
    return float(-np.log(np.where(up, both["probability_up"], 1 - both["probability_up"])).mean())


def cut_short(prepared: Prepared, market: SyntheticMarket) -> Prepared:
    """The same decisions in sequences that reach half of the way to their markers, or farther, but to none of them."""
    seen = market.marker_distance // 2
    longest = min(seen + market.channels * market.cycle, market.marker_distance)

    def shorter(part: SequenceSet) -> SequenceSet:
        return replace(part, min_context=seen, max_seq_len=longest)

    train, valid, test = map(shorter, (prepared.train, prepared.valid, prepared.test))
    return replace(prepared, train=train, valid=valid, test=test, bayes_in_context=bayes_in_context(market, test))


def events_of(asked: argparse.Namespace, distance: int) -> int:
    """Events of each entity."""
    if asked.events:
        return int(of_distance(asked, asked.events, distance))
    return EVENTS.get(distance, max(40 * distance, 16_384))


def of_distance(asked: argparse.Namespace, given: Sequence[float], distance: int) -> float:
    """Of values that are one for all distances or one for each, the one that belongs to this distance."""
    return given[0] if len(given) == 1 else given[asked.distances.index(distance)]
