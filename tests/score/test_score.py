"""One row a decision, once, the same whatever happened on the way."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from arro3.core import Array
from polars.testing import assert_frame_equal

from quantattn.data.pack import Decisions, SequenceSet, TokenTable
from quantattn.nn import Encoder, Model, Outcome
from quantattn.score import Scores, Work, Worker, make_plan, score, sink
from quantattn.score.sink import DeltaSink

N, LENGTH = 23, 7
CLASSES = ("down", "up")


def work(**changes: Any) -> Work:
    rng = np.random.default_rng(0)
    table = TokenTable(
        {"code": rng.integers(2, 6, N * LENGTH)},
        np.arange(N * LENGTH, dtype=np.int64) * 10,
        np.arange(N + 1, dtype=np.int64) * LENGTH,
        tuple(f"E{i:02d}" for i in range(N)),
    )
    row = np.sort(rng.permutation(N * LENGTH)[: 3 * N]).astype(np.int64)
    sequences = SequenceSet(table, Decisions(row), LENGTH, "each")
    names = [table.entities[e] for e in table.entity_of(row)]
    given = {"sequences": sequences, "as_of": table.time[row], "entity": names, "hashes": {"file": "a"}, "settings": {}}
    return Work(**(given | changes))


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(1)
    encoder = Encoder("tiny", codes={"code": 6}, n_layers=1, width=8, n_heads=2, hidden=8)
    made = Model(encoder, Outcome().heads(encoder.config, CLASSES))
    for parameter in made.heads.parameters():
        torch.nn.init.normal_(parameter)
    return made


def run(model: Model, out: Path, *, given: Work | None = None, sha: str = "m", **options: Any) -> bool:
    given = given or work()
    plan = make_plan(given, sha, options.pop("shard", 10), options.pop("policy", None))
    told = {name: options.pop(name) for name in ("watch", "stop") if name in options}
    return score(
        Worker(model, given, plan, options.pop("max_tokens", 40), output=Scores(CLASSES), **options), out, **told
    )


def read(out: Path) -> pl.DataFrame:
    return pl.read_delta(str(out)).sort("key")


def test_one_row_a_decision_with_the_model_s_own_probabilities(model: Model, tmp_path: Path) -> None:
    given = work()
    assert run(model, tmp_path / "out")
    table = read(tmp_path / "out")
    assert table.columns == ["entity", "as_of", "key", "prob_down", "prob_up", "model_sha", "plan_sha"]
    assert table["key"].to_list() == list(range(3 * N))
    assert table["entity"].to_list() == list(given.entity)
    assert table["as_of"].to_list() == given.as_of.tolist()
    one = given.sequences.pack([17])
    np.testing.assert_allclose(
        table.filter(pl.col("key") == 17)["prob_up"].to_numpy(), model.score(one)["prob"][:, 1].numpy(), atol=1e-6
    )


def test_shards_cover_every_decision_once() -> None:
    given = work()
    for size in (1, 7, 10, 1000):
        plan = make_plan(given, "m", size)
        edges = [shard.first for shard in plan.shards] + [plan.shards[-1].last]
        assert edges == sorted(set(edges))
        assert (edges[0], edges[-1]) == (0, len(given.sequences))
        assert [shard.last for shard in plan.shards] == edges[1:]


def test_by_batch_no_budget_and_no_shard_changes_a_bit(model: Model, tmp_path: Path) -> None:
    tables, bits = [], []
    for i, (tokens, shard) in enumerate([(7, 30), (40, 10), (100_000, 1000)]):
        run(model, tmp_path / str(i), max_tokens=tokens, shard=shard, deterministic="batch")
        tables.append(read(tmp_path / str(i)).select("key", "prob_up", "prob_down"))
        bits.append(tables[-1]["prob_up"].to_numpy().tobytes() + tables[-1]["prob_down"].to_numpy().tobytes())
    assert bits[0] == bits[1] == bits[2]
    assert len(tables[0]) == 3 * N


@pytest.mark.parametrize("stop_after", [0, 1, 3])
def test_a_stopped_job_goes_on_and_equals_one_that_was_not(model: Model, tmp_path: Path, stop_after: int) -> None:
    run(model, tmp_path / "whole")
    asked = iter(range(100))
    assert not run(model, tmp_path / "parts", stop=lambda: next(asked) >= stop_after)
    seen: list[int] = []
    assert run(model, tmp_path / "parts", watch=lambda at: seen.append(at.found))
    assert seen[-1] == sum(s.last - s.first for s in make_plan(work(), "m", 10).shards[:stop_after])
    assert_frame_equal(read(tmp_path / "whole"), read(tmp_path / "parts"), check_exact=True)
    assert run(model, tmp_path / "parts")
    assert read(tmp_path / "parts").height == 3 * N


def test_a_shard_that_crashed_half_way_is_written_once(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crash comes between the commit and whatever would have remembered it elsewhere."""
    original = DeltaSink.write

    def crash(self: DeltaSink, shard: str, columns: Any) -> None:
        original(self, shard, columns)
        if shard == "shard-000002":
            raise KeyboardInterrupt

    monkeypatch.setattr(DeltaSink, "write", crash)
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path / "out")
    monkeypatch.setattr(DeltaSink, "write", original)
    assert run(model, tmp_path / "out")
    assert read(tmp_path / "out")["key"].to_list() == list(range(3 * N))


