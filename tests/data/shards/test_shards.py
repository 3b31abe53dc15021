"""Shards: what comes out is what went in, whatever was killed, changed, damaged or divided on the way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from shard_market import MARKET, changed, files, market, whole, written

from quantattn.data.sample import write_lobster
from quantattn.data.schema import Instrument
from quantattn.data.shards import pieces_of, prepare_shards, scan_prepared
from quantattn.data.sources import Source, SourceReport, scan_lobster
from quantattn.data.synthetic import SyntheticMarket


@pytest.mark.parametrize(("rows", "period"), [(1, "day"), (333, "day"), (500, "month"), (10_000, "year")])
def test_what_comes_out_is_what_went_in(tmp_path: Path, rows: int, period: Any) -> None:
    asked = replace(MARKET, events_per_entity=20, events_per_session=9) if rows == 1 else MARKET
    made = prepare_shards(market(asked), tmp_path / "out", rows=rows, period=period)
    source, again = asked.source(), scan_prepared(tmp_path / "out")
    events = source.frame.collect()
    assert again.frame.collect().equals(events)
    assert again.instruments == source.instruments
    assert again.report.rows_read == events.height
    assert source.report.files.items() <= again.report.files.items()
    day = pl.from_epoch("available_time", time_unit="ns").dt.strftime(
        {"day": "%F", "month": "%Y-%m", "year": "%Y"}[period]
    )
    for shard in made.manifest.shards:
        held = pl.read_parquet(shard.path(tmp_path / "out"))
        assert (held.height, held["entity"].unique().to_list()) == (shard.rows, [shard.place.entity])
        assert held.height <= rows
        assert held.select(day.unique()).to_series().to_list() == [shard.place.period]
    starts = [(shard.place.entity, *shard.first) for shard in made.manifest.shards]
    assert starts == sorted(starts)
    assert sum(shard.rows for shard in made.manifest.shards) == events.height


def test_days_are_those_of_the_time_zone(tmp_path: Path) -> None:
    """19:00 in New York is the next day in UTC: cut by its own clock an evening stays whole."""
    evening = 1_704_240_000 * 10**9 - 30 * 60 * 10**9  # 2024-01-02 23:30 UTC
    rows = MARKET.source().frame.filter(entity="A").head(4).with_columns(
        available_time=evening + pl.int_range(pl.len()) * 20 * 60 * 10**9, event_time=pl.lit(evening)
    )  # fmt: skip
    source = Source(rows, (Instrument("A"),), SourceReport(4))
    utc = prepare_shards(whole(source), tmp_path / "utc").manifest
    local = prepare_shards(whole(source), tmp_path / "local", zone="America/New_York").manifest
    assert [(s.place.period, s.rows) for s in utc.shards] == [("2024-01-02", 2), ("2024-01-03", 2)]
    assert [(s.place.period, s.rows) for s in local.shards] == [("2024-01-02", 4)]


def test_a_second_run_writes_nothing(tmp_path: Path) -> None:
    first = prepare_shards(market(), tmp_path, rows=300)
    before, times = files(tmp_path), written(tmp_path)

    def unread(_: Mapping[str, Any]) -> Source:
        raise AssertionError("the source was read again")

    again = prepare_shards(pieces_of(SyntheticMarket, vars(MARKET), unread), tmp_path, rows=300)
    assert (again.tally.written, again.tally.kept) == (0, first.tally.written)
    assert (files(tmp_path), written(tmp_path)) == (before, times)


SLOW = """
import sys, time
from pathlib import Path
from quantattn.data.shards import pieces_of, prepare_shards
from quantattn.data.synthetic import SyntheticMarket

