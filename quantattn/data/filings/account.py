"""What became of each filing of a run, as a table for people: which part it is in, or why it is in none."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from quantattn.data.filings.item_table import NONE_OF_THEM
from quantattn.data.filings.parsed import OK
from quantattn.data.prepared import PARTS
from quantattn.data.protocol import Split
from quantattn.data.sources.source import Source

_NAMED = ("file", "form", "entity", "accession")


def account(source: Source, decided: pl.DataFrame, split: Split, values: Mapping[str, str]) -> str:
    """One row a file of the source, as CSV; of a source that keeps no account of its files, one row a filing.

    Args:
        source: where the filings are from; its `documents`, if it has them, tell of the files that gave no filing.
        decided: every filing of the source, with `accession` and `reason`, null where it is a decision.
        split: of the filings without a reason, in the order of `decided`.
        values: column of `decided` → its name in the account, for what is known of a decision.

    Returns:
        Columns `file`, `form`, `entity`, `accession`, `public` (ISO, UTC), `ticker` where there are prices, `became`
        ("train", "valid", "test", or why it is none of them), `detail`, and those of `values`.
    """
    rows = decided.with_row_index("row").filter(pl.col("reason").is_null())["row"]
    became = {int(row): why for row, why in enumerate(decided["reason"]) if why is not None}
    for name, chosen in {**{part: getattr(split, part) for part in PARTS}, **split.left_out}.items():
        became |= {int(rows[int(row)]): name for row in chosen}
    told = decided.with_columns(became=pl.Series([became.get(row) for row in range(decided.height)], dtype=pl.String))
    known = [name for name in ("ticker", *values) if name in told.columns]
    told = told.select("accession", "available_time", "became", *known, *_only(told, ("file", "form", "entity")))
    documents = getattr(source, "documents", None)
    if documents is None:
        told = told.with_columns(detail=pl.lit(None, pl.String))
    else:
        lost = pl.when(pl.col("status") == OK).then(pl.lit(NONE_OF_THEM)).otherwise("status")
        aside = documents.with_columns(pl.col("accession").fill_null(pl.col("file")), why=lost)
        told = told.drop("form", "entity", "accession", "available_time", strict=False)
        told = aside.select(*_NAMED, "available_time", "why", "detail").join(told, "file", "left")
        told = told.with_columns(became=pl.coalesce("became", "why"))
    public = pl.from_epoch("available_time", "ns").dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    of_each = ("became", "detail", *known)
    return (
        told.with_columns(public=public)
        .select(*_only(told, _NAMED), "public", *of_each)
        .rename({name: title for name, title in values.items() if name in known})
        .write_csv()
    )


def _only(table: pl.DataFrame, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name in table.columns]
