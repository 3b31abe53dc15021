"""Feeds recorded message by message: lines of JSON, their fields checked, and the rows that become of them."""

from __future__ import annotations

import datetime as dt
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from quantattn.data.schema import CLEAR, EXECUTE, UPDATE, level_columns
from quantattn.data.sources.crypto.clocks import Clocks, Order
from quantattn.data.sources.crypto.feed import EARLIEST, LATEST, ROWS, SECOND, Account, BadLine
from quantattn.data.sources.decimals import NotExact, scaled, whole
from quantattn.data.sources.pieces import read_pieces

MILLI, MICRO = 10**6, 10**3
"""Nanoseconds in the units that venues count in."""
Change = tuple[int, int, int | None, int, str | None]
"""kind, side, price, size, trade id."""
Level = tuple[int, int]
"""Price and size."""
LISTED = "[]"
"""The key under which a message that is a list stands alone."""
_FLUSH = 1 << 17
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Arrival:
    """Where and when a message came: its line, and the receipt in ns UTC."""

    line: int
    received: int


class Rows:
    """Rows of a feed as they come. `broken` is set on the first row of every entity after messages were lost.

    Args:
        levels: of books that messages ship whole; 0 where books are rebuilt from changes.
    """

    def __init__(self, levels: int = 0) -> None:
        self.names: Final = [name for level in range(1, levels + 1) for name in level_columns(level)]
        self._schema = dict(ROWS) | dict.fromkeys(self.names, pl.Int64())
        self._rows: list[tuple[Any, ...]] = []
        self._frames: list[pl.DataFrame] = []
        self._losses = 0
        self._seen: dict[str, int] = {}

    def lost(self) -> None:
        """Messages of every entity may be lacking from here on."""
        self._losses += 1

    def changes(
        self,
        entity: str,
        arrival: Arrival,
        time: int | None,
        changes: Iterable[Change],
        *,
        broken: bool = False,
        book: Sequence[int | None] = (),
    ) -> None:
        """One message of one entity: its rows take effect together. `book` is the whole book that it ships, if any."""
        kept = list(changes)
        broken |= self._seen.get(entity, self._losses) < self._losses
        # A message without a row leaves the break to the next one.
        self._seen[entity] = self._losses if kept else -1 if broken else self._seen.get(entity, self._losses)
        levels = tuple(book) or (None,) * len(self.names)
        for n, (kind, side, price, size, number) in enumerate(kept):
            last, first = n == len(kept) - 1, n == 0
            own = (kind, side, price, size, last, broken and first, number)
            self._rows.append((entity, arrival.line, time, arrival.received, *own, *levels))
        if len(self._rows) >= _FLUSH:
            self._frames.append(self._made())

    def shown(
        self, entity: str, arrival: Arrival, time: int | None, bids: Sequence[Level], asks: Sequence[Level]
    ) -> None:
        """A book shipped whole, best levels first, as one row of kind UPDATE without a side.

        Raises:
            BadLine: the prices of a side do not follow one another.
        """
        for side, sign, what in ((bids, -1, "bids"), (asks, 1, "asks")):
            if any(sign * after <= sign * price for (price, _), (after, _) in pairwise(side)):
                raise BadLine("levels out of order", f"found {what} out of order, expected the best first")
        book: list[int | None] = []
        for level in range(len(self.names) // 4):
            for side in (asks, bids):
                book += side[level] if level < len(side) and side[level][1] else (None, 0)
        self.changes(entity, arrival, time, [(UPDATE, 0, None, 0, None)], book=book)

    def take(self) -> pl.DataFrame:
        """The rows since the last call, in their order."""
        frames, self._frames = [*self._frames, self._made()], []
        return pl.concat(frames)

    def _made(self) -> pl.DataFrame:
        made = pl.DataFrame(self._rows, schema=self._schema, orient="row")
        self._rows = []
        return made


class Stream(ABC):
    """Messages of one venue → rows; what it makes no row of, it counts in `passed`."""

    def __init__(self, account: Account, rows: Rows) -> None:
        self.account, self.rows = account, rows
        self.passed: Counter[str] = Counter()

    @abstractmethod
    def message(self, arrival: Arrival, message: dict[str, Any]) -> None:
        """Take one message; raises BadLine, and then leaves no row of it."""

    def lost(self) -> None:
        """Messages may be lacking from here on."""
        self.rows.lost()

    def begin(self) -> None:  # noqa: B027
        """A file begins, which may go on where another ended; most streams need not know."""

    def price(self, value: object) -> int:
        """Exact, in units of the feed."""
        return exact(value, "price", self.account.reading.price_exponent)

    def size(self, value: object) -> int:
        """Exact, in units of the feed."""
        return exact(value, "size", self.account.reading.size_exponent)

    def levels(self, message: dict[str, Any], name: str) -> list[Level]:
        """Pairs of price and size under a name."""
        found = []
        for pair in of_type(message, name, list):
            if not isinstance(pair, list) or len(pair) < 2:
                raise BadLine("not a level", f"found {show(pair)} among {name}, expected a price and a size")
            found.append((self.price(pair[0]), self.size(pair[1])))
        return found


Line = tuple[int, dict[str, Any]] | Literal["sent", "opened"]
"""Receipt in ns UTC and message; or what the recorder sent itself; or that the connection began."""


class Recording:
    """Files of lines, each a message, read in order by one stream.

    Args:
        account: takes what is left out.
        parted: bytes of a line → what it is; raises BadLine.
        choose: the first message → the stream that reads all; raises BadLine.
    """

    def __init__(
        self, account: Account, parted: Callable[[bytes], Line], choose: Callable[[dict[str, Any]], Stream]
    ) -> None:
        self.account, self._parted, self._choose = account, parted, choose
        self.stream: Stream | None = None
        self._last = 0

    def read_all(self, files: Iterable[Path]) -> Iterator[pl.DataFrame]:
        """The rows of files that follow each other, piece by piece."""
        order = Order()
        for file in files:
            for rows in self.read(file):
                yield order.check(rows, file)

    def read(self, path: Path) -> Iterator[pl.DataFrame]:
        """The rows of a file, piece by piece, their clocks set.

        Raises:
            ValueError: a line cannot be used and is not to be left out, or the file has no row.
        """
        self._last, rows, clocks = 0, 0, Clocks(path, self.account)
        if self.stream is not None:
            self.stream.begin()
        for piece in read_pieces(path):
            for line, text in piece.lines():
                if not text:
                    self.account.empty.append(line)
                    continue
                for empty in self.account.empty:
                    self._take(path, empty, b"")
                self.account.empty.clear()
                self._take(path, line, text)
            if self.stream is not None and (frame := self.stream.rows.take()).height:
                yield clocks.set(frame)
                rows += frame.height
        self.account.take(path)
        passed = Counter() if self.stream is None else +self.stream.passed
        counts = ", ".join(f"{what} {count:,}" for what, count in sorted(passed.items()))
        if self.stream is None or not rows:
            raise self.account.nothing(path, f"; messages that make none: {counts}" if counts else "")
        if counts:
            self.account.notes.append(f"{path.name}: messages that make no row: {counts}")
            self.stream.passed.clear()
        self.account.ended(path)
        clocks.close()

    def _take(self, path: Path, line: int, text: bytes) -> None:
        try:
            self._line(line, text)
        except BadLine as error:
            self.account.bad(path, line, error, text.decode("utf-8", "replace"))
            if self.stream is not None:
                self.stream.lost()

    def _line(self, line: int, text: bytes) -> None:
        found = self._parted(text)
        if found == "opened" and self.stream is not None:
            self.stream.lost()
        if isinstance(found, str):
            return
        received, message = found
        if received < self._last - SECOND:
            raise BadLine("receipt falls", f"found receipt {received} after {self._last}, expected times that rise")
        self._last = max(self._last, received)
        self.stream = self.stream or self._choose(message)
        self.stream.message(Arrival(line, received), message)


def updates(bids: Iterable[Level], asks: Iterable[Level]) -> list[Change]:
    """Levels that were set, bids first."""
    return [(UPDATE, side, *level, None) for side, levels in ((1, bids), (-1, asks)) for level in levels]


def snapshot(bids: Iterable[Level], asks: Iterable[Level]) -> list[Change]:
    """A book shipped whole, as changes."""
    standing = [[level for level in side if level[1]] for side in (bids, asks)]
    return [(CLEAR, 0, None, 0, None), *updates(*standing)]


def trade(buyer_came: bool, price: int, size: int, number: str | None) -> Change:
    """A trade; its side is that of the resting order."""
    return (EXECUTE, -1 if buyer_came else 1, price, size, number)


def decode(text: bytes, lists: bool = False) -> dict[str, Any]:
    """A JSON object or, with `lists`, a list under `LISTED`, with its numbers left as text; raises BadLine."""
    try:
        found = json.loads(text, parse_float=str, parse_int=str, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadLine("not JSON", f"found no JSON ({error}), expected one object") from error
    if lists and isinstance(found, list):
        return {LISTED: found}
    if not isinstance(found, dict):
        raise BadLine("not an object", f"found {show(found)}, expected a JSON object")
    return found


def of_type(message: dict[str, Any], name: str, kind: type) -> Any:
    """A field that must be there and of this type; numbers are text."""
    value = message.get(name)
    if type(value) is not kind:
        what = {str: "text or a number", list: "a list", dict: "an object", bool: "true or false"}[kind]
        found = show(value) if name in message else "nothing"
        raise BadLine("missing field", f"found {found} as {name!r}, expected {what}")
    return value


def objects(message: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A field that is a list of objects."""
    found: list[dict[str, Any]] = of_type(message, name, list)
    if not all(isinstance(each, dict) for each in found):
        raise BadLine("not a row", f"found {show(found)} as {name}, expected a list of rows")
    return found


def name_of(message: dict[str, Any], name: str) -> str:
    """A field that names an instrument."""
    value: str = of_type(message, name, str)
    if not 0 < len(value) <= 64 or not value.isprintable():
        raise BadLine("not a name", f"found {show(value)} as {name!r}, expected the name of an instrument")
    return value


def exact(value: object, name: str, exponent: int) -> int:
    """A decimal in units of 10^exponent."""
    if type(value) is not str:
        raise BadLine(f"not a {name}", f"found {show(value)} as {name}, expected a decimal number")
    try:
        return scaled(value, exponent)
    except NotExact as error:
        raise BadLine(f"not a {name}", f"{name}: {error}") from error


def number(message: dict[str, Any], name: str) -> int:
    """A whole number."""
    try:
        return whole(of_type(message, name, str))
    except NotExact as error:
        raise BadLine("not a number", f"{name}: {error}") from error


def time(message: dict[str, Any], name: str, unit: int) -> int:
    """A stamp of the venue in ns UTC, counted in `unit` ns since 1970."""
    return plausible(number(message, name) * unit, name)


def instant(message: dict[str, Any], name: str) -> int:
    """A stamp of the venue in ISO 8601, as in 2021-07-22T22:36:10.014Z, in ns UTC."""
    text = of_type(message, name, str)
    try:
        since = dt.datetime.fromisoformat(text) - _EPOCH
    except (ValueError, TypeError) as error:
        raise BadLine("impossible time", f"found {name} {show(text)}, expected ISO 8601 in UTC") from error
    return plausible((since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000, name)


def plausible(stamp: int, name: str) -> int:
    """The stamp, if it lies between 2009 and 2100."""
    if not EARLIEST <= stamp < LATEST:
        raise BadLine("impossible time", f"found {stamp} ns as {name!r}, expected a time between 2009 and 2100")
    return stamp


def show(value: object) -> str:
    """A value for a sentence, cut short."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
