"""Filings among the events of a market: each comes as an event when it becomes public, and carries its vector.

A filing of a company is put into the stream of its stock at its `available_time`, behind all events of that time: what
is decided on an event sees the filings that were public before, and no other. It trades nothing: kind FILING, no
price, size 0, and the book (or the close) of the event before it. Two columns come with it: `filing`, the number of its
vector, and `filing_available_time`, when it became public by its own account, which the audit holds against the time of
every decision that could use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.carried import TokenVectors
from quantattn.data.digest import columns_sha256
from quantattn.data.pack import TokenTable
from quantattn.data.protocol.findings import Fitted
from quantattn.data.schema import FILING, book_levels, level_columns
from quantattn.data.sources.source import Source

NAME = "filing"
"""Of the vectors in token tables, batches and the encoder's description."""
NO_ENTITY = "filings of companies that the market does not have"
BEFORE = "filings from before the first bar"
AFTER = "filings from after the last event"
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FilingVectors:
    """F filings and what stands for each.

    Attributes:
        frame: `entity` (CIK, or the market's own name), `event_time`, `available_time` (ns UTC), `accession`.
        values: (F, E) float32.
        seen_until: end, exclusive, of what the model behind them had seen, ns UTC; None when nothing was fitted.
        name: of the model, for the audit.
    """

    frame: pl.DataFrame
    values: Floats
    seen_until: int | None = None
    name: str = "filing vectors"

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or len(self.values) != self.frame.height:
            raise ValueError(f"{self.frame.height} filings need as many vectors, got {self.values.shape}")
        if not np.isfinite(self.values).all():
            row = int(np.flatnonzero(~np.isfinite(self.values).all(axis=1))[0])
            raise ValueError(f"the vector of {self.frame['accession'][row]} has numbers that are not finite")
        early = self.frame.filter(pl.col("available_time") < pl.col("event_time"))
        if early.height:
            raise ValueError(f"{early['accession'][0]} is public before it was accepted ({early.height} such filings)")


@dataclass(frozen=True)
class FiledSource(Source):
    """Events with filings among them; `filings.values[n]` is the vector of the event whose column `filing` is n."""

    filings: FilingVectors


def with_filings(
    events: Source, filings: FilingVectors, entities: Mapping[str, Sequence[str]] | None = None
) -> FiledSource:
    """The events of a market with filings among them.

    Args:
        events: of a book, or bars. Of trades, which have no row without a price, there is none.
        filings: whose, when, and what stands for each.
        entities: entity of the filings → those of the market that it is, its tickers; None: they are called alike.

    Returns:
        A source whose table is in canonical order, `seq` numbered anew. Its report counts the filings that are not in
        it: of companies that the market does not have, of before its first bar, and of after its last event.

    Raises:
        ValueError: a table of another kind.
    """
    columns = events.frame.collect_schema()
    if "filing" in columns:
        raise ValueError("there are filings among these events already")
    if "ask_price_1" not in columns and "close" not in columns:
        raise ValueError("filings are joined to events of a book or to bars; these events are neither")
    kept, left = _placed(events.frame, filings.frame, entities, bars="ask_price_1" not in columns)
    report = replace(
        events.report,
        rows_read=events.report.rows_read + kept.height,
        rows_set_aside=dict(events.report.rows_set_aside) | left,
        files=dict(events.report.files) | {"filing vectors": _sha256(filings)},
    )
    return FiledSource(_merged(events.frame, kept, columns), events.instruments, report, filings)


def carrying(table: TokenTable, events: pl.DataFrame, source: Source) -> TokenTable:
    """The tokens of these events, those of filings with their vectors; the same table where there are none.

    Raises:
        ValueError: the events name filings whose vectors are not there: shards keep the events alone.
    """
    if "filing" not in events.columns:
        return table
    if not isinstance(source, FiledSource):
        raise ValueError("these events name filings, and their vectors are not there: join filings to the market anew")
    rows = events["filing"].is_not_null().arg_true().to_numpy().astype(np.int64)
    numbers = events["filing"].drop_nulls().to_numpy()
    return replace(table, vectors={NAME: TokenVectors(rows, source.filings.values[numbers])})


