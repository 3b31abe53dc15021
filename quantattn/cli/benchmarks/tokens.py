"""Features, labels and tokens of book events, beside the same in pandas: equal results, on one core or on many.

Each runs in a process of its own, from a table in memory to arrays in memory; reading files is no part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, Protocol

import numpy as np
import polars as pl

from quantattn.cli.benchmarks.processes import apart, peak_since_here, resident
from quantattn.cli.benchmarks.tokens_pandas import Pandas
from quantattn.data.market.encode import token_table
from quantattn.data.market.features import feature_table
from quantattn.data.protocol.labels import MidLabel
from quantattn.data.schema import CANONICAL_ORDER, Instrument
from quantattn.data.sources import scan_lobster
from quantattn.data.synthetic import SyntheticMarket
from quantattn.data.tokens import Tokenizer

Say = Callable[[str], None]
Columns = dict[str, Any]
Round = list[tuple[float, float]]
"""Seconds of the processor and of the clock, of each step."""
DAY = 86_400 * 10**9
STEPS = ("features", "labels", "tokens")
MOST = 2_000_000
N_BINS = 32
IMPLEMENTATIONS = ("pandas", "pandas_tuned", "quantattn")
"""The first is what the others are compared with."""


@dataclass(frozen=True)
class TokensRow:
    """One implementation over one table of events.

    Attributes:
        impl: quantattn; pandas, with `rolling` and `cut`; or pandas_tuned, with running sums and `searchsorted`.
        events: in the table.
        entities: among them.
        threads: that polars and OpenMP were allowed; pandas uses one.
        ns: processor time an event, all three steps, of the round that is fastest by this time, or with more than one
            thread by the clock.
        features_ns, labels_ns, tokens_ns: of each step in that round; fitting is among them.
        wall_ns, features_wall_ns, labels_wall_ns, tokens_wall_ns: the same by the clock on the wall.
        events_per_s: events a second of processor time.
        peak_mib: peak resident memory above that of the imports, the table and all results included, MiB. NaN where
            the system does not tell.
        times: processor time of pandas over its own.
        wall_times: the same by the clock.
        sha256: of all results; floats to five digits, since logarithms of different libraries differ in the last bit.
    """

    impl: str
    events: int
    entities: int
    threads: int
    ns: float
    features_ns: float
    labels_ns: float
    tokens_ns: float
    wall_ns: float
    features_wall_ns: float
    labels_wall_ns: float
    tokens_wall_ns: float
    events_per_s: int
    peak_mib: float
    times: float
    wall_times: float
    sha256: str


class Steps(Protocol):
    """What an implementation computes; each step gives named arrays."""

    def features(self) -> Columns:
        """The columns of `FEATURES`."""

    def labels(self) -> Columns:
        """Row, label and end of every labelled event, and every event's reason for none, −1 for a label."""

    def tokens(self) -> Columns:
        """Code and scaled value of every field, fitted on the events before `until`."""


@dataclass(frozen=True)
class Ours:
    """The steps of `prepare_market`, without sessions."""

    events: pl.DataFrame
    instruments: Sequence[Instrument]
    horizon: int
    until: int

    def features(self) -> Columns:
        """See `Steps`."""
        return _arrays(feature_table(self.events, self.instruments))

    def labels(self) -> Columns:
        """See `Steps`."""
        label = MidLabel(self.horizon)
        needed = ("entity", "available_time", "ask_price_1", "bid_price_1", "^halted$")
        measured = label.measure(self.events.select(needed))
        reason = measured["label_reason"].to_physical().cast(pl.Int8).fill_null(-1)
        moved = measured.select("label_start", "label_end", "move_num", "move_den", "label_reason").with_row_index(
            "row"
        )
        moved = moved.filter(reason < 0)
        made, _ = label.finish(moved, np.flatnonzero((moved["label_end"] < self.until).to_numpy()))
        return _arrays(made.select("row", "label", end="label_end")) | {"reason": reason.to_numpy()}

    def tokens(self) -> Columns:
        """See `Steps`."""
        frame = self.events.lazy()
        settings: dict[str, Any] = {"fitted_until": self.until, "n_bins": N_BINS, "max_rows": MOST}
        tokenizer = Tokenizer.fit(frame, self.instruments, **settings)
        return dict(token_table(self.events, tokenizer).fields)


