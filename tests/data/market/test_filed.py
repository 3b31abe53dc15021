"""Filings among events: each comes when it was public, behind what was known then, and a leak fails the audit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.filings.filed_market import LOWERED, RAISED, FiledMarket, made_filings
from quantattn.data.market.encode import encode_market
from quantattn.data.market.filed import AFTER, BEFORE, NO_ENTITY, FiledSource, FilingVectors, with_filings
from quantattn.data.market.prepare import prepare_market
from quantattn.data.prepared import Prepared
from quantattn.data.protocol import LeakError, MidLabel
from quantattn.data.schema import EXECUTE_HIDDEN, FILING, NEW, Bars, BookEvents, Instrument, check
from quantattn.data.sources.source import Source, SourceReport

DAY = 86_400 * 10**9


def book(*times: tuple[str, int]) -> Source:
    """One event an (entity, time); the bid of event n is 100 + n."""
    rows = pl.DataFrame(sorted(times), schema=("entity", "available_time"), orient="row").with_row_index("n")
    n = pl.col("n").cast(pl.Int64)
    frame = rows.select(
        "entity",
        event_time="available_time",
        available_time="available_time",
        seq=n,
        kind=pl.lit(NEW, pl.UInt8),
        side=pl.lit(1, pl.Int8),
        price=100 + n,
        size=pl.lit(1, pl.Int64),
        order_id=n,
        ask_price_1=300 + n,
        ask_size_1=pl.lit(5, pl.Int64),
        bid_price_1=100 + n,
        bid_size_1=pl.lit(7, pl.Int64),
    )
    names = sorted({entity for entity, _ in times})
    return Source(frame.lazy(), tuple(Instrument(each, tick=1) for each in names), SourceReport(len(times)))


def filings(*filed: tuple[str, int]) -> FilingVectors:
    """Filing n has the vector (n, −n) and was accepted a nanosecond before it became public."""
    frame = pl.DataFrame(filed, schema={"entity": pl.String, "available_time": pl.Int64}, orient="row")
    frame = frame.with_columns(
        event_time=pl.col("available_time") - 1, accession=pl.int_range(pl.len()).cast(pl.String)
    )
    number = np.arange(len(filed), dtype=np.float32)[:, None]
    return FilingVectors(frame, number * np.array([1, -1], np.float32))


def test_a_filing_comes_behind_the_events_of_its_time_with_the_book_they_left() -> None:
    source = with_filings(book(("A", 10), ("A", 20), ("A", 20), ("A", 30)), filings(("A", 20), ("A", 25), ("A", 5)))
    table = check(source.frame.collect(), BookEvents)
    assert table.select("available_time", "filing", "bid_price_1", "ask_price_1").rows() == [
        (5, 2, None, None),  # nothing has happened yet, so there is no book
        (10, None, 100, 300),
        (20, None, 101, 301),
        (20, None, 102, 302),
        (20, 0, 102, 302),
        (25, 1, 102, 302),
        (30, None, 103, 303),
    ]
    filed = table.filter(pl.col("filing").is_not_null())
    assert set(filed["kind"]) == {FILING}
    assert filed["price"].null_count() == 3
    assert filed["filing_available_time"].to_list() == filed["available_time"].to_list()
    assert filed["event_time"].to_list() == [4, 19, 24]
    assert table["seq"].to_list() == list(range(7))


def test_an_empty_side_of_the_book_stays_empty() -> None:
    source = book(("A", 10), ("A", 20))
    gone = pl.when(pl.col("available_time") == 20).then(None).otherwise("ask_price_1")
    source = replace(source, frame=source.frame.with_columns(ask_price_1=gone))
    source = replace(source, frame=source.frame.filter(pl.col("available_time") <= 20))
    later = pl.concat([source.frame, book(("A", 10), ("A", 20), ("A", 30)).frame.tail(1)])
    table = with_filings(replace(source, frame=later), filings(("A", 25))).frame.collect()
    assert table["ask_price_1"].to_list() == [300, None, None, 302]


def test_filings_without_a_place_are_counted() -> None:
    source = with_filings(book(("A", 10), ("B", 10)), filings(("A", 5), ("A", 11), ("C", 10), ("B", 10)))
    assert source.report.rows_set_aside == {NO_ENTITY: 1, AFTER: 1}
    assert source.report.rows_read == 4
    named = with_filings(book(("A", 10), ("B", 10)), filings(("1", 10), ("2", 10)), {"1": ("A", "B", "Z"), "3": ("A",)})
    table = named.frame.collect().filter(pl.col("filing").is_not_null())
    assert table.select("entity", "filing").rows() == [("A", 0), ("B", 0)]
    assert named.report.rows_set_aside == {NO_ENTITY: 1}  # company 2; that nobody trades Z is no loss of company 1's


def bars(days: int) -> Source:
    rng = np.random.default_rng(0)
    close = 10_000 + np.cumsum(rng.integers(-50, 51, days))
    time = np.arange(1, days + 1) * DAY
    frame = pl.DataFrame({"event_time": time, "available_time": time, "seq": np.arange(days), "close": close})
    price = pl.col("close")
    frame = frame.select(
        *(pl.lit("A").alias("entity"), "event_time", "available_time", "seq"),
        *(price.alias("open"), price.alias("high"), price.alias("low"), "close", pl.lit(9, pl.Int64).alias("volume")),
    )
    return Source(frame.lazy(), (Instrument("A", tick=1),), SourceReport(days))


def test_bars_too_and_no_return_is_changed_by_a_filing() -> None:
    joined = with_filings(bars(4), filings(("A", DAY // 2), ("A", 2 * DAY + 1)))
    table = check(joined.frame.collect(), Bars)
    assert joined.report.rows_set_aside == {BEFORE: 1}
    assert table["filing"].to_list() == [None, None, 1, None, None]
    assert table["close"][2] == table["close"][1]
    market = table.filter(pl.col("filing").is_null()).select("close").to_series()
    assert market.to_list() == bars(4).frame.collect()["close"].to_list()


def test_what_cannot_be_joined_is_refused() -> None:
    trades = book(("A", 1)).frame.drop("ask_price_1", "ask_size_1", "bid_price_1", "bid_size_1")
    with pytest.raises(ValueError, match="joined to events of a book or to bars"):
        with_filings(Source(trades, (), SourceReport(1)), filings(("A", 1)))
    once = with_filings(book(("A", 1)), filings(("A", 1)))
    with pytest.raises(ValueError, match="filings among these events already"):
        with_filings(once, filings(("A", 1)))
    with pytest.raises(ValueError, match="the vector of 0 has numbers that are not finite"):
        FilingVectors(filings(("A", 1)).frame, np.full((1, 2), np.nan, np.float32))
    early = filings(("A", 5)).frame.with_columns(event_time=pl.lit(6, pl.Int64))
    with pytest.raises(ValueError, match="0 is public before it was accepted"):
        FilingVectors(early, np.zeros((1, 2), np.float32))


@settings(max_examples=50, deadline=None)
@given(
    events=st.lists(st.tuples(st.sampled_from("AB"), st.integers(0, 30)), min_size=1, max_size=12),
    filed=st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 30)), max_size=8),
    more=st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 10)), max_size=4),
    cut=st.integers(0, 30),
)
def test_nothing_filed_later_changes_what_stands_before(
    events: list[tuple[str, int]], filed: list[tuple[str, int]], more: list[tuple[str, int]], cut: int
) -> None:
    past = [each for each in filed if each[1] <= cut]
    later = [(entity, cut + 1 + after) for entity, after in more]
    one, two = (with_filings(book(*events), filings(*past, *given)).frame.collect() for given in ([], later))
    before = pl.col("available_time") <= cut
    assert one.filter(before).equals(two.filter(before))
    for entity, time, number in (
        two.filter(pl.col("filing").is_not_null()).select("entity", "available_time", "filing").rows()
    ):
        assert [*past, *later][number] == (entity, time)


MARKET = FiledMarket(entities=3, events_per_entity=2_048, flow_events=4, cycle=8, marker_distance=16)
LABEL = MidLabel(horizon=1, method=0, classes=2, rule="fixed")
SETTINGS = {"decision_kinds": (5,), "fields": ("kind", "side", "size"), "max_seq_len": 48, "min_context": 32}


def prepared(source: Source | FiledMarket) -> Prepared:
    return prepare_market(source, label=LABEL, **SETTINGS)  # type: ignore[arg-type]


def test_the_made_market_says_the_sign_in_the_filing_and_nowhere_else() -> None:
    table, said = MARKET.source().frame.collect(), MARKET.filings()
    assert table.filter(pl.col("filing").is_not_null()).height == said.height
    for text, sign in said.select("text", "sign").rows():
        assert (RAISED in text) == (sign == 1)
        assert (LOWERED in text) == (sign == -1)
    # A filing stands where the marker stood, so decisions keep their numbers.
    last = table.with_columns(pl.col("filing").forward_fill().over("entity"))
    decided = MARKET.truth().join(last, on=["entity", "seq"], how="left")
    assert set(decided["kind"]) == {EXECUTE_HIDDEN}
    assert said["sign"].gather(decided["filing"]).to_list() == decided["marker"].to_list()
    assert decided.height > 100
    other = replace(MARKET, read=False)
    assert "filing" not in other.source().frame.collect_schema()
    # P(up) = σ(0.7 · flow + 2.4 · sign), the flow the sum of four fair signs; who reads no filing knows the flow alone.
    up = 1 / (1 + np.exp(-(0.7 * np.arange(-4, 5, 2)[:, None] + 2.4 * np.array([1, -1]))))  # (flows, signs)
    chance = np.array([1, 4, 6, 4, 1]) / 16
    for market, said in ((MARKET, up), (other, up.mean(axis=1, keepdims=True))):
        loss = -(said * np.log(said) + (1 - said) * np.log(1 - said)).mean(axis=1)
        assert market.bayes().log_loss == pytest.approx(chance @ loss)


def test_embeddings_of_its_filings_may_stand_for_them(tmp_path: Path) -> None:
    source = made_filings(3, 2_048, 16)
    table = source.frame.collect()
    assert table.equals(FiledMarket(3, 2_048, 16).filings().drop("sign"))
    made = table.select(
        *("entity", "accession", pl.col("available_time").alias("as_of"), pl.int_range(pl.len()).alias("key")),
        pl.len().alias("rows"),
        *(pl.lit(None, pl.String).alias("item"), pl.lit(0).alias("seen_until"), pl.lit("f" * 64).alias("model_sha")),
        embedding=pl.concat_list(pl.int_range(pl.len()).cast(pl.Float32), pl.lit(1.0, pl.Float32)),
    )
    made.sample(fraction=1.0, shuffle=True, seed=1).write_delta(str(tmp_path / "table"))
    joined = FiledMarket(3, 2_048, 16, embeddings=str(tmp_path / "table")).source()
    assert isinstance(joined, FiledSource)
    assert joined.filings.values[:, 0].tolist() == list(range(table.height))
    events, said = joined.frame.collect(), FiledMarket(3, 2_048, 16).source().frame.collect()
    assert events.drop("event_time").equals(said.drop("event_time"))  # the table says when filings were public


def test_each_decision_holds_its_filing_and_the_audit_has_looked() -> None:
    made = prepared(MARKET)
    batch = made.test.pack(range(len(made.test)))
    sizes = np.diff(batch.cu_seqlens.numpy())
    assert batch.vectors["filing"].values.shape[1] == MARKET.vector_size
    assert len(batch.vectors["filing"].rows) >= (sizes > 0).sum()
    looked = {check.name: check for check in made.audit.checks}
    assert looked["feature later than the decision"].verdict == "passed"
    assert looked["input depends on the future"].verdict == "passed"
    assert made.bayes is not None
    assert made.bayes.log_loss == MARKET.bayes().log_loss
    assert "filing vectors" in made.hashes


def test_a_filing_before_it_was_public_fails_the_run() -> None:
    """The planted leak: filings stand in the stream from their acceptance on, a quarter of an hour too early."""
    honest = MARKET.vectors()
    early = replace(honest, frame=honest.frame.with_columns(available_time="event_time"))
    leaking = with_filings(MARKET.events(), early)
    public = pl.Series(honest.frame["available_time"])
    number = pl.col("filing").cast(pl.UInt32)
    frame = leaking.frame.with_columns(filing_available_time=pl.lit(public).gather(number))
    with pytest.raises(LeakError, match=r"feature later than the decision: .* uses a value available only at"):
        prepared(replace(leaking, frame=frame))


def test_vectors_of_a_model_that_saw_the_held_out_time_fail_the_run() -> None:
    source = MARKET.source()
    assert isinstance(source, FiledSource)
    late = replace(
        source.filings, seen_until=int(source.filings.frame["available_time"].max()), name="encoder of filings"
    )  # type: ignore[arg-type]
    with pytest.raises(LeakError, match="fitted on rows outside training: encoder of filings was fitted until"):
        prepared(replace(source, filings=late))
    early = replace(late, seen_until=0)
    assert prepared(replace(source, filings=early)).audit.passed


def test_events_whose_vectors_are_lost_are_refused() -> None:
    source = MARKET.source()
    with pytest.raises(ValueError, match="name filings, and their vectors are not there"):
        prepared(Source(source.frame, source.instruments, source.report))


def test_scoring_reads_the_same_vectors() -> None:
    made = prepared(MARKET)
    given = {name: value for name, value in SETTINGS.items() if name != "fields"}
    scored = encode_market(MARKET, made.vocabulary_json, **given)  # type: ignore[arg-type]
    one, other = scored.sequences.table.vectors["filing"], made.test.table.vectors["filing"]
    assert one.rows.tolist() == other.rows.tolist()
    assert one.values.tobytes() == other.values.tobytes()
