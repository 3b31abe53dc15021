"""Merged events of a market: decisions keep their rows, times and labels, and no token knows what comes after one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

import quantattn.data.market.merged as merged
import quantattn.data.market.prepare as prepare
from quantattn.data.carried import TokenVectors
from quantattn.data.market.encode import decision_rows, encode_market, token_table
from quantattn.data.market.merged import MergedTokens, with_merges
from quantattn.data.market.prepare import check_market, prepare_market
from quantattn.data.merges import EVENT
from quantattn.data.pack import TokenTable
from quantattn.data.prepared import PARTS, Prepared
from quantattn.data.protocol import LeakError, MidLabel, perturb_future
from quantattn.data.sources.source import Source
from quantattn.data.synthetic import SyntheticMarket
from quantattn.data.tokens import FORMAT, FORMAT_WITH_MERGES, Tokenizer

MARKET = SyntheticMarket(entities=3, events_per_entity=3_000, seed=2)
PLAIN: dict[str, Any] = {"label": MidLabel(20), "decision_every": 10, "max_seq_len": 64, "n_bins": 4}
JOINED: dict[str, Any] = {**PLAIN, "joint": ["kind", "side", "size"], "merges": 40}


@pytest.fixture(scope="module")
def source() -> Source:
    made = MARKET.source()
    return replace(made, frame=made.frame.collect().lazy())


@pytest.fixture(scope="module")
def events(source: Source) -> pl.DataFrame:
    return source.frame.collect()


@pytest.fixture(scope="module")
def plain(source: Source) -> Prepared:
    return prepare_market(source, **PLAIN)


@pytest.fixture(scope="module")
def joined(source: Source) -> Prepared:
    return prepare_market(source, **JOINED)


def test_decisions_are_the_same_and_tokens_are_fewer(plain: Prepared, joined: Prepared) -> None:
    for part in PARTS:
        one, other = getattr(plain, part), getattr(joined, part)
        assert joined.as_of[part].tolist() == plain.as_of[part].tolist()
        assert joined.entity[part].tolist() == plain.entity[part].tolist()
        assert other.decisions.targets["label"].tolist() == one.decisions.targets["label"].tolist()
        for name, baseline in plain.baselines[part].items():
            np.testing.assert_array_equal(joined.baselines[part][name], baseline)
        # The token of a decision is known at the decision, and ends with its event.
        assert other.table.time[other.decisions.row].tolist() == plain.as_of[part].tolist()
        assert len(other.table) < 0.8 * len(one.table)
        assert EVENT in other.table.fields
        assert not {"kind_code", "side_code", "size_code"} & {*other.table.fields}
    names = {"price_code", "gap_value", "size_value"}
    assert names <= {*joined.train.table.fields}
    assert joined.codes[EVENT] == 2 + len(json.loads(joined.vocabulary_json)["merges"]["types"]) + 40
    assert int(joined.train.table.fields[EVENT].max()) < joined.codes[EVENT]
    assert {each.name for each in joined.audit.checks} >= {merged.MERGED_LEAK}


def test_tokens_say_the_events_of_the_table(plain: Prepared, joined: Prepared) -> None:
    """Back from merged tokens to the codes of each event, and every other column is that of the token's last event."""
    tokenizer = Tokenizer.from_json(joined.vocabulary_json)
    assert tokenizer.merges is not None
    table, single = joined.train.table, plain.train.table
    codes = np.asarray(table.fields[EVENT], np.int64)
    told = tokenizer.merges.to_rows(tokenizer.merges.decode(codes))
    unseen = tokenizer.merges.decode(codes) == 0
    for name, column in told.items():
        there = single.fields[f"{name}_code"].astype(np.int64)
        np.testing.assert_array_equal(column, np.where(unseen, 0, there))
    last = np.cumsum(tokenizer.merges.lengths[codes]) - 1
    np.testing.assert_array_equal(table.time, single.time[last])
    np.testing.assert_array_equal(table.fields["gap_value"], single.fields["gap_value"][last])
    assert single.offsets[1:].tolist() == (last[table.offsets[1:] - 1] + 1).tolist()