def events_of(asked: Mapping[str, Any]) -> tuple[pl.DataFrame, tuple[Instrument, ...]]:
    """`asked["rows"]` events: of LOBSTER files, repeated with later dates until they are so many, or drawn."""
    if asked["path"] is None:
        market = SyntheticMarket(entities=asked["entities"], events_per_entity=-(-asked["rows"] // asked["entities"]))
        source = market.source()
        return source.frame.collect(), source.instruments
    source = scan_lobster(asked["path"])
    events = source.frame.collect()
    time, times = events["available_time"].to_numpy(), -(-asked["rows"] // events.height)
    later = (int(time.max()) - int(time.min())) // DAY + 1
    repeated = [
        events.with_columns(pl.col("event_time", "available_time") + n * later * DAY, seq=pl.col("seq") + n * 2**32)
        for n in range(times)
    ]
    return pl.concat(repeated).sort(CANONICAL_ORDER).head(asked["rows"]), source.instruments


def write(events: pl.DataFrame, folder: Path) -> None:
    """The table as each implementation reads it: one Parquet file, and numpy's arrays for every entity."""
    events.write_parquet(folder / "events.parquet", compression="uncompressed")
    names = [name for name in events.columns if name not in ("entity", "event_time", "seq", "order_id")]
    for number, piece in enumerate(events.partition_by("entity", maintain_order=True)):
        columns: dict[str, Any] = {name: piece[name].to_numpy() for name in names}
        np.savez(folder / f"{number:06d}.npz", **columns)


def read(impl: str, folder: Path, ticks: Mapping[str, int], horizon: int, until: int) -> Steps:
    """The implementation of this name over the table in a folder; `ticks` has the entities in their order."""
    if impl == "quantattn":
        events = pl.read_parquet(folder / "events.parquet").rechunk()
        return Ours(events, [Instrument(name, tick=tick) for name, tick in ticks.items()], horizon, until)
    tables = [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))]
    tuned = impl == "pandas_tuned"
    return Pandas(tables, [*ticks.values()], horizon=horizon, until=until, n_bins=N_BINS, most=MOST, tuned=tuned)


def run(impl: str, folder: str, ticks: Mapping[str, int], horizon: int, until: int, rounds: int, answer: Any) -> None:
    """In a process of its own: times of each step of each round, the hash, and MiB; through the pipe `answer`."""
    before = peak_since_here()
    given = read(impl, Path(folder), ticks, horizon, until)
    peak_since_here()
    taken: list[Round] = []
    made: Columns = {}
    for _ in range(rounds):
        made.clear()
        each: Round = []
        for step in STEPS:
            began = process_time(), perf_counter()
            made |= getattr(given, step)()
            each.append((process_time() - began[0], perf_counter() - began[1]))
        taken.append(each)
    peak = resident("VmHWM") - before
    answer.send((taken, digest(made), peak))


def digest(made: Mapping[str, Any]) -> str:
    """SHA-256 of named arrays: whole numbers as int64, others to five digits."""
    told = hashlib.sha256()
    for name, column in sorted(made.items()):
        told.update(name.encode())
        if column.dtype.kind == "f" and bool((column != np.rint(column)).any()):
            digits, exponent = np.frexp(column.astype(np.float64))
            told.update(np.rint(digits * 1e5).astype(np.int64).tobytes() + exponent.astype(np.int64).tobytes())
        else:
            told.update(column.astype(np.int64).tobytes())
    return told.hexdigest()


def _arrays(frame: pl.DataFrame) -> Columns:
    return {name: frame[name].to_numpy() for name in frame.columns}


def benchmark(asked: Mapping[str, Any], say: Say) -> Iterator[TokensRow]:
    """A row an implementation, in the order of `IMPLEMENTATIONS`.

    Raises:
        ValueError: two of them return different results.
    """
    events, instruments = events_of(asked)
    ticks = {instrument.entity: instrument.tick for instrument in sorted(instruments, key=lambda each: each.entity)}
    size, until = events.height, int(np.quantile(events["available_time"].to_numpy(), asked["train"]))
    with TemporaryDirectory(prefix="quantattn-tokens-") as scratch:
        write(events, Path(scratch))
        del events
        found: dict[str, list[Any]] = {name: [] for name in IMPLEMENTATIONS}
        for _ in range(asked["turns"]):  # in turn, so that what else the machine does meets all
            for impl, answers in found.items():
                given = (impl, scratch, ticks, asked["horizon"], until, asked["rounds"])
                answers.append(apart(impl, run, *given, threads=asked["threads"]))
    hashes = {impl: answers[0][1] for impl, answers in found.items()}
    if len({answer[1] for answers in found.values() for answer in answers}) != 1:
        raise ValueError(f"the implementations do not return the same: {hashes}")
    clock = int(asked["threads"] > 1)
    slowest: tuple[float, float] | None = None
    for impl, answers in found.items():
        best = min(
            (each for answer in answers for each in answer[0]), key=lambda each: sum(step[clock] for step in each)
        )
        busy, wall = (sum(step[which] for step in best) for which in (0, 1))
        slowest = slowest or (busy, wall)
        (features, features_wall), (labels, labels_wall), (tokens, tokens_wall) = (
            [round(1e9 * seconds / size, 1) for seconds in step] for step in best
        )
        yield TokensRow(
            impl=impl,
            events=size,
            entities=len(ticks),
            threads=asked["threads"],
            ns=round(1e9 * busy / size, 1),
            features_ns=features,
            labels_ns=labels,
            tokens_ns=tokens,
            wall_ns=round(1e9 * wall / size, 1),
            features_wall_ns=features_wall,
            labels_wall_ns=labels_wall,
            tokens_wall_ns=tokens_wall,
            events_per_s=round(size / busy),
            peak_mib=round(max(answer[2] for answer in answers), 1),
            times=round(slowest[0] / busy, 2),
            wall_times=round(slowest[1] / wall, 2),
            sha256=answers[0][1],
        )
    say(f"{size:,} events: equal results, sha256 {hashes['quantattn'][:16]}…")
