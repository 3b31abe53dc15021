"""A row for every event, for every sequence: which there are, and that none of them knows what came later."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from small_market import bits, changed_after, encoded, events, model, work
from torch.testing import assert_close

from quantattn.data.units import Chosen, every_event, every_sequence
from quantattn.nn import Model


def embeddings(made: Chosen, of: Model, pooling: str = "last") -> list[bytes]:
    return bits(work(made), partial(of.embed, deterministic="batch", pooling=pooling))


def named(made: Chosen, rows: list[bytes]) -> dict[tuple[str, int], bytes]:
    keys = zip(made.entity, made.described["place"].tolist(), strict=True)
    return dict(zip(keys, rows, strict=True))


@pytest.mark.parametrize("causal", [True, False])
def test_every_event_is_one_row_with_its_times(causal: bool) -> None:
    frame = events()
    made = every_event(encoded(frame), causal)
    assert list(made.entity) == frame["entity"].to_list()
    assert made.as_of.tolist() == frame["available_time"].to_list()
    assert made.described["event_time"].tolist() == frame["event_time"].to_list()
    assert made.described["place"].tolist() == frame["seq"].to_list()
    seen = made.sequences.contexts
    full = np.minimum(made.described["place"] + 1, made.sequences.max_seq_len)
    assert (seen >= np.minimum(full, 12)).all()
    if not causal:
        assert (seen == full).all()


@pytest.mark.parametrize(("causal", "pooling"), [(True, "last"), (True, "mean"), (False, "mean")])
def test_a_row_of_an_event_depends_on_nothing_after_it(causal: bool, pooling: str) -> None:
    frame, of = events(), model(causal)
    short: dict[str, Any] = {} if causal else {"max_seq_len": 8, "min_context": 8}
    before = every_event(encoded(frame, **short), causal)
    time = int(np.sort(before.as_of)[len(before.as_of) // 2])
    after = every_event(encoded(changed_after(frame, time), **short), causal)
    one, other = (named(made, embeddings(made, of, pooling)) for made in (before, after))
    known = dict(zip(one, before.as_of.tolist(), strict=True))
    past = [key for key in one if known[key] <= time]
    assert len(past) > 100
    assert all(one[key] == other[key] for key in past)
    later = [key for key in other if key not in past]
    assert later
    assert not any(other[key] == one[key] for key in later), "the control: what came later is told apart"


def test_a_row_of_an_event_is_the_state_at_it() -> None:
    made, of = every_event(encoded(events()), True), model()
    cut = made.sequences
    rows = embeddings(made, of)
    for sequence in (0, len(cut) // 2, len(cut) - 1):
        batch = cut.pack([sequence])
        with torch.no_grad():
            hidden = of.encoder(batch)
        for key, position in zip(batch.keys.tolist(), batch.positions.tolist(), strict=True):
            row = torch.from_numpy(np.frombuffer(rows[key], np.float32).copy())
            assert_close(row, hidden[position], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_every_sequence_is_one_row_as_of_its_last_event_and_no_event_is_left_out(causal: bool) -> None:
    frame = events()
    made = every_sequence(encoded(frame))
    length = made.sequences.max_seq_len
    expected = frame.group_by("entity", pl.col("seq") // length, maintain_order=True).agg(
        as_of=pl.col("available_time").last(),
        since=pl.col("event_time").first(),
        event_time=pl.col("event_time").last(),
        place=pl.col("seq").last(),
        events=pl.len().cast(pl.Int64),
    )
    assert list(made.entity) == expected["entity"].to_list()
    assert made.as_of.tolist() == expected["as_of"].to_list()
    assert {name: column.tolist() for name, column in made.described.items()} == {
        name: expected[name].to_list() for name in ("event_time", "place", "since", "events")
    }
    of = model(causal)
    rows = embeddings(made, of, "mean")
    with torch.no_grad():
        whole = of.encoder(made.sequences.pack([1])).mean(0)
    assert_close(torch.from_numpy(np.frombuffer(rows[1], np.float32).copy()), whole, atol=1e-5, rtol=1e-5)


def test_merged_events_have_no_rows_of_their_own() -> None:
    made = encoded(events())
    object.__setattr__(made, "merged", True)
    for choose in (partial(every_event, causal=True), every_sequence):
        with pytest.raises(ValueError, match="needs a model of one token an event"):
            choose(made)
