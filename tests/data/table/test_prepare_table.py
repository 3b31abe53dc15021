"""From a table and its outcomes to sequences: nothing of the future, nothing of another part, every count accounted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from made_tables import DAY, likes, outcomes, source_of, write_events

from quantattn.data.prepared import PARTS
from quantattn.data.protocol import ByEntity, Intervals, WalkForward, perturb_future
from quantattn.data.sources.table import TableSource
from quantattn.data.table import Aggregates, TableTokenizer, prepare_table
from quantattn.data.table.encode import encode_table
from quantattn.data.table.outcomes import NO_EVENT
from quantattn.data.table.twins import TWINS, apart_from_twins, history_hashes, twins_check


@pytest.fixture
def source(tmp_path: Path) -> TableSource:
    write_events(tmp_path / "events.csv")
    return source_of(tmp_path / "events.csv")


def test_no_entity_is_in_two_parts_and_every_decision_in_one(source: TableSource, tmp_path: Path) -> None:
    made = prepare_table(source, label=likes(tmp_path))
    names = [set(made.entity[part].tolist()) for part in PARTS]
    assert sum(map(len, names)) == len(set.union(*names)) == made.counts["decisions"]
    assert made.audit.passed
    verdicts = {check.name: check.verdict for check in made.audit.checks}
    for name in ("same history in two parts", "entity and time in two parts", "input depends on the future"):
        assert verdicts[name] == "passed"
    for part in PARTS:
        sequences = getattr(made, part)
        assert len(sequences) == len(sequences.decisions) == len(made.entity[part])
        assert set(sequences.table.entities) == set(made.entity[part].tolist())


def test_every_token_of_a_sequence_was_known_before_the_date_of_its_outcome(
    source: TableSource, tmp_path: Path
) -> None:
    made = prepare_table(source, label=likes(tmp_path, date="day"))
    events = source.frame.collect()
    for part in PARTS:
        sequences, as_of = getattr(made, part), made.as_of[part]
        assert set(as_of.tolist()) == {50 * DAY}
        batch = sequences.pack(range(len(sequences)))
        assert int(batch.time.max()) < 50 * DAY
        known = events.filter(pl.col("entity").is_in(made.entity[part].tolist()), pl.col("available_time") < 50 * DAY)
        assert len(batch.time) == known.height, "and every event that was known is there"
    without = events.group_by("entity").agg(pl.col("available_time").min()).filter(pl.col("available_time") >= 50 * DAY)
    assert made.dropped.get(NO_EVENT, 0) == without.height


def test_another_future_changes_no_bit_of_what_is_prepared(source: TableSource, tmp_path: Path) -> None:
    label = likes(tmp_path, date="day")
    made = prepare_table(source, label=label)
    future = perturb_future(source.frame.collect(), 50 * DAY - 1, seed=3)
    other = prepare_table(replace(source, frame=future.lazy()), label=label)
    assert other.vocabulary_json == made.vocabulary_json
    for part in PARTS:
        mine, theirs = (getattr(each, part).pack(range(len(getattr(each, part)))) for each in (made, other))
        assert all(bool((mine.fields[name] == theirs.fields[name]).all()) for name in mine.fields)
        np.testing.assert_array_equal(made.baselines[part]["aggregates"], other.baselines[part]["aggregates"])


def test_tokens_are_fitted_on_training_entities_alone(source: TableSource, tmp_path: Path) -> None:
    label = likes(tmp_path)
    made = prepare_table(source, label=label)
    held_out = {*made.entity["valid"].tolist(), *made.entity["test"].tolist()}
    strange = source.frame.with_columns(
        amount=pl.when(pl.col("entity").is_in(held_out)).then(pl.col("amount") * 1000).otherwise("amount"),
        kind=pl.when(pl.col("entity").is_in(held_out)).then(pl.lit("new")).otherwise("kind"),
    )
    other = prepare_table(replace(source, frame=strange), label=label)
    assert other.vocabulary_json == made.vocabulary_json
    assert set(other.test.table.fields["kind_code"].tolist()) == {2}, "what training never saw is one value"


def test_twins_of_held_out_entities_are_not_trained_on(source: TableSource, tmp_path: Path) -> None:
    events = source.frame.collect()
    first = events.filter(pl.col("entity") == "e0").drop("entity")
    copies = [first.with_columns(entity=pl.lit(f"e{n}")).select(events.columns) for n in range(20)]
    both = pl.concat([*copies, events.filter(pl.col("entity").is_in([f"e{n}" for n in range(20, 40)]))])
    cloned = replace(source, frame=both.sort("entity", "available_time", "seq").lazy())
    made = prepare_table(cloned, label=likes(tmp_path))
    assert made.dropped[TWINS] > 0
    assert made.dropped[TWINS] + sum(len(made.entity[part]) for part in PARTS) == 40
    # The control: without the rule the same split does not pass.
    ordered = cloned.frame.collect()
    names, lengths = ordered["entity"].rle().struct.unnest().select("value", pl.col("len").cast(pl.Int64)).get_columns()
    row = lengths.cum_sum().to_numpy() - 1
    hashes = history_hashes(ordered, ("kind", "amount"), row + 1 - lengths.to_numpy(), row)
    time = np.zeros(len(row), np.int64)
    cut = ByEntity().split(Intervals(time, time, time, names.to_numpy()))[-1]
    failed = twins_check(cut, hashes, names)
    assert failed.verdict == "failed"
    assert "have the same events" in failed.sentence
    assert twins_check(apart_from_twins(cut, hashes)[0], hashes, names).verdict == "passed"


def test_aggregates_by_hand(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("who,day,kind,amount\na,0,x,1.00\na,1,y,\na,3,x,3.00\nb,5,,2.00\n")
    source = source_of(tmp_path / "t.csv")
    events = source.frame.collect()
    tokenizer = TableTokenizer.fit(events, source.columns, fields=["kind", "amount", "gap"], min_count=2)
    first, row = np.asarray([0, 0, 3]), np.asarray([1, 2, 3])
    found = Aggregates.of(events, tokenizer, first, row)
    values = dict(zip(found.names, found.values.T.tolist(), strict=True))
    assert values["events"] == [2, 3, 1]
    assert values["amount count"] == [1, 2, 1]
    assert values["amount sum"] == [100, 400, 200]
    assert values["amount mean"] == [100, 200, 200]
    assert values["amount std"] == [0, 100, 0]
    assert (values["amount min"], values["amount max"]) == ([100, 100, 200], [100, 300, 200])
    assert values["kind = x"] == [1, 2, 0]
    assert values["kind = other"] == [1, 1, 0], "y is too seldom for a code"
    assert values["kind = missing"] == [0, 0, 1]
    assert values["gap mean"][:2] == [DAY, 1.5 * DAY]
    assert np.isnan(values["gap mean"][2]), "the only event of an entity has no gap"


def test_long_histories_keep_their_end_and_the_count_says_so(source: TableSource, tmp_path: Path) -> None:
    whole = prepare_table(source, label=likes(tmp_path))
    short = prepare_table(source, label=likes(tmp_path), max_seq_len=4)
    assert short.counts["histories longer than a sequence"] == sum(
        int((getattr(whole, part).contexts > 4).sum()) for part in PARTS
    )
    for part in PARTS:
        mine, theirs = getattr(short, part), getattr(whole, part)
        np.testing.assert_array_equal(mine.stop, theirs.stop)
        np.testing.assert_array_equal(mine.lengths, np.minimum(theirs.lengths, 4))
        np.testing.assert_array_equal(short.baselines[part]["aggregates"], whole.baselines[part]["aggregates"])


def test_a_split_in_time_trains_on_earlier_dates(source: TableSource, tmp_path: Path) -> None:
    lines = [f"e{n},{20 + 2 * n},{'a' if n % 2 else 'b'}" for n in range(40)]
    made = prepare_table(source, label=outcomes(tmp_path, lines, date="day"), split=WalkForward())
    assert made.as_of["train"].max() < made.as_of["valid"].min() <= made.as_of["valid"].max() < made.as_of["test"].min()
    assert {c.name: c.verdict for c in made.audit.checks}["train after test"] == "passed"
    late = prepare_table(source, label=outcomes(tmp_path, lines, date="day", horizon="5d"), split=WalkForward())
    assert late.as_of["train"].max() + 5 * DAY < late.as_of["valid"].min(), "outcomes not known yet are not trained on"
    assert late.dropped["purged"] > 0


def test_without_outcomes_every_entity_is_there_to_predict_its_events(source: TableSource) -> None:
    made = prepare_table(source, objective="masked", layout="windows", max_seq_len=8)
    assert sum(len(getattr(made, part).table) for part in PARTS) == source.report.rows_read
    assert (made.classes, dict(made.baselines)) == ((), {})


def test_the_same_settings_give_the_same_hashes_and_another_seed_another_deal(
    source: TableSource, tmp_path: Path
) -> None:
    label = likes(tmp_path)
    one, again, other = (prepare_table(source, label=label, split=ByEntity(seed=seed)) for seed in (0, 0, 1))
    assert one.hashes == again.hashes
    assert one.entity["test"].tolist() == again.entity["test"].tolist() != other.entity["test"].tolist()


def test_scoring_encodes_every_entity_as_of_its_last_event(source: TableSource, tmp_path: Path) -> None:
    made = prepare_table(source, label=likes(tmp_path))
    found = encode_table(source, made.vocabulary_json)
    last = source.frame.collect().group_by("entity").agg(pl.col("available_time").max()).sort("entity")
    assert list(found.entity) == last["entity"].to_list()
    assert found.as_of.tolist() == last["available_time"].to_list()
    where = {name: n for n, name in enumerate(found.entity)}
    ours = found.sequences.pack([where[name] for name in made.entity["test"].tolist()])
    theirs = made.test.pack(range(len(made.test)))
    assert all(bool((ours.fields[name] == theirs.fields[name]).all()) for name in theirs.fields)
    thousandths = source_of(tmp_path / "events.csv", columns={"kind": "category", "amount": "decimal3"})
    with pytest.raises(ValueError, match="the tokens were fitted on decimal"):
        encode_table(thousandths, made.vocabulary_json)


def test_what_cannot_be_learned_is_said(source: TableSource, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of 1 outcomes can be used: no event before the label"):
        prepare_table(source, label=outcomes(tmp_path, ["e1,0,a"], date="day", classes={"a": ["a"], "b": ["b"]}))
    (lonely, *_) = prepare_table(source, label=likes(tmp_path)).entity["test"].tolist()
    one = [f"e{n},50,{'b' if f'e{n}' == lonely else 'a'}" for n in range(40)]
    with pytest.raises(ValueError, match=r"every one of the \d+ training decisions is 'a': nothing can be learned"):
        prepare_table(source, label=outcomes(tmp_path, one))
    with pytest.raises(ValueError, match="a table needs labels=outcome"):
        prepare_table(source)
    future = source.frame.with_columns(event_time=pl.col("available_time") + 1)
    with pytest.raises(ValueError, match="available_not_before_event"):
        prepare_table(replace(source, frame=future), label=likes(tmp_path))
