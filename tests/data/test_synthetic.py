"""The synthetic market: valid books, labels that are what was drawn, and a bound that is a theorem."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from quantattn.data.bayes import OutcomeLaw, signed_sums
from quantattn.data.protocol import MidMove, Threshold, mid_moves
from quantattn.data.schema import CANCEL, EXECUTE, EXECUTE_HIDDEN, MARKER, NEW, BookEvents, check
from quantattn.data.synthetic import SyntheticMarket, long_market

SMALL = SyntheticMarket(entities=3, events_per_entity=6_000, seed=3)
LEVELS = SyntheticMarket(entities=1, events_per_entity=3_000, levels=4, removals=0.3, channels=5, copies=3, cycle=14)


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    return SMALL.source().frame.collect()


def test_the_table_obeys_the_schema(events: pl.DataFrame) -> None:
    check(events, BookEvents)
    assert events.height == SMALL.source().report.rows_read == 18_000
    assert {i.entity for i in SMALL.source().instruments} == set(events["entity"])


def test_prices_of_every_level_step_by_one_tick_away_from_the_spread() -> None:
    columns, _ = LEVELS.stream(0)
    assert (columns["ask_price_1"] > columns["bid_price_1"]).all()
    for level in range(1, 4):
        assert (columns[f"ask_price_{level + 1}"] - columns[f"ask_price_{level}"] == 100).all()
        assert (columns[f"bid_price_{level}"] - columns[f"bid_price_{level + 1}"] == 100).all()
        assert (columns[f"ask_size_{level + 1}"] > 0).all()


@pytest.mark.parametrize("market", [SMALL, LEVELS])
def test_the_best_quotes_follow_from_the_messages(market: SyntheticMarket) -> None:
    c, _ = market.stream(0)
    for i in range(1, 2_000):
        kind, side, size = int(c["kind"][i]), int(c["side"][i]), int(c["size"][i])
        own, other = ("bid", "ask") if side > 0 else ("ask", "bid")
        price, depth = c[f"{own}_price_1"], c[f"{own}_size_1"]
        if kind in (MARKER, EXECUTE_HIDDEN):
            assert price[i] == price[i - 1]
            assert depth[i] == depth[i - 1]
        elif kind == NEW and c["price"][i] == price[i - 1]:
            assert depth[i] == depth[i - 1] + size
        elif kind == NEW:  # a better quote stands alone
            assert (c["price"][i] - price[i - 1]) * side == 100
            assert (price[i], depth[i]) == (c["price"][i], size)
        elif size < depth[i - 1]:
            assert kind in (CANCEL, EXECUTE)
            assert (price[i], depth[i]) == (price[i - 1], depth[i - 1] - size)
        else:  # the whole level is taken out
            assert kind == EXECUTE
            assert size == depth[i - 1]
            assert (price[i] - price[i - 1]) * side == -100
        assert c[f"{other}_price_1"][i] == c[f"{other}_price_1"][i - 1]
        assert c[f"{other}_size_1"][i] == c[f"{other}_size_1"][i - 1] or kind in (MARKER, EXECUTE_HIDDEN)


@pytest.mark.parametrize("market", [SMALL, LEVELS])
def test_flow_and_marker_can_be_read_from_the_events(market: SyntheticMarket) -> None:
    columns, drawn = market.stream(0)
    kind, side, size = (columns[name].astype(np.int64) for name in ("kind", "side", "size"))
    sign = np.where(kind == NEW, side, -side)
    assert len(drawn.seq) > 20
    for seq, signs, marker, distance in zip(drawn.seq, drawn.signs, drawn.marker, drawn.distance, strict=True):
        assert kind[seq] == EXECUTE_HIDDEN
        assert (sign[seq - market.flow_events : seq] == signs).all()
        last = np.flatnonzero((kind[:seq] == MARKER) & (size[:seq] == size[seq]))[-1]
        assert (side[last], seq - last) == (marker, distance)
        assert market.marker_distance <= distance
    assert set(drawn.distance) <= set(market.distances)


def test_a_sign_is_used_by_one_decision_alone() -> None:
    columns, drawn = SMALL.stream(0)
    markers = drawn.seq - drawn.distance
    assert (columns["kind"][markers] == MARKER).all()
    assert len(set(markers)) == len(markers)


def test_ordinary_labels_are_the_outcomes(events: pl.DataFrame) -> None:
    labelled = Threshold.fixed(0).classify(mid_moves(events, MidMove(1, "events", 0)), classes=2)
    made = labelled.filter(pl.col("kind") == EXECUTE_HIDDEN).select("entity", "seq", "label", "label_reason")
    drawn = SMALL.truth()
    both = drawn.join(made, on=("entity", "seq"))
    assert both.height == drawn.height > 400
    assert both["label"].to_list() == [int(outcome > 0) for outcome in both["outcome"]]
    assert made.join(drawn, on=("entity", "seq"), how="anti")["label"].null_count() == made.height - drawn.height


def test_a_stream_does_not_depend_on_how_many_there_are() -> None:
    few = SyntheticMarket(entities=2, events_per_entity=4_000)
    many = replace(few, entities=5)
    for i in range(2):
        one, other = few.stream(i)[0], many.stream(i)[0]
        assert all((one[name] == other[name]).all() for name in one)
    assert (few.stream(0)[0]["event_time"] != few.stream(1)[0]["event_time"]).any()
    assert (few.stream(0)[0]["size"] != SyntheticMarket(events_per_entity=4_000, seed=1).stream(0)[0]["size"]).any()


def test_bayes_is_what_enumerating_every_world_gives() -> None:
    law = OutcomeLaw(flow_events=4, flow_weight=0.7, marker_weight=1.3)
    for seen, marker_seen in itertools.product(range(5), (False, True)):
        worlds: dict[tuple[int, ...], list[float]] = {}
        for signs in itertools.product((-1, 1), repeat=4):
            for marker in (-1, 1):
                up = 1 / (1 + math.exp(-(0.7 * sum(signs) + 1.3 * marker)))
                worlds.setdefault((*signs[4 - seen :], marker if marker_seen else 0), []).append(up)
        expected = [sum(ups) / len(ups) for ups in worlds.values()]
        loss = np.mean([-p * math.log(p) - (1 - p) * math.log(1 - p) for p in expected])
        accuracy = np.mean([max(p, 1 - p) for p in expected])
        brier = np.mean([p * (1 - p) for p in expected])
        assert law.expected(seen, marker_seen) == pytest.approx((loss, accuracy, brier), abs=1e-12)


def test_signed_sums_are_a_distribution() -> None:
    values, weights = signed_sums(8)
    assert weights.sum() == 1
    assert weights @ values == 0
    assert weights @ values**2 == 8


def test_skill_falls_where_theory_says() -> None:
    nearest, farthest = int(SMALL.distances.min()), int(SMALL.distances.max())
    assert SMALL.marker_distance <= nearest
    full, cut, blind = SMALL.bayes(), SMALL.bayes(SMALL.marker_distance), SMALL.bayes(1)
    assert full.log_loss < cut.log_loss < blind.log_loss == pytest.approx(math.log(2), abs=1e-12)
    assert full.accuracy > cut.accuracy > blind.accuracy == 0.5
    assert replace(SMALL.bayes(farthest + 1), context=None) == full
    assert SMALL.bayes(nearest).log_loss == cut.log_loss
    losses = [SMALL.bayes(n).log_loss for n in range(1, farthest + 2)]
    assert all(later <= earlier + 1e-15 for earlier, later in itertools.pairwise(losses))
    with pytest.raises(ValueError, match="at least 1"):
        SMALL.bayes(0)


@pytest.mark.parametrize("context", [None, 4, 9, 200, 260, 400])
def test_true_probabilities_meet_the_bound(context: int | None) -> None:
    market = SyntheticMarket(entities=8, events_per_entity=40_000)
    truth = market.truth(context)
    up, rose = truth["probability_up"].to_numpy(), truth["outcome"].to_numpy() > 0
    loss = -np.where(rose, np.log(up), np.log1p(-up))
    assert abs(loss.mean() - market.bayes(context).log_loss) < 4 * loss.std() / math.sqrt(len(loss))
    # Calibrated: what is given a probability happens that often.
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (up >= low) & (up < low + 0.25)
        if inside.sum() > 50:
            assert abs(up[inside].mean() - rose[inside].mean()) < 4 * 0.5 / math.sqrt(inside.sum())


def test_earlier_outcomes_tell_nothing_of_a_marker() -> None:
    truth = SyntheticMarket(entities=32, events_per_entity=65_536, seed=11).truth()
    outcome = truth["outcome"].to_numpy()
    same = (truth["entity"] == truth["entity"].shift(1)).fill_null(False).to_numpy()[1:]
    product = (outcome[1:] * outcome[:-1])[same]
    assert abs(product.mean()) < 4 / math.sqrt(len(product))


@pytest.mark.parametrize("distance", [200, 2_000, 50_000])
def test_marker_distance_is_kept(distance: int) -> None:
    market = SyntheticMarket(marker_distance=distance)
    assert distance <= market.distances.min() < market.distances.max() < distance + 130


def test_the_long_market_has_a_range() -> None:
    assert long_market(2_000, entities=2).names == ("SYN000000", "SYN000001")
    assert long_market(50_000).bayes(50_000).marker_seen == 0
    with pytest.raises(ValueError, match="2,000"):
        long_market(1_999)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cycle": 10}, "flow_events"),
        ({"channels": 9}, "channels"),
        ({"entities": 0}, "entities"),
        ({"entities": ("B", "A")}, "sorted"),
        ({"removals": 1.5}, "removals"),
        ({"marker_distance": 0}, "marker_distance"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SyntheticMarket(**settings)  # type: ignore[arg-type]


def test_a_million_events_take_about_a_second() -> None:
    market = SyntheticMarket(entities=16)
    start = time.process_time()
    for i in range(16):
        market.stream(i)
    # A machine shared with other work may be several times slower than the million a second that is measured alone.
    assert time.process_time() - start < 5
