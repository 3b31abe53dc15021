"""What is to be scored, cut into shards, under a name that changes when anything about it does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quantattn.data.digest import columns_sha256
from quantattn.data.filed import Texts
from quantattn.data.pack import SequenceSet
from quantattn.score.installed import installed

FORMAT = 4
"""Of what a plan describes."""


@dataclass(frozen=True)
class Work:
    """Q decisions to score, R rows of the table that they become; R is Q unless `row` or `copies` say otherwise.

    Attributes:
        sequences: every decision in exactly one of them.
        as_of: (R,) int64 ns UTC.
        entity: (R,) names.
        hashes: what → hash of the data.
        settings: plain values that decided how sequences were made.
        row: (Q,) int64, from 0 to R − 1 in steps of at most one: the row that each decision is a piece of, whose score
            is the mean over its pieces, weighed by the tokens that they see; None: every decision is a row.
        described: name → (R,) further columns: a tuple of texts, None where there is none, or an int64 array.
        notes: sentences about what is not in it.
        copies: (Q,) how many rows, one after the other, each decision becomes; not beside `row`. None: one.
        events: name → (T,) integers, what is told of the events of the tokens in `sequences`, such as `event_time`.
    """

    sequences: SequenceSet
    as_of: Any
    entity: Sequence[str | None]
    hashes: Mapping[str, str]
    settings: Mapping[str, Any]
    row: Any | None = None
    described: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    copies: Any | None = None
    events: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        q = r = len(self.sequences.decisions)
        if self.row is not None:
            rows = torch.as_tensor(self.row)
            if len(rows) != q or (q and (int(rows[0]) != 0 or bool(((rows.diff() != 0) & (rows.diff() != 1)).any()))):
                got = rows.tolist()[:8]
                raise ValueError(f"rows of {q} decisions must go up from 0 in steps of at most one, got {got} …")
            r = int(rows[-1]) + 1 if q else 0
        if self.copies is not None:
            if self.row is not None or len(self.copies) != q or bool((torch.as_tensor(self.copies) < 1).any()):
                raise ValueError(f"copies of {q} decisions must be as many numbers from 1, and no decision a piece")
            r = int(self.copies.sum())
        for name, column in {"as_of": self.as_of, "entity": self.entity, **self.described}.items():
            if len(column) != r:
                raise ValueError(f"{q} decisions make {r} rows, but {name} has {len(column)}")

    def rows_of(self, begin: int, end: int) -> Tensor:
        """(end − begin,) int64, the rows that decisions begin … end − 1 are pieces of."""
        return torch.arange(begin, end) if self.row is None else torch.as_tensor(self.row[begin:end])

    def is_cut(self, decision: int) -> bool:
        """Whether this decision and the one before it are pieces of one row."""
        last = len(self.sequences.decisions)
        return self.row is not None and 0 < decision < last and int(self.row[decision - 1]) == int(self.row[decision])

    @property
    def sha(self) -> str:
        """Sha256 of everything that a model is shown, and of the names and times that its scores go under."""
        table, cut = self.sequences.table, self.sequences
        columns: dict[str, Any] = {f"field {name}": column for name, column in table.fields.items()}
        for name, each in table.vectors.items():
            columns |= {f"rows of {name}": each.rows, f"vectors {name}": each.values}
        columns |= {"time": table.time, "offsets": table.offsets, "decisions": cut.decisions.row}
        columns |= {name: getattr(cut, name) for name in ("start", "stop", "first")}
        columns["as_of"] = _array(self.as_of)
        columns |= {f"event {name}": _array(column) for name, column in self.events.items()}
        for name, pieces in (("row", self.row), ("copies", self.copies)):
            if pieces is not None:
                columns[name] = _array(pieces)
        texts = hashlib.sha256()
        for name, given in {"entity": self.entity, **self.described}.items():
            if hasattr(given, "dtype"):
                columns[f"described {name}"] = given
                continue
            texts.update(f"{json.dumps(name)}\n".encode())
            for run in Texts.of(given).runs():
                texts.update(f"{json.dumps(run)}\n".encode())
        return hashlib.sha256((columns_sha256(columns) + texts.hexdigest()).encode()).hexdigest()

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """The rows of the table, first … last − 1, that decisions begin … end − 1 become."""
        if self.copies is not None:
            return int(self.copies[:begin].sum()), int(self.copies[:end].sum())
        return int(self.rows_of(begin, begin + 1)[0]), int(self.rows_of(end - 1, end)[0]) + 1


def _array(column: Any) -> Any:
    return column if hasattr(column, "tobytes") else torch.as_tensor(column).numpy()


@dataclass(frozen=True)
class Shard:
    """Sequences first … last − 1, with so many decisions, written in one transaction under `name`.

    `cost` is what they take to compute, in a unit of its own: see `costs`.
    """

    name: str
    first: int
    last: int
    decisions: int
    cost: int = 0


@dataclass(frozen=True)
class Plan:
    """What is scored, by what and how, and in which pieces.

    Attributes:
        shards: in order.
        model_sha: of what scores.
        sha: of `described`; another model, input, setting, policy, size of a shard or source file gives another one.
        described: plain values, for JSON: what the plan is made of.
    """

    shards: tuple[Shard, ...]
    model_sha: str
    sha: str
    described: Mapping[str, Any] = field(default_factory=dict)

    def between(self, written: str | None) -> tuple[Shard, ...]:
        """The shards FIRST … LAST − 1 that are written as "FIRST:LAST", either of which may be left out; None: all.

        Raises:
            ValueError: it is written otherwise, or no shard is among them.
        """
        if written is None:
            return self.shards
        parts = written.split(":")
        if len(parts) != 2 or not all(part.isdecimal() or not part for part in parts):
            raise ValueError(f"shards must be FIRST:LAST, as 0:100 is for the first hundred, got {written!r}")
        first, last = int(parts[0] or 0), int(parts[1] or len(self.shards))
        if not (found := self.shards[first:last]):
            raise ValueError(f"shards={written}: there is none among them; the plan has 0:{len(self.shards)}")
        return found


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs between two descriptions of a plan, in words; the first few differences by name and value."""
    one, other = (dict(_leaves(each)) for each in (before, now))
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    said = [f"{name} {_short(one.get(name))} → {_short(other.get(name))}" for name in names[:4]]
    return ", ".join(said) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _short(value: Any) -> str:
    if value is None:
        return "none"
    return value[:12] if isinstance(value, str) and len(value) == 64 else str(value)


