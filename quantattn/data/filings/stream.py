"""What stands for each filing among the events of a market: a model's embeddings, or the words themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from quantattn.data.filings.embedding_table import read_embedding_table
from quantattn.data.filings.prices import read_tickers
from quantattn.data.filings.word_counts import count_words
from quantattn.data.market.filed import FilingVectors, with_filings
from quantattn.data.sources.source import Source


def read_embeddings(folder: str | Path, item: str | None = None) -> FilingVectors:
    """The table that scoring with `output=embeddings` wrote.

    Args:
        folder: of the table.
        item: which item's embeddings, where a row is an item; None where a row is a filing.

    Raises:
        ValueError: no such table or not all of it, none of its rows is of the item, a filing twice, or a model that
            does not say what it had seen.
    """
    table = read_embedding_table(folder)
    if "seen_until" not in table.columns:
        raise ValueError(
            f"the model of {folder} does not say what it had seen, so nothing of it may be joined to events"
        )
    own = table.filter(pl.col("item").eq_missing(item))
    if not own.height:
        there = ", ".join(sorted(name or "whole filings" for name in table["item"].unique().to_list()))
        raise ValueError(f"{folder} has no embeddings of {item or 'whole filings'}; it has {there}")
    if own["accession"].is_duplicated().any():
        raise ValueError(f"{folder} has {own.filter(pl.col('accession').is_duplicated())['accession'][0]} twice")
    empty = [name for name in ("entity", "as_of", "accession", "embedding", "seen_until") if own[name].null_count()]
    if empty:
        raise ValueError(f"{folder} has rows without {', '.join(empty)}")
    sizes = own["embedding"].list.len().unique().sort().to_list()
    if len(sizes) > 1 or not sizes[0]:
        raise ValueError(
            f"{folder} has embeddings of {' and '.join(map(str, sizes))} numbers; they must be of one size"
        )
    frame = own.select("entity", event_time="as_of", available_time="as_of", accession="accession")
    values = own["embedding"].list.to_array(sizes[0]).to_numpy().astype(np.float32)
    until = max(own["seen_until"].to_list())
    return FilingVectors(frame, values, until, f"encoder of filings {own['model_sha'][0][:12]}")


def hashed_words(filings: pl.DataFrame, size: int = 64) -> FilingVectors:
    """Filings by their words alone, nothing fitted: ln(1 + n_t) of each word t at the place that its hash names.

    Feature hashing (Weinberger et al. 2009, arXiv 0902.2206): a word goes to one of `size` places with one of two
    signs, both by the first bytes of its SHA-256; words that meet add up. The vector is scaled to length one.

    Args:
        filings: `entity`, `event_time`, `available_time`, `accession`, `text`.
        size: E.

    Raises:
        ValueError: fewer than one place.
    """
    if size < 1:
        raise ValueError(f"words are hashed to at least 1 place, got {size}")
    values = np.zeros((filings.height, size), np.float64)
    known: dict[str, tuple[int, float]] = {}
    for row, text in enumerate(filings["text"]):
        for word, count in count_words(text).items():
            if word not in known:
                digest = hashlib.sha256(word.encode()).digest()
                known[word] = int.from_bytes(digest[:8]) % size, 1.0 if digest[8] & 1 else -1.0
            place, sign = known[word]
            values[row, place] += sign * np.log1p(count)
    length = np.linalg.norm(values, axis=1, keepdims=True)
    values /= np.where(length > 0, length, 1.0)
    frame = filings.select("entity", "event_time", "available_time", "accession")
    return FilingVectors(frame, values.astype(np.float32), name="hashed words")


def scan_with_filings(
    path: str | Path,
    events: Callable[[str | Path], Source],
    filings: str | Path | None = None,
    item: str | None = None,
    tickers: str | Path | None = None,
) -> Source:
    """A market read from `path` with the filings of a table of embeddings among its events.

    Args:
        path: what `events` reads.
        events: reader of the market.
        filings: folder that scoring with `output=embeddings` wrote; None: the market alone, as a control.
        item: see `read_embeddings`.
        tickers: the SEC's `company_tickers.json`; None where the market's entities are CIKs.
    """
    market = events(path)
    if filings is None:
        return market
    return with_filings(market, read_embeddings(filings, item), None if tickers is None else read_tickers(tickers))
