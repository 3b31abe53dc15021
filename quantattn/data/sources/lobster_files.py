"""LOBSTER's files before their rows: which message file belongs to which order book, whose day, line by line."""

from __future__ import annotations

import datetime as dt
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO

from quantattn.data.schema import level_columns

BROKEN_STREAM = (OSError, EOFError, zlib.error)
"""What reading a file raises when its gzip stream is cut off or damaged."""

MESSAGE_COLUMNS = ("time", "kind", "order_id", "size", "price", "side")

_SUFFIX = re.compile(r"\.csv(\.gz)?$", re.IGNORECASE)
_ROLE = re.compile(r"(?P<message>messages?)|(?P<book>order[ _-]?books?)", re.IGNORECASE)
_LOBSTER_NAME = re.compile(r"^(?P<entity>.+)_(?P<date>\d{4}-\d{2}-\d{2})_(?P<start>\d+)_(?P<end>\d+)_", re.IGNORECASE)


class Unusable(ValueError):
    """A file or a pair that cannot be used as a whole; caught where bad input is set aside.

    Attributes:
        reason: a few words under which the rows are counted.
        files: the files concerned.
    """

    def __init__(self, reason: str, sentence: str, *files: Path) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.files = files


@dataclass(frozen=True)
class Pair:
    """The two files of one entity's day.

    Attributes:
        message: the message file.
        book: the order-book file, row i of which is the book after message i.
        entity: whose day.
        date: which day, at the exchange.
        end: millisecond after midnight up to which the name promises data, or None when it does not say.
    """

    message: Path
    book: Path
    entity: str
    date: dt.date
    end: int | None = None


@dataclass(frozen=True)
class File:
    """A file with the columns that it has.

    Attributes:
        path: where it is.
        columns: their names; those of a message file are `MESSAGE_COLUMNS`.
        header: lines before the first row.
    """

    path: Path
    columns: tuple[str, ...]
    header: int


def find_pairs(path: Path, entity: str | None, date: dt.date | None) -> tuple[list[Pair], list[Unusable], list[str]]:
    """Pairs under a folder, or the pair that a single file belongs to.

    A file's role is read from the words "message" and "orderbook" in its name; two files are partners when the
    rest of their names is equal and they lie in the same folder. Returns the pairs in order of (entity, date),
    what cannot be used, and the names of files that were passed over because they are no LOBSTER files.

    Raises:
        ValueError: the path does not exist, or holds neither kind of file.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist; expected a folder of LOBSTER files or one message file")
    by_role, passed_over = _sort_out(path)
    if not by_role["message"] and not by_role["book"]:
        raise ValueError(f"{path} holds no .csv or .csv.gz file with 'message' or 'orderbook' in its name")
    pairs: list[Pair] = []
    unusable: list[Unusable] = []
    for key in sorted(by_role["message"].keys() | by_role["book"].keys()):
        message, book = by_role["message"].get(key), by_role["book"].get(key)
        if message is None or book is None:
            unusable.append(_without_partner(message, book))
            continue
        try:
            pairs.append(_identify(message, book, entity, date))
        except Unusable as error:
            unusable.append(error)
    pairs.sort(key=lambda pair: (pair.entity, pair.date))
    for first, second in pairwise(pairs):
        if (first.entity, first.date) == (second.entity, second.date):
            raise ValueError(
                f"{first.message.name} and {second.message.name} both hold {first.entity} on {first.date}; "
                f"expected one pair of files an entity and day"
            )
    return pairs, unusable, passed_over


def count_lines(path: Path) -> int:
    """Lines of a file, of which the last may lack its end; of a broken gzip stream those before the break."""
    return sum(1 for _ in read_lines(path))


def read_lines(path: Path, strict: bool = False) -> Iterator[str]:
    """Lines of a plain or gzipped file; a broken gzip stream ends them, or raises when `strict`."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        lines = iter(file)
        while True:
            try:
                line = next(lines)
            except StopIteration:
                return
            except BROKEN_STREAM:
                if strict:
                    raise
                return
            yield line.decode("utf-8-sig", "strict" if strict else "replace")


