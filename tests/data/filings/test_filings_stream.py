"""What stands for a filing among events: embeddings from a table, or its words."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from quantattn.data.filings.stream import hashed_words, read_embeddings, scan_with_filings
from quantattn.data.filings.word_counts import count_words
from quantattn.data.market.filed import FiledSource
from quantattn.data.schema import Instrument
from quantattn.data.sources.source import Source, SourceReport


def texts(*said: str) -> pl.DataFrame:
    rows = [("A", 1, 2, str(number), text) for number, text in enumerate(said)]
    return pl.DataFrame(rows, schema=("entity", "event_time", "available_time", "accession", "text"), orient="row")


def test_words_are_of_letters_and_apostrophes() -> None:
    said = count_words("We don't, won’t; re-use 10-K's of 2024. ÜBER über 'quoted' _x_ Ωmega")
    once = ("we", "don't", "won’t", "re", "use", "k's", "of", "quoted", "x", "ωmega")
    assert said == dict.fromkeys(once, 1) | {"über": 2}
    assert count_words("") == count_words("10,000 1999") == {}


def test_words_are_hashed_with_nothing_fitted() -> None:
    values = hashed_words(texts("Anvils fall. ANVILS!", "fall anvils anvils 2024", "other", ""), 16).values
    assert values[0].tobytes() == values[1].tobytes()  # order, case, marks and numbers count for nothing
    np.testing.assert_allclose(np.linalg.norm(values, axis=1), [1, 1, 1, 0], atol=1e-6)
    alone = hashed_words(texts("other"), 16).values
    assert alone[0].tobytes() == values[2].tobytes()  # and no other filing changes a vector
    anvils, fall = (hashed_words(texts(word), 16).values[0] for word in ("anvils", "fall"))
    mixed = np.log(3) * anvils + np.log(2) * fall
    np.testing.assert_allclose(values[0], mixed / np.linalg.norm(mixed), atol=1e-6)
    with pytest.raises(ValueError, match="at least 1 place, got 0"):
        hashed_words(texts("a"), 0)


def table(**changes: object) -> pl.DataFrame:
    made = pl.DataFrame(
        {
            "entity": ["0000000001"] * 3,
            "as_of": [5, 15, 15],
            "key": [0, 1, 2],
            "rows": [3, 3, 3],
            "accession": ["a", "b", "b"],
            "item": ["1A", "1A", "7"],
            "seen_until": [3, 3, 3],
            "embedding": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]],
            "model_sha": ["f" * 64] * 3,
        }
    )
    return made.with_columns(**{name: pl.lit(value) for name, value in changes.items()})


def written(folder: Path, frame: pl.DataFrame) -> Path:
    frame.write_delta(str(folder))
    return folder


def test_embeddings_come_from_the_table_that_scoring_wrote(tmp_path: Path) -> None:
    made = read_embeddings(written(tmp_path / "items", table()), "1A")
    assert made.frame.select("entity", "available_time", "accession").rows() == [
        ("0000000001", 5, "a"),
        ("0000000001", 15, "b"),
    ]
    assert made.values.tolist() == [[0, 1], [2, 3]]
    assert made.seen_until == 3
    for frame, item, sentence in (
        (table(), None, "has no embeddings of whole filings; it has 1A, 7"),
        (table(item="7"), "7", "has b twice"),
        (table().drop("seen_until"), "1A", "does not say what it had seen"),
        (table().drop("embedding"), "1A", "lacks embedding"),
        (table().head(2), "1A", "has 2 of 3 rows: the same score"),
        (table(as_of=None).cast({"as_of": pl.Int64}), "1A", "has rows without as_of"),
        (table().with_columns(embedding=pl.Series([[1.0], [1.0, 2.0], []])), "1A", "of 1 and 2 numbers"),
        (
            table().with_columns(embedding=pl.Series([[1.0, math.nan]] * 3)),
            "1A",
            "vector of a has numbers that are not",
        ),
    ):
        folder = written(tmp_path / sentence.replace(" ", "-"), frame)
        with pytest.raises(ValueError, match=sentence):
            read_embeddings(folder, item)
    with pytest.raises(ValueError, match=r"holds no table that score\.py wrote"):
        read_embeddings(tmp_path)


def test_a_market_is_read_and_joined_by_its_tickers(tmp_path: Path) -> None:
    frame = pl.DataFrame({"entity": "ACME", "event_time": [4, 9, 20], "available_time": [4, 9, 20], "seq": [0, 1, 2]})
    market = Source(frame.with_columns(close=pl.lit(7)).lazy(), (Instrument("ACME"),), SourceReport(3))
    tickers = tmp_path / "tickers.json"
    tickers.write_text('{"0": {"cik_str": 1, "ticker": "ACME", "title": "Acme"}}')
    written(tmp_path / "table", table())
    joined = scan_with_filings("market", lambda path: market, tmp_path / "table", "1A", tickers)
    assert isinstance(joined, FiledSource)
    assert joined.frame.collect()["filing"].to_list() == [None, 0, None, 1, None]
    assert scan_with_filings("market", lambda path: market) is market