def test_another_future_leaves_every_decision_before_it_untouched(
    source: Source, events: pl.DataFrame, joined: Prepared
) -> None:
    """Tokens up to a decision keep their bits when any later event changes, in scoring too."""
    as_of = int(joined.as_of["train"][len(joined.as_of["train"]) // 2])
    other = replace(source, frame=perturb_future(events, as_of, seed=3).lazy())
    one, two = (encode_market(each, joined.vocabulary_json, decision_every=10) for each in (source, other))
    checked = 0
    for entity in range(3):
        upto = []
        for made in (one, two):
            table, row = made.sequences.table, made.sequences.decisions.row
            own = row[(table.entity_of(row) == entity) & (made.as_of <= as_of)]
            first = int(table.offsets[entity])
            upto.append({name: column[first : int(own[-1]) + 1] for name, column in table.fields.items()})
            checked += len(own)
        for name, column in upto[0].items():
            np.testing.assert_array_equal(column, upto[1][name], err_msg=name)
    assert checked > 100


def test_scoring_sees_the_tokens_of_training(source: Source, joined: Prepared) -> None:
    made = encode_market(source, joined.vocabulary_json, decision_every=10, max_seq_len=64)
    for name, column in joined.train.table.fields.items():
        np.testing.assert_array_equal(made.sequences.table.fields[name], column)
    with pytest.raises(ValueError, match="each event is a decision"):
        encode_market(source, joined.vocabulary_json)


def test_tokens_that_are_not_cut_at_decisions_fail_the_run(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stretch that goes on beyond a decision: its row is in the middle of a token, or the audit sees the future."""

    def every_other(table: TokenTable, decisions: np.ndarray) -> np.ndarray:
        stop = np.zeros(len(table), np.bool_)
        stop[table.offsets[1:] - 1] = True
        stop[decisions[1::2]] = True
        return stop

    monkeypatch.setattr(merged, "stretch_ends", every_other)
    with pytest.raises((LeakError, ValueError), match=r"depends on the future|lies within a token"):
        prepare_market(source, **JOINED)
    # Even where no decision lies within a token, the past may not know of the future.
    monkeypatch.setattr(MergedTokens, "rows", lambda self, events: np.searchsorted(self.last, events))
    with pytest.raises(LeakError, match="merged token depends on the future"):
        prepare_market(source, **JOINED)


def test_merges_see_training_rows_alone(source: Source, events: pl.DataFrame, joined: Prepared) -> None:
    """Another future, the same vocabulary; and it is the one of the run."""
    until = int(joined.as_of["train"].max())
    fitted = Tokenizer.from_json(joined.vocabulary_json)
    assert fitted.fitted_until == until + 1
    for frame in (events, perturb_future(events, until, seed=1)):
        seen = (frame["available_time"] <= until).to_numpy()
        decisions = decision_rows(frame, 10)
        again = with_merges(replace(fitted, merges=None), frame, seen, decisions, JOINED["joint"], JOINED["merges"])
        assert again == fitted


def test_a_joint_vocabulary_alone_keeps_one_token_an_event(source: Source, plain: Prepared) -> None:
    made = prepare_market(source, **{**JOINED, "merges": 0, "decision_every": 1})
    assert len(made.train.table) == len(plain.train.table)
    tokenizer = Tokenizer.from_json(made.vocabulary_json)
    assert tokenizer == Tokenizer.from_json(tokenizer.to_json())
    assert json.loads(tokenizer.to_json())["format"] == FORMAT_WITH_MERGES
    assert json.loads(plain.vocabulary_json)["format"] == FORMAT
    for name in ("kind", "side", "size"):
        assert f"{name}_code" not in made.codes
    with pytest.raises(ValueError, match="has format 2"):
        Tokenizer.from_json(tokenizer.to_json().replace(f'"format": {FORMAT_WITH_MERGES}', f'"format": {FORMAT}'))


def test_a_token_with_a_vector_says_one_event(source: Source, events: pl.DataFrame, joined: Prepared) -> None:
    tokenizer = Tokenizer.from_json(joined.vocabulary_json)
    table = token_table(events, tokenizer)
    rows = np.asarray([0, 17, 18, 4_000, len(table) - 1])
    carried = replace(table, vectors={"filing": TokenVectors(rows, np.arange(10, dtype=np.float32).reshape(5, 2))})
    made = MergedTokens.of(carried, tokenizer, decision_rows(events, 10))
    place = made.table.vectors["filing"].rows
    assert made.last[place].tolist() == rows.tolist()
    assert tokenizer.merges is not None
    assert set(tokenizer.merges.lengths[np.asarray(made.table.fields[EVENT], np.int64)[place]]) == {1}


def test_settings_that_cannot_be_honest_are_refused(source: Source) -> None:
    with pytest.raises(ValueError, match="each event is a decision"):
        check_market(joint=["kind"], merges=5)
    with pytest.raises(ValueError, match="say with joint"):
        check_market(merges=5, decision_every=10)
    with pytest.raises(ValueError, match="joint must be some of"):
        check_market(joint=["colour"], decision_every=10)
    check_market(joint=["kind"], merges=5, decision_kinds=[4])
    check_market(joint=["kind"])
    with pytest.raises(ValueError, match="joint has volume, but the tokens have"):
        prepare.prepare_market(source, **{**JOINED, "joint": ["kind", "volume"]})
