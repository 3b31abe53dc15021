"""One code for all that an event is, and one for runs of events that often follow one another.

A joint vocabulary numbers the tuples of codes that training has seen: (new order, buy, of this size) is one type. Byte
pair encoding (Sennrich, Haddow, Birch 2016, arXiv 1508.07909) then joins the two neighbouring codes that stand together
most often, again and again, so that one token says several events.

Which events one token says depends on those that follow, up to the next cut: after "new, cancel" nobody knows whether
the token ends there or goes on. So a token is known when the **stretch** in which it lies is over, and everything that
is decided must be decided where a stretch ends. Cutting after every decision makes it so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

MISSING, MASKED = 0, 1
"""Codes of every field: a value that is missing or was never seen in training, and one that an objective has hidden."""

FIRST_CODE = 2
EVENT = "event_code"
"""The column of these codes in a token table."""
MOST_CODES = 2**16
MOST_ROWS = 2_000_000
_DENSE = 2**22  # pairs of codes up to which a count each takes less than to sort those that there are

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Merges:
    """A joint vocabulary of events and the pairs that are joined; made by `fit`.

    Attributes:
        fields: whose codes are a type.
        types: the tuples of codes seen in training, sorted; tuple i has code i + 2.
        pairs: codes of neighbours in the order in which they are joined; pair j has code len(types) + 2 + j.
    """

    fields: tuple[str, ...]
    types: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]

    @staticmethod
    def fit(columns: Mapping[str, Codes], seen: Bools, stop: Bools, n_pairs: int, max_rows: int = MOST_ROWS) -> Merges:
        """Number the types of the rows that may be seen, and join the most frequent neighbours among them.

        A pair is joined that stands together at least twice; of equally frequent ones the one with the least codes.

        Args:
            columns: field → (R,) codes of every event.
            seen: (R,) rows of training; only events that are neighbours in the table count as such.
            stop: (R,) where a stretch ends: no pair reaches beyond.
            n_pairs: how many pairs, fewer where no further stands together twice.
            max_rows: with more rows than this, pairs are counted in the last of them.

        Raises:
            ValueError: no row is seen, or more types and pairs than there are codes.
        """
        rows = np.flatnonzero(seen)
        if not len(rows):
            raise ValueError("no event may be seen: nothing to fit a joint vocabulary on")
        seen_codes = pl.DataFrame({name: np.asarray(column)[rows] for name, column in columns.items()})
        types = seen_codes.unique().sort(seen_codes.columns).rows()
        if FIRST_CODE + len(types) + n_pairs > MOST_CODES:
            raise ValueError(
                f"a joint vocabulary has {MOST_CODES - FIRST_CODE} codes, but training has {len(types)} types of "
                f"{', '.join(columns)} and {n_pairs} pairs are asked for: join fewer fields, or give them fewer bins"
            )
        plain = Merges(tuple(columns), tuple(types), ())
        # A row whose next one may not be seen has no neighbour there.
        closed = stop | ~np.append(seen[1:], False)
        rows = rows[-max_rows:]
        codes, closed = plain.of_rows({name: np.asarray(each)[rows] for name, each in columns.items()}), closed[rows]
        pairs: list[tuple[int, int]] = []
        for code in range(plain.n_codes, plain.n_codes + n_pairs):
            pair = _most_frequent(codes, closed, code)
            if pair is None:
                break
            pairs.append(pair)
            codes, kept = _join(codes, closed, pair, code)
            closed = closed[kept]
        return Merges(plain.fields, plain.types, tuple(pairs))

    @property
    def n_codes(self) -> int:
        """Number of codes, `MISSING` and that of a hidden token included."""
        return FIRST_CODE + len(self.types) + len(self.pairs)

    def of_rows(self, columns: Mapping[str, Codes]) -> Ints:
        """(R,) code of each event's type, `MISSING` where training has not seen it."""
        wanted = np.stack([np.asarray(columns[name]).astype(np.int64) for name in self.fields], 1)
        if not len(wanted):
            return np.zeros(0, np.int64)
        known = np.asarray(self.types, np.int64)
        # Each field's codes are numbered by those that types have, so that a type is one integer however many fields.
        number, sought = np.zeros(len(known), np.int64), np.zeros(len(wanted), np.int64)
        there = np.ones(len(wanted), np.bool_)
        for place in range(len(self.fields)):
            found = np.unique(known[:, place])
            at = np.minimum(np.searchsorted(found, wanted[:, place]), len(found) - 1)
            there &= found[at] == wanted[:, place]
            prefixes, number = np.unique(
                number * len(found) + np.searchsorted(found, known[:, place]), return_inverse=True
            )
            longer = sought * len(found) + at
            sought = np.minimum(np.searchsorted(prefixes, longer), len(prefixes) - 1)
            there &= prefixes[sought] == longer
        return np.where(there, sought + FIRST_CODE, MISSING)

    def to_rows(self, codes: Ints) -> dict[str, Ints]:
        """The codes of every field again; `MISSING` in all of them for a type that training has not seen."""
        known = np.concatenate([np.full((FIRST_CODE, len(self.fields)), MISSING), np.asarray(self.types, np.int64)])
        return {name: known[codes, place] for place, name in enumerate(self.fields)}

    def encode(self, codes: Ints, stop: Bools) -> tuple[Ints, Ints]:
        """Join the codes of events, in the order in which the pairs were learned.

        Args:
            codes: (R,) of `of_rows`.
            stop: (R,) where a stretch ends.

        Returns:
            (T,) codes of tokens and (T,) the last row of each; the first row is the one after that of the token before.
            What stands in a stretch depends on that stretch alone.
        """
        closed, last = np.asarray(stop, np.bool_), np.arange(len(codes), dtype=np.int64)
        for code, pair in enumerate(self.pairs, FIRST_CODE + len(self.types)):
            codes, kept = _join(codes, closed, pair, code)
            closed, last = closed[kept], last[kept]
        return codes, last

    def decode(self, tokens: Ints) -> Ints:
        """The codes of the events again: what `encode` was given, whatever the stretches."""
        first, parts = self._parts
        lengths = np.diff(first)[tokens]
        ends = np.cumsum(lengths)
        place = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first[tokens] - (ends - lengths), lengths)
        return np.asarray(parts[place], np.int64)

    @cached_property
    def lengths(self) -> Ints:
        """(V,) events that each code says."""
        return np.diff(self._parts[0])

    @cached_property
    def _parts(self) -> tuple[Ints, Ints]:
        """Code v says the events whose types are parts[first[v]:first[v + 1]]."""
        said = [[code] for code in range(FIRST_CODE + len(self.types))]
        for left, right in self.pairs:
            said.append(said[left] + said[right])
        return np.cumsum([0, *map(len, said)]), np.asarray([code for each in said for code in each], np.int64)

    def plain(self) -> dict[str, Any]:
        """What JSON holds; `of_plain` gives back an equal one."""
        return {"fields": list(self.fields), "types": list(map(list, self.types)), "pairs": list(map(list, self.pairs))}

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Merges:
        """What `plain` gave.

        Raises:
            ValueError: types that are not sorted or of another width than the fields, or a pair of codes that were not
                there before it.
        """
        made = Merges(
            tuple(plain["fields"]),
            tuple(tuple(map(int, each)) for each in plain["types"]),
            tuple((int(left), int(right)) for left, right in plain["pairs"]),
        )
        if any(len(each) != len(made.fields) for each in made.types) or any(a >= b for a, b in pairwise(made.types)):
            raise ValueError(f"types of {', '.join(made.fields)} must be sorted tuples of {len(made.fields)} codes")
        for place, pair in enumerate(made.pairs):
            if not all(FIRST_CODE <= code < FIRST_CODE + len(made.types) + place for code in pair):
                raise ValueError(f"pair {place} joins {pair}, but codes before it are {FIRST_CODE} and more")
        return made


