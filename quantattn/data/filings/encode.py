"""Filings, or their items, in the tokens of a tokenizer that was fitted before: what scoring and embedding read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import polars as pl

from quantattn.data.filings.item_table import cut_all, item_names, select_items
from quantattn.data.filings.items import MISSING
from quantattn.data.filings.marks import MARKS, Mark, place_column
from quantattn.data.filings.pieces import Ints, OnLong, cut_documents
from quantattn.data.filings.planted import PlantedFilings
from quantattn.data.filings.tokenizer import FilingTokenizer
from quantattn.data.market.encode import Unlabelled
from quantattn.data.sources.source import Source

Unit = Literal["filing", "item"]
NO_ITEM = "no item is recognised"


@dataclass(frozen=True)
class UnlabelledFilings(Unlabelled):
    """D filings or items to score: `as_of` and `entity` are theirs, and a long one may be several decisions.

    Attributes:
        row: (Q,) int64, rising: the filing or item that each decision is a piece of.
        described: name → D values: `form`, `accession`, `item` and `status` (None of a whole filing); int64 `tokens`.
        notes: sentences about what was left out.
    """

    row: Ints
    described: Mapping[str, tuple[str | None, ...] | Ints]
    notes: tuple[str, ...]


def encode_filings(
    source: Source | PlantedFilings,
    vocabulary_json: str,
    *,
    unit: Unit = "filing",
    items: Sequence[object] | None = None,
    max_seq_len: int = 8_192,
    on_long: OnLong = "error",
) -> UnlabelledFilings:
    """Filings of a source, or each of their items by itself, as sequences.

    An item is read alone, so that the same text has the same tokens whatever stands around it.

    Args:
        source: what `scan_filings` returns, or made filings.
        vocabulary_json: of the tokenizer.
        unit: "filing", or "item": every item that has text, those of a joint heading each with the text of both.
        items: names of items (1A, 7, II.1A, 5.02): of filings, the text of these alone is read; of items, these.
        max_seq_len: tokens of a sequence at most, begin and end included.
        on_long: what becomes of a longer text, see `cut_documents`.

    Raises:
        ValueError: an unknown unit or name, nothing to encode, a text that is too long.
    """
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be one of {', '.join(get_args(Unit))}, got {unit!r}")
    names = None if items is None else item_names(items)
    source = source.source() if isinstance(source, PlantedFilings) else source
    tokenizer = FilingTokenizer.from_json(vocabulary_json)
    filings = collect_filings(source)
    left_out: Mapping[str, int] = {}
    if unit == "item":
        rows, left_out = item_texts(filings, names)
    else:
        if tokenizer.marks:
            filings = with_places(filings, names)
        if names is not None:
            filings, _, left_out = select_items(filings, names)
        rows = filings.with_columns(item=pl.lit(None, pl.String), status=pl.lit(None, pl.String))
    codes = encode_rows(rows, tokenizer)
    pieces = cut_documents(codes, max_seq_len, on_long)
    time = rows["available_time"].to_numpy(writable=True)
    called = rows.select(pl.concat_str("accession", pl.concat_str(pl.lit(" item "), "item").fill_null(""))).to_series()
    columns = {name: tuple(rows[name].to_list()) for name in ("form", "accession", "item", "status")}
    aside = {f"set aside by the source: {why}": n for why, n in source.report.rows_set_aside.items()}
    return UnlabelledFilings(
        sequences=pieces.sequences(time, called.to_list()),
        as_of=time,
        entity=tuple(rows["entity"]),
        hashes=dict(source.report.files),
        row=pieces.of,
        described={**columns, "tokens": np.asarray([len(each) + 2 for each in codes], np.int64)},
        notes=tuple(f"{n:,} {why}" for why, n in (aside | dict(left_out)).items()),
    )


def item_texts(filings: pl.DataFrame, names: Sequence[str] | None = None) -> tuple[pl.DataFrame, dict[str, int]]:
    """One row an item, in the order of the filings and of their texts.

    Args:
        filings: with `entity`, `event_time`, `available_time`, `form`, `accession`, `text`; with `annual_report`, items
            handed to Exhibit 13 are followed there.
        names: items that are wanted; all when None.

    Returns:
        The columns `entity`, `available_time`, `form`, `accession`, `item`, `status` (as in `Items.status`), `text`,
        `places` (a mark for each name of its heading, at its beginning); and reason → how many filings or items are not
        in it.

    Raises:
        ValueError: no filing has one of the items.
    """
    made: list[tuple[int, str, str, str, list[Mark]]] = []
    left_out: Counter[str] = Counter()
    for number, items in enumerate(cut_all(filings)):
        left_out[f"filings: {NO_ITEM}"] += not items.sections
        called = {name: section.names for section in items.sections for name in section.names}
        for name, status in items.status.items() if items.sections else ():
            if names is not None and name not in names:
                continue
            if status == MISSING:
                left_out[f"items: {name} {MISSING}"] += 1
            else:
                made.append((number, name, status, items[name], [(0, f"item {each}") for each in called[name]]))
    if not made:
        raise ValueError(f"none of {filings.height} filings has {'an item' if names is None else ' or '.join(names)}")
    *columns, places = zip(*made, strict=True)
    names_of = zip(("row", "item", "status", "text"), columns, strict=True)
    cut = pl.DataFrame({name: list(values) for name, values in names_of}).with_columns(place_series(places))
    kept = filings.select("entity", "available_time", "form", "accession")[cut["row"]]
    return pl.concat([kept, cut.drop("row")], how="horizontal"), dict(sorted((+left_out).items()))


def encode_rows(rows: pl.DataFrame, tokenizer: FilingTokenizer) -> list[Ints]:
    """Codes of the `text` of every row; for a tokenizer with marks it has `places` (see `with_places`)."""
    if not tokenizer.marks:
        return tokenizer.encode_all(rows["text"].to_list())
    marked = [[(each["at"], each["mark"]) for each in row] for row in rows["places"]]
    return tokenizer.encode_all(rows["text"].to_list(), marked)


def read_texts(
    source: Source, items: Sequence[object] | None, marks: bool
) -> tuple[pl.DataFrame, dict[str, int], dict[str, int]]:
    """Filings with the text that is read; counts of all of them and of items; reasons for which some have none."""
    filings = collect_filings(source)
    names = item_names(items) if items is not None else None
    filings = with_places(filings, names) if marks else filings
    read, counts, without = select_items(filings, names) if names is not None else (filings, {}, {})
    return read, counts | {"filings": filings.height}, without


def tokenizer_for(
    training: pl.DataFrame, until: int, size: int, folder: str | Path | None, marks: bool
) -> FilingTokenizer:
    """One fitted on the training filings, or the ready-made one of a folder."""
    names = MARKS if marks else ()
    if folder is not None:
        return FilingTokenizer.of_folder(folder, names)
    return FilingTokenizer.fit(training, fitted_until=until, vocabulary_size=size, marks=names)


def with_places(filings: pl.DataFrame, names: Sequence[str] | None) -> pl.DataFrame:
    """`filings` with `places`: where items begin in the text or, with names, in what `select_items` makes of it."""
    return filings.with_columns(place_series(place_column(filings, names)))


def place_series(places: Iterable[Sequence[Mark]]) -> pl.Series:
    """The column `places`: of each row a list of `at` and `mark`."""
    kind = pl.List(pl.Struct({"at": pl.Int64, "mark": pl.String}))
    return pl.Series("places", [[{"at": at, "mark": name} for at, name in row] for row in places], kind)


def collect_filings(source: Source) -> pl.DataFrame:
    """The filings of a source.

    Raises:
        ValueError: there is none; with what was set aside.
    """
    filings = source.frame.collect()
    if not filings.height:
        raise ValueError(f"the source holds no filing{_reasons(source.report.rows_set_aside)}")
    return filings


def _reasons(aside: Mapping[str, int]) -> str:
    return f": {', '.join(f'{why} ({n})' for why, n in aside.items())}" if aside else ""
