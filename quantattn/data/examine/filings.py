"""What can be said of filings: forms, where their times are from, lengths, and an account of every file."""

from __future__ import annotations

from typing import Any

import polars as pl

from quantattn.data.sources.source import Source

ACCOUNT = (
    *("file", "form", "event_time", "time_source", "n_chars", "share"),
    *("items_found", "items_missing", "status", "detail"),
)
"""Of each file: its name, its form, when it was accepted (ns UTC) and where that stood, characters and share of the
visible ones that were kept, items that were found and that the form has besides, and why it is set aside."""


def examine_filings(source: Source, filings: pl.DataFrame) -> dict[str, Any]:
    """Facts about filings.

    Args:
        source: what they were read by; with `documents`, as `scan_filings` has them, it gives the account of files.
        filings: its table.

    Returns:
        `form` and `time_source`: value → filings; `characters`: of the shortest, the middle and the longest text;
        `files`: a mapping with the names of `ACCOUNT` for every file.
    """
    found: dict[str, Any] = {
        name: dict(filings[name].value_counts(sort=True).iter_rows())
        for name in ("form", "time_source")
        if name in filings.columns
    }
    lengths = sorted(filings["text"].str.len_chars().to_list())
    if lengths:
        found["characters"] = (lengths[0], lengths[len(lengths) // 2], lengths[-1])
    documents: pl.DataFrame | None = getattr(source, "documents", None)
    if documents is not None:
        found["files"] = documents.select(ACCOUNT).to_dicts()
    return found