def require_merges(joint: Sequence[str] | None, merges: int, fields: Sequence[str]) -> None:
    """Refuse settings that no events can be joined with.

    Args:
        joint: fields of a joint vocabulary, None for none.
        merges: pairs to join.
        fields: those that tokens can have.

    Raises:
        ValueError: naming the setting.
    """
    if isinstance(merges, bool) or not isinstance(merges, int) or merges < 0:
        raise ValueError(f"merges must be a whole number of pairs from 0, got {merges!r}")
    if joint is None:
        if merges:
            raise ValueError(f"merges = {merges} joins types of events: say with joint which fields a type has")
        return
    if isinstance(joint, str) or not joint or len(set(joint)) != len(joint) or not set(joint) <= set(fields):
        raise ValueError(f"joint must be some of the token fields {', '.join(fields)}, each once, got {joint!r}")


def _pairs_of(codes: Ints, closed: Bools) -> Bools:
    """(R − 1,) where a code and the next one may be joined."""
    allowed: Bools = ~closed[:-1] & (codes[:-1] != MISSING) & (codes[1:] != MISSING)
    return allowed


def _most_frequent(codes: Ints, closed: Bools, n_codes: int) -> tuple[int, int] | None:
    allowed = _pairs_of(codes, closed)
    numbers = (codes[:-1] * n_codes + codes[1:])[allowed]
    if not len(numbers):
        return None
    if n_codes**2 <= _DENSE:
        counts = np.bincount(numbers)
        best = int(counts.argmax())  # the first of the greatest, which has the least codes
        most = int(counts[best])
    else:
        found, counts = np.unique(numbers, return_counts=True)
        place = int(counts.argmax())
        best, most = int(found[place]), int(counts[place])
    return divmod(best, n_codes) if most > 1 else None


def _join(codes: Ints, closed: Bools, pair: tuple[int, int], code: int) -> tuple[Ints, Bools]:
    """Write `code` for every such pair, from the left; and which of the given places remain, the last of each token."""
    left, right = pair
    first = np.flatnonzero((codes[:-1] == left) & (codes[1:] == right) & ~closed[:-1])
    if left == right and len(first):
        # Of a, a, a the first two are joined: every other place of those that follow one another.
        begins = np.diff(first, prepend=first[0] - 2) > 1
        rank = np.arange(len(first))
        first = first[(rank - np.maximum.accumulate(np.where(begins, rank, 0))) % 2 == 0]
    kept = np.ones(len(codes), np.bool_)
    kept[first] = False
    joined = codes.copy()
    joined[first + 1] = code
    return joined[kept], kept
