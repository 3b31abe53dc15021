"""Entities at moments: from what was available by then and nothing else, and no moment lost without a count."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small_market import CLASSES, LAG, bits, changed_after, encoded, events, model, source, vocabulary, work

from quantattn.data.market.encode import encode_market
from quantattn.data.pack import Decisions, SequenceSet
from quantattn.data.protocol.moments import Moments, at_moments, read_moments
from quantattn.data.units import Chosen, chosen
from quantattn.nn import Model
from quantattn.score import Scores, Worker, make_plan, score


def asked(*rows: tuple[str, int]) -> Moments:
    names, times = zip(*rows, strict=True)
    return Moments("asks.csv", pl.Series(names), np.array(times), "sha")


def probabilities(made: Chosen, of: Model) -> list[bytes]:
    return bits(work(made), lambda batch: of.score(batch, deterministic="batch")["prob"])


def some_moments() -> Moments:
    """Of each entity, some of the moments at which something became known, and one ns before."""
    frame = events()
    times = [(name, time - back) for name, time in frame.select("entity", "available_time").rows() for back in (0, 1)]
    return asked(*times[7::31])


@pytest.mark.parametrize("causal", [True, False])
def test_a_moment_is_the_decision_at_the_last_event_that_was_available(causal: bool) -> None:
    frame, asks, of = events(), some_moments(), model(causal)
    made = at_moments(encoded(frame), asks)
    known = frame.select("entity", "available_time", "event_time", place="seq")
    rows = pl.DataFrame({"entity": asks.entity, "as_of": asks.as_of}).sort("entity", "as_of")
    known = known.with_columns(as_of="available_time")
    expected = rows.join_asof(known, on="as_of", by="entity", check_sortedness=False).drop_nulls()
    assert list(zip(made.entity, made.as_of.tolist(), strict=True)) == expected.select("entity", "as_of").rows()
    for name in ("event_time", "available_time", "place"):
        assert made.described[name].tolist() == expected[name].to_list()
    assert (made.as_of >= made.described["available_time"]).all()
    at = made.sequences.decisions.row
    for row, bytes_ in zip(at[::3], probabilities(made, of)[::3], strict=True):
        alone = SequenceSet(made.sequences.table, Decisions(np.array([row])), made.sequences.max_seq_len, "each")
        assert probabilities(chosen(made, alone, {}), of) == [bytes_]


@pytest.mark.parametrize("causal", [True, False])
def test_whatever_becomes_available_later_changes_no_bit(causal: bool) -> None:
    """Also events that had happened by then."""
    frame, of = events(), model(causal)
    time = int(frame["available_time"].sort()[frame.height // 2])
    asks = asked(*[(name, time) for name in frame["entity"].unique().sort()])
    made, other = at_moments(encoded(frame), asks), at_moments(encoded(changed_after(frame, time)), asks)
    assert other.sequences.decisions.row.tolist() != [], "the control: rows of the table have moved"
    assert made.described["place"].tolist() == other.described["place"].tolist()
    assert probabilities(made, of) == probabilities(other, of)
    happened = frame.filter((pl.col("event_time") <= time) & (pl.col("available_time") > time))
    assert happened.height, "the control: something had happened and was not known"
    wrong = changed_after(frame, time - LAG)
    assert probabilities(at_moments(encoded(wrong), asks), of) != probabilities(made, of)


def test_a_row_does_not_depend_on_what_else_is_asked() -> None:
    asks, of = some_moments(), model()
    whole = at_moments(encoded(events()), asks)
    one = at_moments(encoded(events()), asked((asks.entity[5], int(asks.as_of[5]))))
    place = list(zip(whole.entity, whole.as_of.tolist(), strict=True)).index((asks.entity[5], int(asks.as_of[5])))
    decision = np.repeat(np.arange(len(whole.sequences.decisions)), whole.copies)[place]
    assert probabilities(one, of) == [probabilities(whole, of)[decision]]


def test_moments_between_two_events_are_rows_of_one_score(tmp_path: Path) -> None:
    frame = events()
    name, time = frame["entity"][0], frame["available_time"][20]
    asks = asked((name, time + 2), (name, time), (frame["entity"][-1], 2**62), (name, time + 1))
    made = at_moments(encoded(frame), asks)
    assert made.copies is not None
    assert made.copies.tolist() == [3, 1]
    given = work(made)
    assert score(Worker(model(), given, make_plan(given, "m", 1), 100, output=Scores(CLASSES)), tmp_path / "out")
    table = pl.read_delta(str(tmp_path / "out")).sort("key")
    assert table["key"].to_list() == [0, 1, 2, 3]
    assert table["as_of"].to_list() == [time, time + 1, time + 2, 2**62]
    assert table["place"].to_list() == [20, 20, 20, frame["seq"][-1]]
    assert table["prob_up"].n_unique() == 2
    assert table["prob_up"][:3].n_unique() == 1


def test_what_cannot_be_answered_is_counted_with_its_reason() -> None:
    frame = events()
    name, first = frame["entity"][0], frame["available_time"][0]
    rows = [("XYZ", first), (name, first), (name, first - 1), (name, first), ("XYZ", first), ("ABC", 5), (name, 7)]
    made = at_moments(encoded(frame), asked(*rows))
    assert made.as_of.tolist() == [first]
    when = dt.datetime.fromtimestamp((first - 1) // 10**9, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    assert list(made.notes) == [
        f"2 of 7 moments of asks.csv, the entity is not in these data (the first is XYZ at {when} UTC)",
        f"2 of 7 moments of asks.csv, before the first event of the entity (the first is {name} at {when} UTC)",
        f"2 of 7 moments of asks.csv, asked before in the same file (the first is {name} at {when} UTC)",
    ]
    with pytest.raises(ValueError, match=r"no moment of asks.csv can be answered: 1 of 1 moments .* not in these data"):
        at_moments(encoded(frame), asked(("XYZ", first)))


NS = 1_704_205_800_000_000_001


@pytest.mark.parametrize(
    "text",
    [
        str(NS),
        "2024-01-02T14:30:00.000000001Z",
        "2024-01-02 15:30:00.000000001+01:00",
        "2024-01-02T09:30:00.000000001-05",
    ],
)
def test_times_are_read_to_the_nanosecond(text: str, tmp_path: Path) -> None:
    (tmp_path / "asks.csv").write_text(f"note,as_of,entity\nx,{text},A\n")
    read = read_moments(tmp_path / "asks.csv")
    assert (read.entity.to_list(), read.as_of.tolist()) == (["A"], [NS])


def test_parquet_holds_times_or_numbers(tmp_path: Path) -> None:
    shas = set()
    stamped = pl.Series([NS]).cast(pl.Datetime("ns", "UTC"))
    for number, column in enumerate((pl.Series([NS]), stamped, stamped.dt.convert_time_zone("America/New_York"))):
        path = tmp_path / f"{number}.parquet"
        pl.DataFrame({"entity": ["A"], "as_of": column}).write_parquet(path)
        read = read_moments(path)
        assert read.as_of.tolist() == [NS]
        shas.add(read.sha256)
    assert len(shas) == 1
    pl.DataFrame({"entity": ["A"], "as_of": [dt.datetime(2024, 1, 2)]}).write_parquet(tmp_path / "naive.parquet")
    with pytest.raises(ValueError, match=r"naive.parquet: as_of is Datetime.* without a time zone"):
        read_moments(tmp_path / "naive.parquet")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("entity,time\nA,1", "has no column 'as_of'; it has entity, time"),
        ("entity,as_of", "asks.csv asks for nothing"),
        ("entity,as_of\nA,1\nB,2024-01-02T14:30:00", "asks.csv, line 3: as_of is '2024-01-02T14:30:00'; expected ISO"),
        ("entity,as_of\nA,2024-02-30T14:30:00Z", "line 2: as_of is '2024-02-30T14:30:00Z'; expected ISO"),
        ("entity,as_of\nA,", "line 2: as_of is ''; expected ISO"),
        ("entity,as_of\nA,99999999999999999999", "line 2: as_of is '99999999999999999999'"),
        ("entity,as_of\n,5", "line 2: there is no entity"),
        ("entity,as_of\nA,5,6", "line 2: another number of fields than 2"),
    ],
)
def test_another_file_is_refused_with_its_line(lines: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "asks.csv").write_text(lines + "\n")
    with pytest.raises(ValueError, match=r"asks\.csv") as refused:
        read_moments(tmp_path / "asks.csv")
    assert sentence in str(refused.value)


def test_merged_tokens_end_at_decisions_and_not_at_moments() -> None:
    made = encode_market(source(events()), vocabulary(), max_seq_len=8)
    object.__setattr__(made, "merged", True)
    with pytest.raises(ValueError, match="as_of needs a model of one token an event"):
        at_moments(made, some_moments())