def latest_known(events: pl.DataFrame, table: TokenTable) -> Ints:
    """(R,) ns UTC by which everything that a token and those before it hold was public.

    It is the token's own time, unless a filing stands before its own `filing_available_time`.
    """
    if "filing_available_time" not in events.columns:
        return table.time
    public = pl.col("filing_available_time").cum_max().forward_fill().over("entity")
    known: Ints = np.maximum(table.time, events.select(public.fill_null(0)).to_series().to_numpy())
    return known


def fitted_filings(source: Source) -> tuple[Fitted, ...]:
    """What made the vectors of a source, for the audit: it may have seen nothing of a held-out stretch of time."""
    if not isinstance(source, FiledSource):
        return ()
    filings = source.filings
    if filings.seen_until is None:
        return (Fitted(filings.name, None, 0),)
    return (Fitted(filings.name, filings.seen_until, filings.frame.height),)


def _placed(
    events: pl.LazyFrame, filings: pl.DataFrame, entities: Mapping[str, Sequence[str]] | None, bars: bool
) -> tuple[pl.DataFrame, dict[str, int]]:
    """The filings that find a place among the events, and reason → how many do not."""
    given = filings.with_row_index("filing").with_columns(pl.col("filing").cast(pl.Int64))
    if entities is not None:
        pairs = [(name, each) for name, every in entities.items() for each in every]
        named = pl.DataFrame(pairs, schema={"entity": pl.String, "named": pl.String}, orient="row")
        given = given.join(named, on="entity", how="left").with_columns(entity="named").drop("named")
    span = events.group_by("entity").agg(first=pl.col("available_time").min(), last=pl.col("available_time").max())
    placed = given.join(span.collect(), on="entity", how="inner")
    lost = filings.height - placed["filing"].n_unique()
    late = pl.col("available_time") > pl.col("last")
    early = (pl.col("available_time") < pl.col("first")) & bars
    left = {NO_ENTITY: lost, BEFORE: placed.filter(early).height, AFTER: placed.filter(late).height}
    kept = placed.filter(~late & ~early).select("entity", "event_time", "available_time", "filing")
    return kept, {why: count for why, count in left.items() if count}


def _merged(frame: pl.LazyFrame, filings: pl.DataFrame, columns: pl.Schema) -> pl.LazyFrame:
    """Both in canonical order, filings behind the events of their time and with what the event before them left."""
    own = {"kind": FILING, "side": 0, "size": 0, "order_id": 0}
    made = filings.lazy().with_columns(
        *(pl.lit(value, columns[name]).alias(name) for name, value in own.items() if name in columns),
        filing_available_time="available_time",
    )
    names = columns.names()
    standing = [name for level in range(1, book_levels(names) + 1) for name in level_columns(level)]
    standing += [name for name in ("halted", "close") if name in columns]
    event = pl.when(pl.col("filing").is_null()).then("_row").forward_fill().over("entity")
    return (
        pl.concat([frame, made], how="diagonal")
        .sort("entity", "available_time", "filing", "seq", nulls_last=False)
        .with_row_index("_row")
        .with_columns(_event=event)
        .with_columns(
            *(pl.col(name).gather(pl.col("_event")) for name in standing), seq=pl.int_range(pl.len()).over("entity")
        )
        .drop("_event", "_row")
    )


def _sha256(filings: FilingVectors) -> str:
    names = "\n".join(
        f"{entity} {accession}" for entity, accession in filings.frame.select("entity", "accession").rows()
    )
    times = filings.frame["available_time"].to_numpy()
    return columns_sha256({"values": filings.values, "time": times, "names": np.frombuffer(names.encode(), np.uint8)})
