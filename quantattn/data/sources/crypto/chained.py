"""Books that a venue ships whole and then by what changes, each message naming the one before it."""

from __future__ import annotations

from quantattn.data.sources.crypto.feed import Account
from quantattn.data.sources.crypto.messages import Arrival, Level, Rows, Stream, snapshot, updates


class Chained(Stream):
    """A stream that knows the last message of every book."""

    def __init__(self, account: Account, rows: Rows) -> None:
        super().__init__(account, rows)
        self._last: dict[str, int] = {}

    def book(
        self,
        arrival: Arrival,
        symbol: str,
        stamp: int,
        sides: tuple[list[Level], list[Level]],
        *,
        whole: bool,
        number: int | None,
        before: int | None,
    ) -> None:
        """Rows of one message of a book, behind a gap where another message should have come before.

        Args:
            arrival: of the message.
            symbol: whose book it is.
            stamp: of the venue, ns UTC.
            sides: levels of bids and of asks.
            whole: whether these are all levels, which need nothing before them.
            number: of the message; None: it has none.
            before: number of the message that it follows; None: it does not say.
        """
        known = self._last.get(symbol)
        gap = not whole and None not in (known, before) and known != before
        if number is not None:
            self._last[symbol] = number
        made = snapshot(*sides) if whole else updates(*sides)
        self.passed["changes without a level"] += not made
        self.rows.changes(symbol, arrival, stamp, made, broken=gap)
