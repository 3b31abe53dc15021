"""Rows of several pieces: what is said of a long filing is the mean over its windows, and no shard cuts one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest
import torch

from quantattn.data.pack import Decisions, SequenceSet, TokenTable
from quantattn.nn import Encoder, Model, Outcome
from quantattn.score import Embeddings, Output, Scores, Work, Worker, make_plan, score

LENGTHS = (3, 5, 4, 1, 6, 2)
ROW = np.array([0, 0, 1, 2, 2, 2])


def work(row: Any = ROW) -> Work:
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int64)
    codes = np.random.default_rng(0).integers(2, 6, offsets[-1])
    table = TokenTable({"code": codes}, np.arange(offsets[-1]), offsets, tuple("abcdef"))
    sequences = SequenceSet(table, Decisions(offsets[1:] - 1), 8, "document")
    rows = 6 if row is None else 3
    described = {"item": (None, *["1A"] * (rows - 1)), "tokens": np.arange(rows)}
    return Work(sequences, np.arange(rows), ["E"] * rows, {}, {}, row, described)


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(1)
    return Model(Encoder("tiny", codes={"code": 6}, n_layers=1, width=8, n_heads=2, hidden=8))


MEAN = Embeddings("mean")


def table_of(model: Model, out: Path, given: Work, shard: int = 1, output: Output = Scores()) -> pl.DataFrame:  # noqa: B008  a frozen value
    plan = make_plan(given, "m", shard)
    assert score(Worker(model, given, plan, 16, deterministic="batch", output=output), out)
    return pl.read_delta(str(out)).sort("key")


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_row_is_the_mean_of_its_pieces_by_their_tokens(
    model: Model, tmp_path: Path, pooling: Literal["mean", "last"]
) -> None:
    alone = table_of(model, tmp_path / "alone", work(None), output=Embeddings(pooling))
    pieces = np.stack(alone["embedding"].to_numpy())
    rows = table_of(model, tmp_path / "rows", work(), output=Embeddings(pooling))
    assert rows["key"].to_list() == [0, 1, 2]
    assert rows["item"].to_list() == [None, "1A", "1A"]
    assert rows["tokens"].to_list() == [0, 1, 2]
    found = np.stack(rows["embedding"].to_numpy())
    weight = np.array(LENGTHS, float)[:, None]
    for number in range(3):
        own = number == ROW
        np.testing.assert_allclose(found[number], (weight * pieces)[own].sum(0) / weight[own].sum(), rtol=1e-6)
    assert found[1].tobytes() == pieces[2].tobytes()  # a row of one piece keeps its bits


def test_mean_pooling_is_the_mean_of_the_states(model: Model, tmp_path: Path) -> None:
    given = work(None)
    found = np.stack(table_of(model, tmp_path / "out", given, output=MEAN)["embedding"].to_numpy())
    batch = given.sequences.pack([1])
    with torch.no_grad():
        np.testing.assert_allclose(found[1], model.encoder(batch).mean(0).numpy(), atol=1e-6)
    with pytest.raises(ValueError, match="pooling of embeddings must be last or mean, got 'attention'"):
        model.embed(batch, pooling="attention")  # type: ignore[arg-type]


def test_probabilities_of_pieces_are_averaged_too(model: Model, tmp_path: Path) -> None:
    torch.manual_seed(2)
    judging = Model(model.encoder, Outcome().heads(model.encoder.config, ("down", "up")))
    alone, rows = (table_of(judging, tmp_path / str(i), each) for i, each in enumerate((work(None), work())))
    weight = np.array(LENGTHS[3:], float)
    expected = (weight * alone["prob_1"].to_numpy()[3:]).sum() / weight.sum()
    assert rows["prob_1"][2] == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose((rows["prob_0"] + rows["prob_1"]).to_numpy(), 1.0, atol=1e-6)


def test_no_shard_cuts_a_row_and_none_changes_a_bit(model: Model, tmp_path: Path) -> None:
    for size, expected in ((1, [2, 3, 6]), (3, [3, 6]), (100, [6])):
        assert [shard.last for shard in make_plan(work(), "m", size).shards] == expected
    fine = table_of(model, tmp_path / "fine", work(), 1, output=MEAN)
    coarse = table_of(model, tmp_path / "coarse", work(), 100, output=MEAN)
    assert fine["embedding"].to_list() == coarse["embedding"].to_list()


@pytest.mark.parametrize("row", [[1, 1, 2, 3, 3, 3], [0, 0, 2, 2, 2, 2], [0, 1, 0, 1, 2, 2], [0, 1]])
def test_rows_that_skip_or_turn_back_are_refused(row: list[int]) -> None:
    with pytest.raises(ValueError, match="must go up from 0 in steps of at most one"):
        work(np.array(row))
    with pytest.raises(ValueError, match="6 decisions make 2 rows, but as_of has 3"):
        work(np.array([0, 0, 0, 0, 0, 1]))


def test_a_shard_ends_as_soon_as_it_is_full_and_no_row_is_cut() -> None:
    """Random windows, some without a decision, and rows of random pieces, against each sequence looked at in turn."""
    rng = np.random.default_rng(0)
    for turn in range(60):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 9, 8))])
        table = TokenTable({"code": np.arange(offsets[-1])}, np.arange(offsets[-1]), offsets, tuple("abcdefgh"))
        row = np.sort(rng.permutation(offsets[-1])[: int(rng.integers(1, offsets[-1] + 1))])
        sequences = SequenceSet(table, Decisions(row), 3, "windows")
        pieces = np.cumsum(np.append(0, rng.random(len(row) - 1) < 0.5)) if turn % 2 else None
        rows = len(row) if pieces is None else int(pieces[-1]) + 1
        least, expected, begin = int(rng.integers(1, 9)), [], 0
        first = sequences.first.tolist()
        for end in range(1, len(sequences) + 1):
            cut = pieces is not None and 0 < first[end] < len(row) and pieces[first[end] - 1] == pieces[first[end]]
            if (first[end] - first[begin] >= least and not cut) or (
                end == len(sequences) and first[end] > first[begin]
            ):
                expected.append((begin, end, first[end] - first[begin]))
                begin = end
        made = make_plan(Work(sequences, np.arange(rows), ["E"] * rows, {}, {}, pieces), "m", least)
        assert [(shard.first, shard.last, shard.decisions) for shard in made.shards] == expected
        assert [shard.name for shard in made.shards] == [f"shard-{n:06d}" for n in range(len(expected))]
