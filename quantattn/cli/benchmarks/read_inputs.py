"""Files for the benchmark of reading: days of LOBSTER and records of Databento repeated, a session of ITCH made."""

from __future__ import annotations

import datetime as dt
import gzip
import importlib
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from quantattn.data.sample import write_lobster
from quantattn.data.sources.itch_format import MESSAGES
from quantattn.data.sources.lobster_files import find_pairs, read_lines
from quantattn.data.synthetic import SyntheticMarket

DAY = "2012-06-21"
"""Of the session of ITCH that is made."""
_OPEN, _OPENED = 34_200 * 10**9, 23_400 * 10**9  # ns after midnight, ns until the close
Arrays = Any


def lobster_days(source: str | None, rows: int, folder: Path, day: int = 65_536) -> tuple[Path, int]:
    """LOBSTER days with one level of the book, unpacked and repeated with later dates until they are so many rows.

    Later by whole weeks: clocks change on Sundays, for which LOBSTER has no day, and a file of such a day is refused.
    Without a folder it is one of a synthetic market, of `day` rows. Returns the new folder, and how many rows it has.

    Raises:
        ValueError: no day has one level.
    """
    if source is None:
        made = folder.with_name("drawn")
        market = SyntheticMarket(entities=("MADE",), events_per_entity=day, events_per_session=day)
        write_lobster(market.source().frame.collect(), made)
        source = str(made)
    found = find_pairs(Path(source), None, None)[0]
    pairs = [pair for pair in found if next(read_lines(pair.book), "").count(",") == 3]
    if not pairs:
        raise ValueError(f"{source} holds no day with one level of the book, which is what bench=read repeats")
    lines = [sum(1 for _ in read_lines(pair.message)) for pair in pairs]
    folder.mkdir()
    span = max(pair.date for pair in pairs) - min(pair.date for pair in pairs)
    later = dt.timedelta(weeks=span.days // 7 + 1)
    done = 0
    for turn in itertools.count():
        for pair, count in zip(pairs, lines, strict=True):
            if done >= rows:
                return folder, done
            for role, file in (("message", pair.message), ("orderbook", pair.book)):
                name = f"{pair.entity}_{pair.date + turn * later}_34200000_57600000_{role}_1.csv"
                with file.open("rb") as raw, (folder / name).open("wb") as out:
                    shutil.copyfileobj(gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else raw, out)
            done += count
    raise AssertionError


def dbn_file(source: str, rows: int, out: Path) -> tuple[Path, int]:
    """An mbo file, its records repeated by the vendor's encoder, each later by its length; and how many there are."""
    dbn, zstandard = importlib.import_module("databento_dbn"), importlib.import_module("zstandard")
    with Path(source).open("rb") as packed:
        data = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read()
    start = 8 + int.from_bytes(data[4:8], "little")
    records = np.frombuffer(data[start:], dbn.MBOMsg._dtypes)
    span = np.uint64(int(records["ts_recv"].max()) - int(records["ts_recv"].min()) + 10**9)
    times = -(-rows // len(records))
    with out.open("wb") as file:
        coder = dbn.Transcoder(file, dbn.Encoding.DBN, dbn.Compression.ZSTD)
        coder.write(dbn.Metadata.decode(data[:start]).encode())
        for number in range(times):
            later = records.copy()
            later["ts_recv"] += np.uint64(number) * span
            later["ts_event"] += np.uint64(number) * span
            coder.write(later.tobytes())
            coder.flush()
        coder.finish()
    return out, times * len(records)


def itch_file(messages: int, stocks: int, out: Path, seed: int = 0) -> Path:
    """A sound session: orders near the mids of their stocks, which are deleted, executed or replaced later.

    Executions come with their price (C), since those without one say that the order was the first in its line.
    """
    rng = np.random.default_rng(seed)
    n = messages // 2
    order: dict[str, Arrays] = {"stock": rng.integers(0, stocks, n), "side": rng.choice(np.array([-1, 1]), n)}
    order["price"] = 1_000_000 + 10_000 * order["stock"] - order["side"] * 100 * rng.geometric(0.15, n)
    order["size"] = rng.integers(1, 6, n) * 100
    born, partly = np.arange(n) * 2, rng.random(n) < 0.2
    life = rng.geometric(1 / (300 * stocks**0.5), n) + 2
    ends = rng.choice(np.array([ord("D"), ord("C"), ord("U")]), n, p=[0.75, 0.15, 0.1])
    at = np.concatenate([born, born[partly] + life[partly] // 2, born + life])
    code = np.concatenate([np.full(n, ord("A")), np.full(int(partly.sum()), ord("X")), ends])
    which = np.concatenate([np.arange(n), np.flatnonzero(partly), np.arange(n)])
    chosen = np.lexsort((code, at))[:messages]
    code, which = code[chosen], which[chosen]
    time = _OPEN + np.cumsum(rng.integers(0, 2 * _OPENED // messages, len(code)))
    head = np.repeat([ord("R"), ord("H")], stocks)
    names = np.tile(np.arange(stocks), 2)
    out.write_bytes(
        _bytes(
            np.concatenate([head, code]),
            np.concatenate([names, order["stock"][which]]),
            np.concatenate([np.full(2 * stocks, _OPEN - 1), time]),
            np.concatenate([np.zeros(2 * stocks, np.int64), which]),
            order | {"left": order["size"] - 50 * partly},
        )
    )
    return out


def _bytes(code: Arrays, stock: Arrays, time: Arrays, which: Arrays, order: dict[str, Arrays]) -> bytes:
    """Messages, each with its length before it."""
    lengths = np.zeros(256, np.int64)
    for letter, layout in MESSAGES.items():
        lengths[ord(letter)] = layout.itemsize
    size = lengths[code] + 2
    start = np.cumsum(size) - size
    data = np.zeros(int(size.sum()), np.uint8)
    names = np.array([f"S{number:04d}".ljust(8).encode() for number in range(int(stock.max()) + 1)])
    for letter in "RHAXDCU":
        rows = np.flatnonzero(code == ord(letter))
        own, made = which[rows], np.zeros(len(rows), MESSAGES[letter])
        fields = {
            "type": letter.encode(),
            "locate": stock[rows] + 1,
            "time": (time[rows][:, None] >> np.arange(40, -8, -8)) & 255,
            "stock": names[stock[rows]],
            **{
                "state": b"T",
                "reserved": b" ",
                "reason": b"    ",
                "printable": b"Y",
                "match": np.arange(len(rows)) + 1,
            },
            "order_id": own + 1,
            "new_order_id": own + 1 + len(order["size"]),
            "side": np.where(order["side"][own] > 0, b"B", b"S"),
            "shares": {"A": order["size"][own], "X": 50}.get(letter, order["left"][own]),
            "price": order["price"][own],
        }
        for name in made.dtype.names or ():
            if name in fields:
                made[name] = fields[name]
        raw = made.view(np.uint8).reshape(len(rows), -1)
        data[start[rows][:, None] + 2 + np.arange(raw.shape[1])] = raw
        data[start[rows] + 1] = raw.shape[1]
    return data.tobytes()
