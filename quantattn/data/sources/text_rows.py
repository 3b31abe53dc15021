"""Rows of text files checked one by one: the first broken one refused, or all of them set aside and counted."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import polars as pl

from quantattn.data.sources.source import write_set_aside
from quantattn.data.sources.table_files import FAULT, LINE, SEPARATORS, TEXT, Part, TextForm, readable, scan_text

OnBad = Literal["refuse", "quarantine"]
LEFT_OUT = pl.Schema(
    {
        "file": pl.String(),
        "line": pl.Int64(),
        "reason": pl.String(),
        "text": pl.String(),
    }
)
"""Columns of what is set aside."""
_SHOWN = 160
_NONE = "\x1f"  # a separator that stands in no table, so that a line is one field
NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?$"


@dataclass(frozen=True)
class Checked:
    """Rows of a file.

    Attributes:
        frame: the sound ones in the order of the file: `line` (Int64, from 1) and the typed columns.
        rows: how many.
        facts: name → value of what was asked of them.
        bad: the others, columns of `LEFT_OUT`; `line` as an editor counts.
    """

    frame: pl.LazyFrame
    rows: int
    facts: Mapping[str, Any]
    bad: pl.DataFrame


def check_on_bad(on_bad: str, set_aside: str | Path | None) -> None:
    """Raise ValueError unless the two settings go together."""
    if on_bad not in ("refuse", "quarantine"):
        raise ValueError(f"on_bad must be 'refuse' or 'quarantine', got {on_bad!r}")
    if (on_bad == "quarantine") != (set_aside is not None):
        raise ValueError(
            "on_bad='quarantine' and set_aside=FILE go together: what is left out must be written somewhere"
        )


def price_steps(tick: str, exponent: int) -> int:
    """A price step, decimal text, in units of 10^exponent; ValueError when it is no positive multiple of one."""
    try:
        steps = Decimal(str(tick)).scaleb(-exponent)
    except ArithmeticError as error:
        raise ValueError(f"tick must be decimal text such as '0.01', got {tick!r}") from error
    if not steps.is_finite() or steps != steps.to_integral_value() or not 1 <= steps < 2**62:
        raise ValueError(f"tick must be a positive multiple of 10^{exponent}, got {tick!r}")
    return int(steps)


def first_lines(file: Path, n: int) -> list[str]:
    """Up to `n` lines of a text file, plain or packed; ValueError when it is empty or cannot be read."""
    part = scan_text(file, TextForm(separator=_NONE, quote=None, names=("line",)), ("line",))
    return readable(part.frame.head(n), file)[TEXT].to_list()


def split_header(file: Path, line: str, separator: str | None = None) -> tuple[str, list[str]]:
    """The separator under which a line has the most fields, or the one given, and its fields without outer spaces.

    Raises:
        ValueError: a line that is no row of a table.
    """
    try:
        cells = {
            each: [cell.strip() for cell in next(csv.reader([line], delimiter=each), [""])]
            for each in (SEPARATORS if separator is None else (separator,))
        }
    except csv.Error as error:
        raise ValueError(f"{file.name}: found {line[:_SHOWN]!r} where a header was expected ({error})") from error
    best = max(cells, key=lambda each: len(cells[each]))
    return best, cells[best]


def numbered(file: Path, separator: str, width: int, places: Iterable[int], headers: int = 1, titles: int = 0) -> Part:
    """Columns by their places, "c0" …, of the lines after titles and headers, whatever these call them."""
    names = tuple(f"c{n}" for n in range(width))
    part = scan_text(file, TextForm(separator, '"', names, titles), [names[n] for n in dict.fromkeys(places)])
    return replace(part, frame=part.frame.filter(pl.col(LINE) > titles + headers))


def check_rows(
    part: Part,
    file: Path,
    columns: Mapping[str, pl.Expr],
    rules: Mapping[str, tuple[pl.Expr, str]],
    on_bad: OnBad,
    facts: Mapping[str, pl.Expr] | None = None,
) -> Checked:
    """Type the rows of a file and look at every one of them once.

    Args:
        part: the rows as text.
        file: whose.
        columns: name → value, null where the text is none.
        rules: reason → (over those columns and the text, whether a row breaks the rule; what was expected).
        on_bad: "refuse" raises for the first row that is broken.
        facts: name → one value over the columns of all sound rows.

    Raises:
        ValueError: one sentence that names file, line, what was found and what was expected; bytes that are no text.
    """
    made = part.frame.with_columns(value.alias(name) for name, value in columns.items())
    broken = [pl.when(rule.fill_null(False)).then(pl.lit(reason)) for reason, (rule, _) in rules.items()]
    made = made.with_columns(pl.coalesce(pl.col(FAULT), *broken).alias(FAULT))
    sound = made.filter(pl.col(FAULT).is_null()).select(pl.col(LINE).alias("line"), *columns)
    left = (pl.lit(file.name).alias("file"), pl.col(LINE).alias("line"), pl.col(FAULT).alias("reason"))
    broken_rows = made.filter(pl.col(FAULT).is_not_null()).select(
        *left, pl.col(TEXT).str.slice(0, _SHOWN).alias("text")
    )
    looked = sound.select(pl.len().alias("sound"), **{f"fact {name}": value for name, value in (facts or {}).items()})
    try:
        bad, about = pl.collect_all([broken_rows, looked])  # together, so that the file is read once
    except (pl.exceptions.ComputeError, OSError):
        readable(broken_rows, file)  # says what the bytes do not allow
        raise
    found = {name.removeprefix("fact "): about[name][0] for name in about.columns}
    if bad.height and on_bad == "refuse":
        first = bad.row(0, named=True)
        expected = rules[first["reason"]][1] if first["reason"] in rules else "a row like the header"
        raise ValueError(
            f"{file.name}, line {first['line']}: {first['reason']} in {first['text']!r}, expected {expected} "
            f"({bad.height} such rows)"
        )
    return Checked(sound, int(found.pop("sound")), found, bad.cast(LEFT_OUT))


def leave_out(bad: Iterable[pl.DataFrame], set_aside: str | Path | None) -> dict[str, int]:
    """Write what was left out, and count it by reason."""
    table = pl.concat([pl.DataFrame(schema=LEFT_OUT), *bad])
    if set_aside is not None:
        write_set_aside(table, Path(set_aside))
    return dict(table.group_by("reason", maintain_order=True).len().iter_rows())


def nothing_left(path: Path, what: str, bad: Iterable[pl.DataFrame]) -> ValueError:
    """Of files none of whose rows can be used: why, of the first of them."""
    table = pl.concat([pl.DataFrame(schema=LEFT_OUT), *bad])
    if not table.height:
        return ValueError(f"{path} holds no {what} that can be used, and no row that is broken")
    first = table.row(0, named=True)
    return ValueError(
        f"{path} holds no {what} that can be used; {table.height:,} rows cannot, the first in {first['file']}, line "
        f"{first['line']}: {first['reason']} in {first['text']!r}"
    )


def rounded(text: pl.Expr, places: int) -> pl.Expr:
    """Int64 x · 10^places of decimal text, half to even where it has more digits; null for other text or 64 bits."""
    value = text.cast(pl.Decimal(38, places), strict=False).to_physical()
    return pl.when(text.str.contains(NUMBER)).then(value.cast(pl.Int64, strict=False))


def is_rounded(text: pl.Expr, places: int) -> pl.Expr:
    """Whether `rounded` loses a digit; null where the text is."""
    plain = ~text.str.contains("[eE]")
    beyond = text.str.contains(rf"\.\d{{{places}}}0*[1-9]")
    fine = text.cast(pl.Decimal(38, 18), strict=False).to_physical()
    # In scientific notation digits beyond the eighteenth place are not looked at: a number that small is rounded.
    vanished = (fine == 0) & text.str.contains("^[^eE]*[1-9]")
    return pl.when(plain).then(beyond).otherwise((fine % 10 ** (18 - places) != 0) | vanished)