def open_file(path: Path, columns: tuple[str, ...] | None) -> File:
    """Look at the first line: is it a header, which no number stands in, and how many columns are there."""
    try:
        first = next(read_lines(path, strict=True), "")
    except (*BROKEN_STREAM, UnicodeDecodeError) as error:
        raise broken_file((path,), error) from error
    if not first.strip():
        raise Unusable(
            "empty file", f"{path.name} is empty or begins with an empty line; expected rows of numbers", path
        )
    fields = first.strip().split(",")
    header = int(not any(field.strip().lstrip("+-")[:1].isdigit() for field in fields))
    if columns is None:
        if len(fields) % 4:
            raise Unusable(
                "wrong number of columns",
                f"{path.name}, line 1 has {len(fields)} columns; expected 4 a level: ask and bid, price and size",
                path,
            )
        columns = tuple(name for level in range(1, len(fields) // 4 + 1) for name in level_columns(level))
    return File(path, columns, header)


def broken_file(files: tuple[Path, ...], error: Exception) -> Unusable:
    """Find which of the files cannot be read to its end, and where."""
    for path in files:
        line = 1
        try:
            for _ in read_lines(path, strict=True):
                line += 1
        except UnicodeDecodeError as found:
            byte = found.object[found.start]
            sentence = f"{path.name}, line {line}: found byte 0x{byte:02x}, expected digits and commas"
            return Unusable("unreadable", sentence, path)
        except BROKEN_STREAM as found:
            return Unusable("unreadable", f"{path.name} breaks off in line {line}: {found}", path)
    names = " or ".join(path.name for path in files)
    return Unusable("unreadable", f"{names} cannot be read: {' '.join(str(error).split())}", *files)


def _sort_out(path: Path) -> tuple[dict[str, dict[tuple[str, str], Path]], list[str]]:
    by_role: dict[str, dict[tuple[str, str], Path]] = {"message": {}, "book": {}}
    passed_over: list[str] = []
    single = None if path.is_dir() else _role(path)
    if not path.is_dir() and single is None:
        raise ValueError(
            f"{path.name} is no LOBSTER file: expected .csv or .csv.gz with 'message' or 'orderbook' in it"
        )
    for file in _files(path if path.is_dir() else path.parent, deep=path.is_dir()):
        found = _role(file)
        if found is None:
            passed_over.append(file.name)
            continue
        role, key = found
        if single is not None and (key != single[1] or (role == single[0] and file != path)):
            continue
        other = by_role[role].get(key)
        if other is not None:
            raise ValueError(f"{other.name} and {file.name} in {file.parent} are the same file twice; keep one")
        by_role[role][key] = file
    return by_role, passed_over if single is None else []


def _files(folder: Path, deep: bool) -> Iterator[Path]:
    for file in sorted(folder.rglob("*") if deep else folder.glob("*")):
        if file.is_file() and not file.name.startswith("."):
            yield file


def _role(file: Path) -> tuple[str, tuple[str, str]] | None:
    """("message" or "book", what partners have in common), or None for a file of another kind."""
    stem, is_csv = _SUFFIX.subn("", file.name)
    words = list(_ROLE.finditer(stem))
    if not is_csv or not words:
        return None
    last = words[-1]
    rest = stem[: last.start()] + "*" + stem[last.end() :]
    return ("message" if last.group("message") else "book"), (str(file.parent), rest.lower())


def _without_partner(message: Path | None, book: Path | None) -> Unusable:
    if message is not None:
        here, what, lacking, word = message, "a message file", "order-book", "orderbook"
    elif book is not None:
        here, what, lacking, word = book, "an order-book file", "message", "message"
    else:
        raise AssertionError("a key without files")
    return Unusable(
        "no partner file",
        f"{here.name} is {what} without its {lacking} file: "
        f"expected a file of the same name with '{word}' in {here.parent}",
        here,
    )


def _identify(message: Path, book: Path, entity: str | None, date: dt.date | None) -> Pair:
    named = _LOBSTER_NAME.match(message.name)
    if named is None:
        if entity is not None and date is not None:
            return Pair(message, book, entity, date)
        lacking = " and ".join(name for name, value in (("entity", entity), ("date", date)) if value is None)
        raise Unusable(
            "no entity or date",
            f"{message.name} does not begin with TICKER_YYYY-MM-DD_START_END_, so {lacking} must be given as arguments",
            message,
            book,
        )
    try:
        named_date = dt.date.fromisoformat(named["date"])
    except ValueError as error:
        raise Unusable("no entity or date", f"{message.name}: {error}: {named['date']}", message, book) from error
    if date is not None and date != named_date:
        raise Unusable("dates disagree", f"{message.name} names {named_date}, but date={date} was given", message, book)
    return Pair(message, book, entity or named["entity"], named_date, int(named["end"]))