def test_a_job_that_was_killed_before_its_first_shard_was_in_the_table_goes_on(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crash comes after the rows were written and before the table's log names them."""
    out, original = tmp_path / "out", sink.write_deltalake

    def crash(*given: Any, **named: Any) -> None:
        (out / "part-00000-0-c000.snappy.parquet").write_bytes(b"PAR1")
        raise KeyboardInterrupt

    monkeypatch.setattr(sink, "write_deltalake", crash)
    with pytest.raises(KeyboardInterrupt):
        run(model, out)
    monkeypatch.setattr(sink, "write_deltalake", original)
    assert run(model, out)
    assert read(out)["key"].to_list() == list(range(3 * N))


def test_a_disk_that_is_full_is_told_of_in_one_plain_sentence(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **named: Any) -> None:
        raise OSError("Unable to copy \x1b[31m↳\x1b[0m No space left on device")

    monkeypatch.setattr(sink, "write_deltalake", full)
    with pytest.raises(RuntimeError, match=r"^shard-000000 could not be added to .*out: Unable to copy ↳ No space"):
        run(model, tmp_path / "out")


def test_a_log_without_a_version_is_an_empty_folder(model: Model, tmp_path: Path) -> None:
    (tmp_path / "out" / "_delta_log").mkdir(parents=True)
    (tmp_path / "out" / "_delta_log" / "_commit_0.json.tmp").touch()
    assert run(model, tmp_path / "out")


def test_the_sink_takes_a_shard_once(tmp_path: Path) -> None:
    rows = {"key": Array.from_numpy(np.arange(3))}
    for _ in range(2):
        DeltaSink(tmp_path / "out", make_plan(work(), "m", 10)).write("shard-0", rows)
    DeltaSink(tmp_path / "out", make_plan(work(), "m", 10)).write("shard-1", rows)
    assert read(tmp_path / "out").height == 6


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (work(), {"sha": "another model"}),
        (work(hashes={"file": "b"}), {}),
        (work(settings={"max_seq_len": 8}), {}),
        (work(), {"shard": 11}),
        (work(), {"policy": {"deterministic": "batch"}}),
    ],
)
def test_another_plan_is_refused_and_changes_nothing(
    model: Model, tmp_path: Path, given: Work, options: dict[str, Any]
) -> None:
    run(model, tmp_path / "out")
    before = read(tmp_path / "out")
    with pytest.raises(ValueError, match=r"holds scores of plan .*; name another folder with out=DIR"):
        run(model, tmp_path / "out", given=given, **options)
    assert_frame_equal(before, read(tmp_path / "out"))


def test_other_people_s_folders_are_left_alone(model: Model, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="no table of scores"):
        run(model, tmp_path)
    with pytest.raises(ValueError, match="is no folder"):
        run(model, tmp_path / "notes.txt")
    pl.DataFrame({"a": [1]}).write_delta(str(tmp_path / "delta"))
    with pytest.raises(ValueError, match="did not write"):
        run(model, tmp_path / "delta")


def test_batches_do_not_change_what_is_said(model: Model, tmp_path: Path) -> None:
    run(model, tmp_path / "a", max_tokens=LENGTH)
    run(model, tmp_path / "b", max_tokens=10_000)
    one, other = read(tmp_path / "a"), read(tmp_path / "b")
    np.testing.assert_allclose(one["prob_up"].to_numpy(), other["prob_up"].to_numpy(), atol=1e-6)


def test_a_decision_that_would_see_its_future_is_not_scored(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a GPU the model itself has no sentence for this, so the batch is looked at before it goes there.
    monkeypatch.setattr("quantattn.nn.model._require_no_leak", lambda batch, config: None)
    table = work().sequences.table
    row = table.offsets[:-1] + 3
    inside = work(
        sequences=SequenceSet(table, Decisions(row), LENGTH, "document"), as_of=table.time[row], entity=table.entities
    )
    with pytest.raises(ValueError, match="3 tokens of its sequence after it"):
        run(model, tmp_path / "out", given=inside)
    assert not (tmp_path / "out").exists()


def test_a_score_that_is_not_finite_is_refused(model: Model, tmp_path: Path) -> None:
    broken = Model(model.encoder, dict(model.head_configs))
    for parameter in broken.heads.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    with pytest.raises(ValueError, match="not finite for decision 0"):
        run(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_score_that_is_not_finite_is_found_among_others(model: Model, tmp_path: Path) -> None:
    """A code without a finite embedding makes the decisions that see it unusable, and no other."""
    given = work()
    table, row = given.sequences.table, given.sequences.decisions.row
    begin = table.offsets[table.entity_of(row)]
    sees = [bool((table.fields["code"][b : r + 1] == 5).any()) for b, r in zip(begin, row, strict=True)]
    first = sees.index(True)
    assert 0 < sum(sees[: first + 10]) < 10, "the control: beside them there are others in the shard"
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.encoder.get_parameter("embedding.tables.0.weight")[5] = torch.nan
    with pytest.raises(ValueError, match=f"not finite for decision {first}$"):
        run(broken, tmp_path / "out")
