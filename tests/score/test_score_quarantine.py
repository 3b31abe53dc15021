"""A decision without a score stops the job or is written apart, and costs no other a bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from small_job import CLASSES, N, recipe, rows, save_model, work

from quantattn.data.pack import Decisions, SequenceSet
from quantattn.nn import Encoder, Model, Outcome
from quantattn.score import Work, Worker, make_plan
from quantattn.score.crew import Alone
from quantattn.score.outputs import Scores
from quantattn.score.pipeline import write_shard
from quantattn.score.run import Progress, score_with
from quantattn.score.sink import QUARANTINE, DeltaSink


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "model")


POISON = 5


def worker(model: Path, given: Work, shard: int = 30, poison: bool = True, **options: Any) -> Worker:
    made = recipe(model, Path("unused"), given, shard=shard, **options).worker("cpu")
    if poison:
        with torch.no_grad():
            made.model.encoder.get_parameter("embedding.tables.0.weight")[POISON] = torch.nan
    return made


def sees_poison(given: Work) -> np.ndarray[Any, Any]:
    cut = given.sequences
    return np.array(
        [bool((cut.table.fields["code"][a:b] == POISON).any()) for a, b in zip(cut.start, cut.stop, strict=True)]
    )


def test_what_has_no_score_is_written_apart_and_the_others_keep_their_bits(model: Path, tmp_path: Path) -> None:
    given = work()
    bad = sees_poison(given)
    assert 10 < bad.sum() < 110, "the control: there are both"
    sound, broken = worker(model, given, poison=False), worker(model, given)
    assert score_with(Alone(sound, tmp_path / "sound"), sound.plan, tmp_path / "sound")
    seen: list[Progress] = []
    out = tmp_path / "out"
    assert score_with(Alone(broken, out, "quarantine"), broken.plan, out, watch=seen.append)
    expected = rows(tmp_path / "sound").filter(~pl.Series(bad))
    assert rows(out).equals(expected)
    apart = pl.read_delta(str(out / QUARANTINE)).sort("key")
    assert apart.columns == ["entity", "as_of", "key", "reason", "model_sha", "plan_sha"]
    assert apart["key"].to_list() == np.flatnonzero(bad).tolist()
    assert apart["entity"].to_list() == [given.entity[key] for key in apart["key"]]
    assert set(apart["reason"]) == {"the model gives prob that is not finite"}
    assert seen[-1].refused == bad.sum()


def test_by_default_it_stops_the_job_and_quarantine_goes_on_with_the_same_table(model: Path, tmp_path: Path) -> None:
    given = work()
    broken, out = worker(model, given), tmp_path / "out"
    first = int(sees_poison(given).argmax())
    with pytest.raises(ValueError, match=f"not finite for decision {first}"):
        score_with(Alone(broken, out), broken.plan, out)
    assert score_with(Alone(broken, out, "quarantine"), broken.plan, out)
    assert len(rows(out)) + len(pl.read_delta(str(out / QUARANTINE))) == 3 * N


def test_a_kill_between_the_two_tables_duplicates_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, out = worker(model, work()), tmp_path / "out"
    sink, original = DeltaSink(out, broken.plan), DeltaSink.write

    def crash(self: DeltaSink, shard: str, columns: Any) -> bool:
        if self.folder == out:
            raise KeyboardInterrupt
        return original(self, shard, columns)

    monkeypatch.setattr(DeltaSink, "write", crash)
    with pytest.raises(KeyboardInterrupt):
        write_shard(broken, sink, broken.plan.shards[0], "quarantine")
    monkeypatch.setattr(DeltaSink, "write", original)
    assert len(pl.read_delta(str(out / QUARANTINE))) > 0
    assert score_with(Alone(broken, out, "quarantine"), broken.plan, out)
    keys = pl.concat([pl.read_delta(str(place)).select("key") for place in (out, out / QUARANTINE)])
    assert sorted(keys["key"]) == list(range(3 * N))


def test_what_the_model_refuses_is_found_among_its_batch(model: Path, tmp_path: Path) -> None:
    """A bidirectional encoder may not see what follows a decision: such a decision has no score, its neighbours do."""
    table = work().sequences.table
    last = table.offsets[1:] - 1
    row = last.copy()
    row[[3, 17]] -= 2
    cut = SequenceSet(table, Decisions(row), 7, "document")
    given = work(sequences=cut, as_of=table.time[row], entity=table.entities)
    torch.manual_seed(1)
    encoder = Encoder("tiny", codes={"code": 6}, n_layers=1, width=8, n_heads=2, hidden=8, causal=False)
    both = Model(encoder, Outcome().heads(encoder.config, CLASSES))
    plan = make_plan(given, "m", 100)
    hand = Worker(both, given, plan, 10_000, deterministic="batch", output=Scores(CLASSES))
    assert score_with(Alone(hand, tmp_path / "out", "quarantine"), plan, tmp_path / "out")
    apart = pl.read_delta(str(tmp_path / "out" / QUARANTINE)).sort("key")
    assert apart["key"].to_list() == [3, 17]
    assert all("2 tokens of its sequence after it" in reason for reason in apart["reason"])
    kept = pl.read_delta(str(tmp_path / "out")).sort("key")
    assert kept["key"].to_list() == [key for key in range(N) if key not in (3, 17)]
    alone = both.score(cut.pack([18]), deterministic="batch")["prob"][0, 1]
    assert kept.filter(pl.col("key") == 18)["prob_up"][0] == float(alone)


def test_a_row_of_which_one_piece_has_no_score_has_none(model: Path, tmp_path: Path) -> None:
    given = work()
    row = np.arange(3 * N) // 2
    pairs = work(row=row, as_of=given.as_of[::2].copy(), entity=given.entity[::2])
    broken, out = worker(model, pairs), tmp_path / "out"
    assert score_with(Alone(broken, out, "quarantine"), broken.plan, out)
    bad = sees_poison(given).reshape(-1, 2).any(1)
    assert pl.read_delta(str(out / QUARANTINE)).sort("key")["key"].to_list() == np.flatnonzero(bad).tolist()
    assert rows(out)["key"].to_list() == np.flatnonzero(~bad).tolist()


def test_a_shard_without_any_score_stops_the_job(model: Path, tmp_path: Path) -> None:
    broken = worker(model, work())
    with torch.no_grad():
        broken.model.encoder.get_parameter("embedding.tables.0.weight").fill_(torch.nan)
    with pytest.raises(ValueError, match="none of the 30 decisions of shard-000000 has a score: the model gives prob"):
        score_with(Alone(broken, tmp_path / "out", "quarantine"), broken.plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()
