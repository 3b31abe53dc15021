"""The two clocks of a recorded feed, and the order of its files."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from quantattn.data.sources.crypto.feed import SECOND, Account, BadLine

_NEVER = -(2**63)


class Clocks:
    """Sets the times of one file's rows, which come piece by piece in the order of its lines.

    `available_time` is the receipt, since nothing was known before it; where it falls behind the line before by up to
    a second, a clock was set back, and it is raised to what that line has. A line that falls by more is bad.
    `event_time` is the venue's stamp, or the receipt where there is none or where the venue's clock runs ahead of it.
    `exchange_time` keeps the stamp as it came. Without a receipt both are the venue's stamp, raised in the same way.
    """

    def __init__(self, path: Path, account: Account) -> None:
        self._path, self._account = path, account
        self._latest, self._most = _NEVER, 0
        self._raised = self._ahead = self._without = 0

    def set(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with `event_time` and `available_time` instead of `received`.

        Raises:
            ValueError: a line falls by more than a second and is not to be left out.
        """
        exchange = pl.col("exchange_time")
        timed = rows.with_columns(_time=pl.coalesce("received", exchange))
        latest = pl.max_horizontal(pl.col("_time").cum_max(), pl.lit(self._latest, pl.Int64))
        timed = self._leave_out(timed.with_columns(available_time=latest))
        if not timed.height:
            return timed.with_columns(event_time=exchange).drop("received", "_time")
        made = timed.with_columns(event_time=pl.min_horizontal(exchange, "available_time"))
        ahead = exchange - pl.col("available_time")
        raised, early, most, without = made.select(
            (pl.col("_time") < pl.col("available_time")).sum(),
            (ahead > 0).sum().alias("early"),
            ahead.max().alias("most"),
            exchange.is_null().sum().alias("without"),
        ).row(0)
        self._latest = made["available_time"][-1]
        self._raised, self._ahead, self._without = self._raised + raised, self._ahead + early, self._without + without
        self._most = max(self._most, most or 0)
        return made.drop("received", "_time")

    def close(self) -> None:
        """Note what was counted."""
        name, notes = self._path.name, self._account.notes
        if self._ahead:
            notes.append(
                f"{name}: in {self._ahead:,} rows the venue's clock is ahead of receipt, by up to "
                f"{self._most / SECOND:.3f} s; their event_time is the receipt and exchange_time the venue's stamp"
            )
        if self._raised:
            notes.append(f"{name}: {self._raised:,} times fall by up to 1 s and were raised to the one before")
        if self._without:
            notes.append(f"{name}: {self._without:,} rows have no stamp of the venue; event_time is the receipt")

    def _leave_out(self, timed: pl.DataFrame) -> pl.DataFrame:
        falls = timed.select(pl.col("_time") < pl.col("available_time") - SECOND).to_series()
        if not falls.any():
            return timed
        for line, stamp in timed.filter(falls).select("line", "_time").iter_rows():
            error = BadLine("time falls", f"found {stamp} ns, more than a second before an earlier line")
            self._account.bad(self._path, line, error, str(stamp))
        if "losses" in timed.columns:
            timed = timed.with_columns(pl.col("losses") + falls.cast(pl.Int64).cum_sum())
        return timed.filter(~falls)


class Order:
    """Refuses files of one entity that overlap in time: they hold the same rows, or follow in no order."""

    def __init__(self) -> None:
        self._ends: dict[str, tuple[Path, int]] = {}

    def check(self, rows: pl.DataFrame, path: Path) -> pl.DataFrame:
        """The rows of a piece of a file, which follow those of the last call.

        Raises:
            ValueError: they begin before another file of the same entity ended.
        """
        time = pl.col("available_time")
        spans = rows.group_by("entity", maintain_order=True).agg(first=time.min(), last=time.max())
        for entity, first, last in spans.iter_rows():
            before, end = self._ends.get(entity, (path, first))
            if before != path and first < end:
                raise ValueError(
                    f"{path.name} and {before.name} hold {entity} at the same time: {first} ns lies before {end}; "
                    "expected files that follow each other in the order of their names"
                )
            self._ends[entity] = (path, last)
        return rows


class Carried:
    """Looks at the row before of the same entity, also where it stood in the piece before."""

    def __init__(self) -> None:
        self._last: pl.DataFrame | None = None

    def with_columns(self, rows: pl.DataFrame, **columns: pl.Expr) -> pl.DataFrame:
        """Add columns of expressions that look back by one row, `shift(1)` over the entity."""
        if not rows.height:
            return rows.with_columns(**columns)
        before = rows.clear() if self._last is None else self._last
        both = pl.concat([before, rows])
        self._last = both.group_by("entity", maintain_order=True).last().select(rows.columns)
        return both.with_columns(**columns).slice(before.height)
