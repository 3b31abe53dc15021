"""A book of Kraken as its subscriber has to keep it, and the checksum that the venue sends with it."""

from __future__ import annotations

import zlib
from bisect import bisect_left

from quantattn.data.sources.crypto.messages import Level

Told = tuple[int, int, str, str]
"""Price and size, in whole units and as the venue wrote them."""
_SUMMED = 10


class _Side:
    """Levels of one side, the best first; `sign` is −1 for bids, whose best price is the highest."""

    def __init__(self, sign: int, depth: int) -> None:
        self._sign, self._depth = sign, depth
        self._places: list[int] = []
        self._levels: dict[int, Told] = {}

    def change(self, told: list[Told]) -> list[Level]:
        """Set levels, one after the other; returns those that fell out of the depth, with the size 0."""
        for level in told:
            price, size = level[:2]
            place = bisect_left(self._places, self._sign * price)
            stands = price in self._levels
            if size:
                self._levels[price] = level
                if not stands:
                    self._places.insert(place, self._sign * price)
            elif stands:
                del self._levels[price], self._places[place]
        fell = [self._sign * place for place in self._places[self._depth :]]
        del self._places[self._depth :]
        for price in fell:
            del self._levels[price]
        return [(price, 0) for price in fell]

    def best(self) -> str:
        """The digits of the best levels, without points and leading zeros."""
        levels = (self._levels[self._sign * place] for place in self._places[:_SUMMED])
        return "".join(text.replace(".", "").lstrip("0") for _, _, *texts in levels for text in texts)


class KrakenBook:
    """A book of a subscription of `depth` levels.

    The venue does not say what becomes of a level that its depth no longer shows, so that it has to be forgotten.
    """

    def __init__(self, depth: int) -> None:
        self._bids, self._asks = _Side(-1, depth), _Side(1, depth)

    def change(self, bids: list[Told], asks: list[Told]) -> tuple[list[Level], list[Level]]:
        """Set levels of both sides; returns those that fell out of view, bids and asks."""
        return self._bids.change(bids), self._asks.change(asks)

    def checksum(self) -> int:
        """CRC-32 of the ten best asks and then bids, price and size of each."""
        return zlib.crc32((self._asks.best() + self._bids.best()).encode())
