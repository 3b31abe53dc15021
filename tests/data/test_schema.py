"""A table either obeys its schema or one sentence says where it does not."""

from __future__ import annotations

import polars as pl
import pytest

from quantattn.data.schema import BookEvents, Filings, Instrument, book_levels, check

TABLE = pl.DataFrame(
    {
        "entity": ["A", "A", "B"],
        "event_time": [10, 20, 5],
        "available_time": [10, 20, 6],
        "seq": [0, 1, 0],
        "kind": [1, 4, 7],
        "side": [1, -1, 0],
        "price": [100, 200, None],
        "size": [1, 2, 0],
        "order_id": [1, 2, 0],
        "ask_price_1": [300, None, 300],
        "ask_size_1": [1, 0, 1],
        "bid_price_1": [100, 100, 100],
        "bid_size_1": [1, 1, 1],
        "anything_else": ["x", None, "y"],
    },
    schema_overrides={"kind": pl.UInt8, "side": pl.Int8},
)


def refusal(table: pl.DataFrame | pl.LazyFrame) -> str:
    with pytest.raises(ValueError) as caught:
        check(table, BookEvents)
    return str(caught.value)


def test_a_good_table_comes_back_as_it_is() -> None:
    assert check(TABLE, BookEvents) is TABLE
    lazy = TABLE.lazy()
    assert check(lazy, BookEvents) is lazy
    assert check(TABLE.clear(), BookEvents).height == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (pl.col("kind").cast(pl.Int64), ("'kind'", "Int64", "UInt8")),
        (pl.Series("kind", [1, 4, 12], pl.UInt8), ("row 2", "'kind'", "max", "12")),
        (pl.Series("side", [1, 2, 0], pl.Int8), ("row 1", "'side'", "is_in", "2")),
        (pl.Series("size", [1, None, 0], pl.Int64), ("row 1", "'size'", "nullability", "None")),
        (pl.Series("bid_size_1", [1, 1, -1]), ("row 2", "'bid_size_1'", "min", "-1")),
        (pl.Series("available_time", [10, 19, 6]), ("row 1", "available_not_before_event", "20", "19")),
        (pl.Series("entity", ["B", "B", "A"]), ("row 2", "out of order", "'A'")),
        (pl.Series("event_time", [0, 0, 0]).alias("available_time"), ("row 0", "available_not_before_event")),
        (pl.Series("seq", [0, -1, 0]), ("row 1", "'seq'", "min")),
    ],
)
def test_the_sentence_names_row_column_and_rule(change: pl.Expr, words: tuple[str, ...]) -> None:
    said = refusal(TABLE.with_columns(change))
    assert said.startswith("BookEvents: ")
    assert all(word in said for word in words), said


def test_rows_of_one_instant_must_be_told_apart_by_seq() -> None:
    tied = TABLE.with_columns(event_time=pl.lit(5, pl.Int64), available_time=pl.lit(10, pl.Int64))
    check(tied, BookEvents)
    assert "row 1 is out of order" in refusal(tied.with_columns(seq=pl.lit(0, pl.Int64)))


def test_a_lazy_table_is_checked_by_name_and_type_without_being_computed() -> None:
    def must_not_run(frame: pl.DataFrame) -> pl.DataFrame:
        raise AssertionError("computed")

    lazy = TABLE.lazy().map_batches(must_not_run, schema=TABLE.schema)
    check(lazy, BookEvents)
    assert "column 'price' is missing" in refusal(lazy.drop("price"))
    with pytest.raises(ValueError, match="Filings: column 'form' is missing"):
        check(TABLE, Filings)


def test_levels_are_counted_and_must_be_whole() -> None:
    assert book_levels(TABLE.schema) == 1
    assert book_levels(["entity"]) == 0
    deep = [f"{side}_{what}_{level}" for level in (1, 2) for side in ("ask", "bid") for what in ("price", "size")]
    assert book_levels(deep) == 2
    with pytest.raises(ValueError, match="no column 'bid_size_2'"):
        book_levels(deep[:-1])


def test_a_tick_is_a_positive_step() -> None:
    with pytest.raises(ValueError, match="tick must be a positive"):
        Instrument("A", -4, 0)