def costs(lengths: Any) -> Any:
    """(S,) int64, what sequences of so many tokens take to compute, all in one unit: n · (n + 1024).

    Pairs of tokens for attention, and for everything else what a thousand pairs a token are: a long document takes more
    time than its tokens say.
    """
    n = torch.as_tensor(lengths, dtype=torch.int64)
    return (n * (n + 1024)).numpy()


def shard_cost(device: str) -> int:
    """Most that a shard costs if nobody says otherwise: minutes of one core with a tiny encoder, seconds of a GPU."""
    return 1 << (38 if device.startswith("cuda") else 32)


def shard_size(decisions: int) -> int:
    """Decisions that a shard of a job of so many has, if nobody says: a hundredth of them, from 10,000 to 50,000.

    A transaction costs some milliseconds, and more the more of them there are; what a kill loses is a shard.
    """
    return min(max(-(-decisions // 100), 10_000), 50_000)


def make_plan(
    work: Work,
    model_sha: str,
    shard_decisions: int,
    policy: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    most: int | None = None,
) -> Plan:
    """Cut the sequences of `work` into shards of at least `shard_decisions` decisions (the last one may have fewer).

    A shard has fewer where they would cost more than `most`. No row is cut: its pieces are in one shard.

    Args:
        work: the decisions.
        model_sha: of what scores them.
        shard_decisions: size of a shard.
        policy: plain values that decide the bits of a score beside model, data and code (how batches are made, where
            they are computed), so that a table cannot go on under another one.
        sizes: input → bytes, told beside the plan; hashes decide.
        most: what a shard of several rows may cost at most, see `costs`; None: anything.

    Raises:
        ValueError: nothing to score, or a shard size below 1.
    """
    if shard_decisions < 1:
        raise ValueError(f"a shard holds at least one decision, got {shard_decisions}")
    if not len(work.sequences.decisions):
        raise ValueError("there are no decisions to score in this data")
    described = {
        "model": model_sha,
        "inputs": dict(work.hashes),
        "settings": dict(work.settings),
        "work": {
            "sha256": work.sha,
            "tokens": len(work.sequences.table),
            "decisions": len(work.sequences.decisions),
            "rows": len(work.as_of),
        },
        "shard_decisions": shard_decisions,
        "shard_cost": most,
        "policy": dict(policy or {}),
        "code": dict(installed()),
        "format": FORMAT,
    }
    described = json.loads(json.dumps(described, sort_keys=True))
    sha = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    described["bytes"] = dict(sizes or {})
    return Plan(tuple(_shards(work, shard_decisions, most)), model_sha, sha, described)


def _shards(work: Work, least: int, most: int | None) -> Iterator[Shard]:
    first, sequences = work.sequences.first, len(work.sequences)
    until = torch.as_tensor(costs(work.sequences.stop - work.sequences.start)).cumsum(0).numpy()
    begin = number = 0
    while begin < sequences and (done := int(first[begin])) < int(first[-1]):
        spent = int(until[begin - 1]) if begin else 0
        end = min(int(first.searchsorted(done + least)), sequences)
        if most is not None:
            end = max(min(end, int(until.searchsorted(spent + most, "right"))), begin + 1)
        while end < sequences and (work.is_cut(int(first[end])) or int(first[end]) == done):
            end += 1
        yield Shard(f"shard-{number:06d}", begin, end, int(first[end]) - done, int(until[end - 1]) - spent)
        begin, number = end, number + 1
