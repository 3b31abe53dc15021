"""The table of embeddings that scoring writes, read back only when it is whole."""

from __future__ import annotations

from pathlib import Path

import polars as pl


def read_embedding_table(folder: str | Path) -> pl.DataFrame:
    """The Delta table that scoring with `output=embeddings` wrote, in the order of its rows (`key`).

    Raises:
        ValueError: no such table, or one of a job that was stopped: what it lacks would pass for filings that there
            are not.
    """
    if not (Path(folder) / "_delta_log").is_dir():
        raise ValueError(f"{folder} holds no table that score.py wrote with output=embeddings")
    table = pl.read_delta(str(folder))
    needed = ("entity", "as_of", "key", "rows", "accession", "item", "embedding", "model_sha")
    lacking = [name for name in needed if name not in table.columns]
    if lacking:
        raise ValueError(f"{folder} is no table of embeddings of filings: it lacks {', '.join(lacking)}")
    whole = max(table["rows"].to_list())
    if whole != table.height:
        raise ValueError(f"{folder} has {table.height} of {whole} rows: the same score.py command goes on with it")
    return table.sort("key")
