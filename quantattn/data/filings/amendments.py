"""Which filing an amendment amends: headers do not say, so it is the original of the same period, if that is there."""

from __future__ import annotations

import polars as pl


def with_originals(filings: pl.DataFrame) -> pl.DataFrame:
    """`filings` with `amends`: of an amendment, the accession number of its original; null of all others.

    The original is the last filing of the same filer, family and period of report that is no amendment and was accepted
    strictly before. An amendment whose period is not known, or whose original is not among the filings, has none: the
    period of 10-K/A tells one year's report from another's, and nothing is guessed without it.

    Args:
        filings: with `entity`, `family`, `period`, `event_time`, `amendment`, `accession`; rows and their order stay.
    """
    seen: dict[tuple[object, ...], list[tuple[int, str]]] = {}
    names = ("entity", "family", "period", "event_time", "amendment", "accession")
    rows = list(filings.select(names).iter_rows())
    for *key, time, amendment, accession in rows:
        if not amendment:
            seen.setdefault(tuple(key), []).append((time, accession))
    found = [
        max((each for each in seen.get(tuple(key), ()) if each[0] < time), default=(0, None))[1]
        if amendment and key[2] is not None
        else None
        for *key, time, amendment, _ in rows
    ]
    return filings.with_columns(amends=pl.Series(found, dtype=pl.String))
