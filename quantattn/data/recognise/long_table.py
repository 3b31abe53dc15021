"""How any other table of events is told: which column is the entity, which the time, and what the others hold.

All of it is a guess from the first rows, says so, and gives way to what the user sets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from quantattn.data.recognise.formats import Claim
from quantattn.data.recognise.look import Look
from quantattn.data.recognise.time_forms import time_form

_TIMELIKE = re.compile(r"date|time|day|stamp|issued|when|_at$|^dt$|^ts$", re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?\d{1,18}")
_DECIMAL = re.compile(r"[+-]?(\d+(?:\.(?P<places>\d{0,18}))?|\.(?P<only>\d{1,18}))")
_CODE = re.compile(r"group|type|code|kind|class|category|status|symbol|mcc|channel|operation|side", re.IGNORECASE)
_ENTITIES = (
    "client",
    "customer",
    "user",
    "account",
    "person",
    "patient",
    "subject",
    "member",
    "card",
    "disp",
    "entity",
)
_IS_ID = re.compile(r"(^|_|\b)id$|Id$|ID$|(?i:(^|_|\b)(num|number|no)\.?$)")
_KEY = re.compile(r"[A-Za-z0-9_./+-]+( [A-Za-z0-9_./+-]+)*")
_WORDS = ("null", "true", "false", "nan", "inf")
_FEW = 12
"""Distinct whole numbers up to which a column of many rows holds codes."""


def table(look: Look) -> Claim | None:
    """Rows under a header of names, or Parquet."""
    if look.columns is not None:
        if not look.columns:
            return None
        return _claim(list(look.columns), parquet_values(look), look.columns, "it is Parquet with columns")
    if look.text is None or look.text.lstrip().startswith(("{", "[")) or not _is_table(look):
        return None
    values = {name: [row[n] for row in look.rows] for n, name in enumerate(look.header)}
    return _claim(list(look.header), values, {}, "its header names columns")


def _is_table(look: Look) -> bool:
    header = look.header
    named = len(header) > 1 and len(set(header)) == len(header) and not any(_DECIMAL.fullmatch(name) for name in header)
    return named and bool(look.rows) and len(look.rows) > 0.9 * (len(look.lines) - 1)


def parquet_values(look: Look) -> dict[str, list[str]]:
    """The first rows of a Parquet file as text, column by column; those that hold no single values are left out."""
    flat = [name for name, kind in (look.columns or {}).items() if not kind.is_nested() and kind != pl.Binary]
    try:
        head = pl.scan_parquet(look.path, glob=False).select(pl.col(flat).cast(pl.String)).head(200).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        return {}
    return {name: column.fill_null("").to_list() for name, column in head.to_dict(as_series=True).items()}


def _claim(
    names: Sequence[str], values: Mapping[str, Sequence[str]], types: Mapping[str, pl.DataType], what: str
) -> Claim:
    shown = ", ".join(names)
    why = f"{what}: {shown if len(shown) <= 80 else shown[:80] + '…'}"
    times = {n: form for n in names if (form := _time_of(n, values.get(n, ()), types.get(n))) is not None}
    if not times:
        return Claim(
            why, unread=f"it is a table without a column of times ({shown[:120]}), so that it holds no events by itself"
        )
    time = next((name for name in times if _TIMELIKE.search(name)), next(iter(times)))
    entity = _entity([name for name in names if name not in times], values)
    settings = {"time": quoted(time)}
    if times[time] not in ("iso", ""):
        settings["time_format"] = quoted(times[time])
    if entity is not None:
        settings["id"] = quoted(entity)
    kinds = {
        name: _kind(name, found)
        for name, found in values.items()
        if name not in (time, entity) and name not in times and not _names_rows(name, found)
    }
    # The grammar of overrides has no quotation marks around keys.
    unsaid = [name for name in kinds if not _KEY.fullmatch(name)]
    settings["columns"] = "{" + ",".join(f"{name}:{kind}" for name, kind in kinds.items() if name not in unsaid) + "}"
    if unsaid:
        why += f"; the command leaves out {', '.join(map(repr, unsaid))}, which it cannot name"
    return Claim(why, settings)


def _time_of(name: str, found: Sequence[str], kind: pl.DataType | None) -> str | None:
    """The form in which a column writes times, "" for a column of times, None for one of something else."""
    if isinstance(kind, (pl.Date, pl.Datetime)):
        return ""
    if forms := time_form(found):
        return forms[0]
    some = [each for each in found if each]
    days = _TIMELIKE.search(name) is not None and some and all(_WHOLE.fullmatch(each) for each in some)
    return "day" if days and max(map(int, some)) < 100_000 else None


def _entity(names: Sequence[str], values: Mapping[str, Sequence[str]]) -> str | None:
    """The column of the entity: by its name, else the first id that several rows share; an id of each row is none."""
    ids = [name for name in names if _IS_ID.search(name) or name.lower() in _ENTITIES]
    for word in _ENTITIES:
        for name in ids:
            if word in name.lower():
                return name
    shared = [name for name in ids if len(set(values.get(name, ()))) < len(values.get(name, ()))]
    named = [name for name in names if name.lower() in ("symbol", "ticker", "pair", "instrument", "name")]
    return next(iter([*shared, *named]), None)


def _names_rows(name: str, found: Sequence[str]) -> bool:
    """Whether a column only numbers the rows, as an id of each does."""
    return name == "" or (_IS_ID.search(name) is not None and len(found) > 1 and len(set(found)) == len(found))


def _kind(name: str, found: Sequence[str]) -> str:
    some = [each for each in found if each]
    if not some or _IS_ID.search(name) or _CODE.search(name):
        return "category"
    matches = [_DECIMAL.fullmatch(each) for each in some]
    if not all(matches):
        return "category" if not all(_floats(each) for each in some) else "float"
    places = max(len((match and (match["places"] or match["only"])) or "") for match in matches)
    if places:
        return f"decimal{places}"
    return "category" if len(set(some)) <= _FEW < len(some) / 4 else "integer"


def _floats(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def quoted(text: str) -> str:
    """A value as the grammar of overrides wants it, which doubles backslashes before a quotation mark alone."""
    if re.fullmatch(r"(?!\.\d)[A-Za-z_/.][A-Za-z0-9_/.-]*", text) and text.lower() not in _WORDS:
        return text
    inside = re.sub(r"(\\*)('|\Z)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text)
    return f"'{inside}'"