market = SyntheticMarket(entities=("A", "B", "C"), events_per_entity=1_200, events_per_session=500)
pieces = pieces_of(SyntheticMarket, vars(market), lambda _: market.source())
prepare_shards(pieces, sys.argv[1], rows=100, watch=lambda _: time.sleep(float(sys.argv[2])))
"""


def test_killed_at_any_time_it_goes_on_where_it_was(tmp_path: Path) -> None:
    prepare_shards(market(), tmp_path / "whole", rows=100)
    folder = tmp_path / "killed"
    stood: dict[str, int] = {}
    for shards in (3, 25):
        child = subprocess.Popen([sys.executable, "-c", SLOW, str(folder), "0.02"])
        while len(list(folder.rglob("*.parquet"))) < shards:
            assert child.poll() is None
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        with pytest.raises(ValueError, match="no folder that `quantattn prepare` has finished"):
            scan_prepared(folder)
        sealed = {name: when for name, when in written(folder).items() if (folder / name).with_suffix(".json").exists()}
        assert stood.items() <= sealed.items()  # what stood was not written again
        stood = sealed
    (folder / f".{'x' * 9}.parquet.{os.uname().nodename}.{child.pid}").write_bytes(b"half")
    done = prepare_shards(market(), folder, rows=100)
    assert stood.items() <= written(folder).items()
    assert done.tally.written < len(done.manifest.shards)
    assert files(folder) == files(tmp_path / "whole")


DAYS = SyntheticMarket(entities=("AA", "BB"), events_per_entity=1_500, events_per_session=500)


def lobster(folder: Path, seed: int = 0) -> dict[str, Path]:
    """Six pairs of files: two entities, three days; name of the message file → its path."""
    made = write_lobster(replace(DAYS, seed=seed).source().frame.collect(), folder)
    return {path.name: path for path in made if "message" in path.name}


def prepared(path: Path, out: Path, **more: Any) -> Any:
    def read(own: Mapping[str, Any]) -> Source:
        return scan_lobster(**{"path": str(path), "levels": 1, **own})

    return prepare_shards(pieces_of(scan_lobster, {"path": str(path), "levels": 1}, read), out, **more)


def test_a_change_of_files_touches_what_depends_on_them_alone(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    messages = lobster(raw)
    later = sorted(messages)[2]
    aside = tmp_path / "aside"
    aside.mkdir()
    for path in (messages[later], Path(str(messages[later]).replace("message", "orderbook"))):
        shutil.move(path, aside / path.name)

    def like_raw() -> bool:
        return scan_prepared(out).frame.collect().equals(scan_lobster(raw).frame.collect())

    assert prepared(raw, out).tally.written == 5
    times = written(out)
    assert like_raw()
    for path in aside.iterdir():  # a day is added
        shutil.copy(path, raw / path.name)
    assert (added := prepared(raw, out).tally).written == 1
    assert (added.kept, added.removed) == (5, 0)
    assert times.items() < written(out).items()
    assert like_raw()
    times = written(out)
    other = lobster(tmp_path / "other", seed=1)
    changed = sorted(messages)[4]
    for role in ("message", "orderbook"):  # a day is changed
        shutil.copy(str(other[changed]).replace("message", role), raw / changed.replace("message", role))
    tally = prepared(raw, out).tally
    assert (tally.written, tally.kept, tally.removed) == (1, 5, 0)
    assert len(times.items() - written(out).items()) == 1
    assert like_raw()
    times = written(out)
    for role in ("message", "orderbook"):  # a day is deleted
        (raw / later.replace("message", role)).unlink()
    tally = prepared(raw, out).tally
    assert (tally.written, tally.kept, tally.removed) == (0, 5, 1)
    assert written(out).items() < times.items()
    assert like_raw()
    assert files(out) == files(prepared_anew(raw, tmp_path / "anew"))


def prepared_anew(raw: Path, out: Path) -> Path:
    prepared(raw, out)
    return out


def test_a_source_that_is_read_whole_leaves_equal_shards_alone(tmp_path: Path) -> None:
    source = MARKET.source()
    prepare_shards(whole(source), tmp_path)
    times = written(tmp_path)
    last = changed("size", pl.col("size") + 1).frame.collect()
    tally = prepare_shards(whole(replace(source, frame=last.lazy()), "1"), tmp_path).tally
    assert (tally.written, tally.kept, tally.removed) == (1, len(times) - 1, 0)
    assert [name.split("/")[1][0] for name, _ in times.items() - written(tmp_path).items()] == ["B"]
    assert scan_prepared(tmp_path).frame.collect().equals(last)
    fewer = last.filter((pl.col("entity") != "C") & (pl.col("seq") < 1_000))
    own = replace(source, frame=fewer.lazy(), instruments=source.instruments[:2])
    tally = prepare_shards(whole(own, "2"), tmp_path).tally
    assert (tally.written, tally.removed) == (0, 5)
    assert scan_prepared(tmp_path).frame.collect().equals(fewer)
    assert not list(tmp_path.glob("events/C-*"))


def test_machines_that_share_the_entities_make_the_folder_of_one(tmp_path: Path) -> None:
    prepare_shards(market(), tmp_path / "one")
    prepare_shards(market(), tmp_path / "some", entities=["B"])
    with pytest.raises(ValueError, match="is not finished: A of the source is not whole, and 1 more; prepare again"):
        scan_prepared(tmp_path / "some")
    prepare_shards(market(), tmp_path / "some", entities=["C", "A"])
    assert files(tmp_path / "some") == files(tmp_path / "one")
    with pytest.raises(ValueError, match="the source has no X; it has A, B, C"):
        prepare_shards(market(), tmp_path / "some", entities=["X"])
    assert scan_prepared(tmp_path / "one", entities=["B"]).frame.collect()["entity"].unique().to_list() == ["B"]


def test_machines_may_write_at_once(tmp_path: Path) -> None:
    prepare_shards(market(), tmp_path / "one", rows=100)
    own = SLOW.replace("rows=100", "rows=100, entities=sys.argv[3:]")
    other = subprocess.Popen([sys.executable, "-c", own, str(tmp_path / "two"), "0.005", "A", "C"])
    while not list(tmp_path.glob("two/events/A-*/*.parquet")):
        assert other.poll() is None
        time.sleep(0.02)
    prepare_shards(market(), tmp_path / "two", rows=100, entities=["B"], watch=lambda _: time.sleep(0.005))
    assert other.wait() == 0
    assert files(tmp_path / "two") == files(tmp_path / "one")
