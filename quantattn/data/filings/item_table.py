"""Items of many filings: a column that says where they stand, a table of how many stand how, a choice of some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from quantattn.data.filings.item_names import known_names, scheme_of
from quantattn.data.filings.items import STATUSES, Items, Section, items_of

NONE_OF_THEM = "none of the items asked for"
TAKEN_WHOLE = "filings without a recognised item, taken whole"

ITEM = pl.Struct(
    {
        **{"name": pl.String, "status": pl.String, "start": pl.Int64, "end": pl.Int64},
        **{"report_start": pl.Int64, "report_end": pl.Int64},
    }
)
"""One item: its slice of `text`, and its slice of `annual_report` where it was followed there; null where missing.
The items of a joint heading have the same slice."""


def item_rows(items: Items) -> list[dict[str, str | int | None]]:
    """The items of one filing in the order of its text, then the missing ones, as values of `ITEM`."""
    rows: list[dict[str, str | int | None]] = []
    for section in items.sections:
        first, last = section.report or (None, None)
        place = {"start": section.start, "end": section.end, "report_start": first, "report_end": last}
        rows += [{"name": name, "status": section.status, **place} for name in section.names]
    missing = dict.fromkeys(("start", "end", "report_start", "report_end"))
    present = {row["name"] for row in rows}
    return rows + [
        {"name": name, "status": status, **missing} for name, status in items.status.items() if name not in present
    ]


def cut_all(filings: pl.DataFrame) -> Iterator[Items]:
    """The items of every row of a table with `form`, `text`, `event_time` and perhaps `annual_report`, in order.

    Of a filing that another program had cut (`cut`), the items are those of `items`; its text is not cut again.
    """
    reports = filings["annual_report"] if "annual_report" in filings.columns else [None] * filings.height
    known = {"cut", "items"} <= set(filings.columns)
    places = filings.select(pl.when("cut").then("items"))["items"] if known else [None] * filings.height
    days = filings["event_time"].cast(pl.Datetime("ns")).dt.date()
    for form, text, report, filed, rows in zip(filings["form"], filings["text"], reports, days, places, strict=True):
        if rows is None:
            yield items_of(text, form, report, filed)
        else:
            yield Items(text, _sections(rows), scheme_of(form).expected(filed), report)


def _sections(rows: Iterable[Mapping[str, Any]]) -> tuple[Section, ...]:
    """What `item_rows` was given."""
    names: dict[tuple[int, int, str, tuple[int, int] | None], list[str]] = {}
    for row in rows:
        if row["start"] is not None:
            report = None if row["report_start"] is None else (row["report_start"], row["report_end"])
            names.setdefault((row["start"], row["end"], row["status"], report), []).append(row["name"])
    return tuple(Section(tuple(each), *place) for place, each in names.items())


def item_column(filings: pl.DataFrame) -> pl.Series:
    """`items`, a list of `ITEM` for every filing of a table as in `cut_all`."""
    return pl.Series("items", [item_rows(items) for items in cut_all(filings)], pl.List(ITEM))


def item_summary(filings: pl.DataFrame) -> pl.DataFrame:
    """How the items of a table with `family` and `items` stand: one row a family and item, a count for each status."""
    long = filings.select("family", "items").explode("items").unnest("items").filter(pl.col("name").is_not_null())
    counts = [pl.col("status").eq(status).sum().cast(pl.Int64).alias(status.replace(" ", "_")) for status in STATUSES]
    order = pl.col("name").str.extract(r"(\d+)").cast(pl.Int64)
    part = pl.col("name").str.extract(r"^(I+)\.")
    return long.group_by("family", "name").agg(counts).sort("family", part, order, "name", nulls_last=True)


def item_names(asked: Sequence[object]) -> tuple[str, ...]:
    """Names of items as text: in YAML, 7 is a number and 5.02 another.

    Raises:
        ValueError: none, or one that is no item of any form.
    """
    names = tuple(dict.fromkeys(str(name).strip().upper() for name in asked))
    strange = [name for name in names if name not in known_names()]
    if strange or not names:
        raise ValueError(
            f"items must be names such as 1A (10-K), II.1A (10-Q) or 5.02 (8-K), got {', '.join(strange) or 'none'}"
        )
    return names


def select_items(filings: pl.DataFrame, names: Sequence[str]) -> tuple[pl.DataFrame, dict[str, int], dict[str, int]]:
    """`filings` with the text of some items in place of the whole.

    Args:
        filings: with `form`, `text`, `event_time`; with `annual_report`, items handed to Exhibit 13 are followed there.
        names: see `item_names`; each is looked for in the forms that have it.

    Returns:
        The filings that have one of the items or in which no item at all was recognised (these keep their whole text);
        counts by item and status, and of the filings taken whole; how many were dropped because they have none.

    Raises:
        ValueError: no filing has one of them.
    """
    counts: Counter[str] = Counter()
    texts: list[str] = []
    for items in cut_all(filings):
        status = items.status
        counts.update(f"item {name} {status[name]}" for name in names if name in status)
        counts[TAKEN_WHOLE] += not items.sections
        texts.append(items.select(names) if items.sections else items.text)
    kept = filings.with_columns(text=pl.Series(texts, dtype=pl.String)).filter(pl.col("text") != "")
    if "n_chars" in kept.columns:
        kept = kept.with_columns(n_chars=pl.col("text").str.len_chars().cast(pl.Int64))
    dropped = filings.height - kept.height
    if dropped and not kept.height:
        raise ValueError(f"none of {dropped} filings has one of the items {', '.join(names)}")
    return kept, dict(sorted((+counts).items())), {NONE_OF_THEM: dropped} if dropped else {}
