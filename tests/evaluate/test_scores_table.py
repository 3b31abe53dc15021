"""Tables of scores as they come: formats, types of times, what is counted and what is refused."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from quantattn.evaluate.scores import Columns, read_scores, scan_table, with_outcomes

NANO = 1_704_067_200 * 10**9  # 2024-01-01


def frame(**columns) -> pl.DataFrame:
    rows = {
        "entity": ["a", "b", "a", "b"],
        "time": [date(2024, 1, 1)] * 2 + [date(2024, 1, 2)] * 2,
        "score": [1.0, 2.0, 3.0, 4.0],
        "outcome": [0.1, -0.1, None, 0.2],
    }
    return pl.DataFrame({name: value for name, value in {**rows, **columns}.items() if value is not None})


@pytest.mark.parametrize("form", ["parquet", "csv", "delta", "folder"])
def test_every_format_reads_the_same(tmp_path: Path, form: str) -> None:
    place = tmp_path / {"parquet": "s.parquet", "csv": "s.csv"}.get(form, "s")
    if form == "delta":
        pytest.importorskip("deltalake", reason="deltalake is not installed")
        frame().write_delta(str(place))
    elif form == "folder":
        place.mkdir()
        frame()[:2].write_parquet(place / "0.parquet")
        frame()[2:].write_parquet(place / "1.parquet")
    else:
        getattr(frame(), f"write_{form}")(place)
    found = read_scores(scan_table(place), "return")[1]
    assert found.data.times.tolist() == [NANO, NANO + 86_400 * 10**9]
    assert found.score.tolist() == [1, 2, 3, 4]
    assert found.data.outcome.tolist()[:2] == [0.1, -0.1]
    assert np.isnan(found.data.outcome[2])


def test_times_of_every_type_are_nanoseconds_utc() -> None:
    east = timezone(timedelta(hours=2))
    for time in (
        pl.Series([datetime(2024, 1, 1)] * 2, dtype=pl.Datetime("ms")),
        pl.Series([datetime(2024, 1, 1, 2, tzinfo=east)] * 2).dt.convert_time_zone("Europe/Helsinki"),
        pl.Series([NANO] * 2),
    ):
        assert read_scores(frame()[:2].with_columns(time.alias("time")), "value")[1].data.times.tolist() == [NANO]
    with pytest.raises(ValueError, match="'time' holds 1704067200; whole numbers are nanoseconds UTC"):
        read_scores(frame(time=[1_704_067_200] * 4), "value")
    with pytest.raises(ValueError, match="'time' is String, expected a date, a datetime or whole nanoseconds"):
        read_scores(frame(time=["yesterday"] * 4), "value")


def test_rows_that_lack_something_are_counted() -> None:
    found = read_scores(frame(entity=["a", None, "a", "b"], score=[1.0, 1, None, float("nan")]), "return")[1]
    assert (found.rows, dict(found.dropped), found.data.at.size) == (4, {"no entity": 1, "no score": 2}, 1)
    with pytest.raises(ValueError, match="none of the 4 rows has an entity, a time and a score"):
        read_scores(frame(score=[None] * 4), "return")


def test_horizons_are_told_apart() -> None:
    found = read_scores(frame(horizon=[5, 5, 2, 2]), "return", Columns(horizon="horizon"))
    assert list(found) == [2, 5]
    assert [part.data.horizon for part in found.values()] == [2, 5]
    assert read_scores(frame(), "return", horizon=3)[3].data.known.tolist() == [2, 2, 2, 2]
    end = frame(end=[date(2024, 1, 2)] * 2 + [date(2024, 1, 9)] * 2)
    assert read_scores(end, "return", Columns(end="end"))[1].data.known.tolist() == [1, 1, 2, 2]


def test_when_an_outcome_was_known_has_to_be_said_where_times_are_not_shared() -> None:
    apart = frame(time=[date(2024, 1, day) for day in (1, 2, 3, 4)])
    with pytest.raises(ValueError, match="4 rows of 2 entities lie at 4 times, which they do not share: say when"):
        read_scores(apart, "value")
    assert read_scores(apart, "value", horizon=2)[2].data.horizon == 2
    with pytest.raises(ValueError, match="horizon must be 1 step or more, got 0"):
        read_scores(apart, "value", horizon=0)
    with pytest.raises(ValueError, match="give one of horizon, end and steps"):
        read_scores(frame(end=[date(2024, 1, 9)] * 4), "value", Columns(end="end"), horizon=2)
    assert read_scores(apart.filter(pl.col("entity") == "a"), "value")[1].data.horizon == 1


def test_classes_by_name_or_number() -> None:
    prob = {"prob_down": [0.5, 0.2, 0.1, 0.3], "prob_up": [0.5, 0.8, 0.9, 0.7], "score": None}
    for outcome in (["up", "down", None, "up"], [1, 0, None, 1]):
        found = read_scores(frame(**prob, outcome=outcome), "class")[1]
        assert (found.classes, found.score.shape) == (("down", "up"), (4, 2))
        assert found.data.outcome.tolist()[:2] == [1, 0]
    with pytest.raises(ValueError, match="'outcome' holds 'sideways', expected one of down, up or its number"):
        read_scores(frame(**prob, outcome=["up", "sideways", None, "up"]), "class")
    with pytest.raises(ValueError, match=r"the probabilities of row 1 are \[0\.5, 0\.8\]"):
        read_scores(frame(**{**prob, "prob_down": [0.5, 0.5, 0.1, 0.3]}, outcome=[1, 0, 1, 1]), "class")
    with pytest.raises(ValueError, match="kind=class takes no scores of other methods beside, got rival"):
        read_scores(frame(**prob, outcome=[1, 0, 1, 1], rival=[1.0] * 4), "class", Columns(beside=("rival",)))
    with pytest.raises(ValueError, match="kind=class needs two columns prob_<class> or more"):
        read_scores(frame(outcome=[1, 0, 1, 1]), "class")


def test_outcomes_of_another_table_are_joined() -> None:
    scores = frame(outcome=None)
    after = pl.DataFrame({"entity": ["b", "a"], "time": [NANO, NANO], "outcome": [7.0, 8.0], "volume": [1.0, 2.0]})
    found = read_scores(
        with_outcomes(scores.lazy(), after.lazy(), Columns(volume="volume")), "return", Columns(volume="volume")
    )[1]
    assert found.data.outcome.tolist()[:2] == [8, 7]
    assert np.isnan(found.data.outcome[2:]).all()
    assert found.volume is not None
    assert found.volume.tolist()[:2] == [2, 1]
    both = pl.concat([after.with_columns(horizon=pl.lit(h), outcome=pl.col("outcome") * h) for h in (1, 3)])
    named = Columns(horizon="horizon")
    joined = read_scores(with_outcomes(scores.lazy(), both.lazy(), named), "return", named)
    assert {h: part.data.outcome.tolist()[:2] for h, part in joined.items()} == {1: [8, 7], 3: [24, 21]}
    for theirs, sentence in (
        (pl.concat([after, after]), "4 rows that share entity, time"),
        (after.drop("time"), "joined by entity and time; 'time' lacks"),
        (after.drop("outcome"), "'outcome' must stand in the outcomes"),
    ):
        with pytest.raises(ValueError, match=sentence):
            with_outcomes(scores.lazy(), theirs.lazy(), Columns())


@pytest.mark.parametrize(
    ("columns", "named", "sentence"),
    [
        ({"score": None}, Columns(), "the table has no column 'score'; it has entity, time, outcome"),
        ({"score": ["x"] * 4}, Columns(), "'score' is String, expected numbers"),
        ({"score": [1.0, np.inf, 1, 1]}, Columns(), "'score' is infinite in row 1"),
        ({"entity": ["a"] * 4}, Columns(), "entity a stands twice at time 1704067200000000000"),
        ({"rival": [1.0, None, 1, None]}, Columns(beside=("rival",)), "'rival' has no score in 2 rows"),
        (
            {"there": [date(2024, 1, 1)] * 3 + [date(2024, 1, 3)]},
            Columns(available="there"),
            "a leak: 1 scores were available after the time at which they are used, the first in row 3",
        ),
        ({"there": [None, *[date(2024, 1, 1)] * 3]}, Columns(available="there"), "'there' is missing in 1 rows"),
        ({"history": [1.0] * 4}, Columns(beside=("history",)), "'history' is what the page calls a method of its own"),
        ({"h": [1, None, 1, 1]}, Columns(horizon="h"), "'h' must hold whole steps in every row"),
        ({"end": [date(2024, 1, 1)] * 4}, Columns(end="end"), "ends at 1704067200000000000, expected later"),
        ({"mood": ["x", "y", "x", "x"]}, Columns(regime="mood"), "is in two regimes, 'x' and 'y'"),
    ],
)
def test_bad_tables_are_one_sentence(columns, named: Columns, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_scores(frame(**columns), "return", named)


def test_bad_places_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "s.xlsx").write_text("x")
    for place, sentence in (
        ("nothing.parquet", "there is no such file or folder"),
        ("s.xlsx", r"ends in '\.xlsx', expected \.parquet"),
        (".", r"is a folder without \*\.parquet and without a Delta log"),
    ):
        with pytest.raises(ValueError, match=sentence):
            scan_table(tmp_path / place)


def test_what_is_broken_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match="the table cannot be read: "):
        read_scores(scan_table(tmp_path / "broken.parquet"), "return")
    with pytest.raises(ValueError, match="the table cannot be read: "):
        with_outcomes(frame().lazy(), scan_table(tmp_path / "broken.parquet"), Columns())
    frame().write_parquet(tmp_path / "cut.parquet")
    whole = (tmp_path / "cut.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(b"\0" * (len(whole) // 2) + whole[len(whole) // 2 :])
    with pytest.raises(ValueError, match="the table cannot be read: "):
        read_scores(scan_table(tmp_path / "cut.parquet"), "return")
