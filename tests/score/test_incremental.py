"""Jobs that score what is new, one after the other, give the rows of one job over everything, to the bit."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from small_market import CLASSES, encoded, events, model, work

from quantattn.data.units import every_event
from quantattn.nn.state_file import read_state, write_state
from quantattn.score import Embeddings, Output, Scores, Worker, make_plan
from quantattn.score.crew import Alone
from quantattn.score.incremental import INDEX, begin, commit
from quantattn.score.run import score_with

MADE: dict[str, Any] = {"model": "m", "settings": {"max_seq_len": 32}}


def grown(counts: Sequence[int]) -> pl.DataFrame:
    """The first events of each entity."""
    frame = events()
    names = frame["entity"].unique().sort()
    wanted = pl.DataFrame({"entity": names, "count": list(counts)})
    return frame.join(wanted, on="entity").filter(pl.col("seq") < pl.col("count")).select(frame.columns)


def job(
    frame: pl.DataFrame,
    out: Path,
    states: Path | None,
    *,
    output: Output | None = None,
    unit: str = "decision",
    shard: int = 9,
    stop_after: int = 99,
    autocast: torch.dtype | None = None,
    made_of: dict[str, Any] = MADE,
    **settings: Any,
) -> pl.DataFrame | None:
    """What a job writes, and None when there is nothing new or it was stopped."""
    made = encoded(frame, **settings)
    given = work(every_event(made, True) if unit == "event" else made)
    stream = None
    if states is not None:
        given, stream, _ = begin(states, given, made_of)
        if not len(given.as_of):
            return None
    plan = make_plan(given, "m", shard)
    said = output or Scores(CLASSES)
    worker = Worker(model(), given, plan, 100, "cpu", autocast, "batch", said, stream)
    asked = iter(range(1000))
    if not score_with(Alone(worker, out, held=3), plan, out, stop=lambda: next(asked) >= stop_after):
        return None
    if states is not None:
        commit(states, given, plan, made_of)
    return pl.read_delta(str(out)).sort("key").drop("key", "plan_sha", "place", "event_time", strict=False)


WHOLE = (96, 89, 82)
CUTS = {
    "one event at a time": [(40, 40, 40), (41, 40, 40), (41, 41, 41), (42, 41, 42)],
    "everything, then the rest": [(50, 0, 82)],
    "over the ends of sequences": [(20, 33, 1), (31, 34, 64), (64, 70, 65)],
    "nothing new in between": [(30, 30, 30), (30, 30, 30)],
}


PLAIN: tuple[Output, str, dict[str, Any]] = (Scores(CLASSES), "decision", {})
OTHERS: list[tuple[Output, str, dict[str, Any]]] = [
    (Embeddings("last"), "event", {}),
    (Scores(CLASSES), "decision", {"layout": "each", "decision_every": 8}),
    (Scores(CLASSES), "decision", {"layout": "windows"}),
    (Embeddings("last"), "decision", {"layout": "document", "max_seq_len": 96}),
]


@pytest.mark.parametrize(
    ("cuts", "output", "unit", "settings"),
    [*((cuts, *PLAIN) for cuts in CUTS.values()), *((CUTS["over the ends of sequences"], *each) for each in OTHERS)],
)
def test_the_rows_of_all_jobs_are_those_of_one(
    cuts: list[tuple[int, ...]], output: Output, unit: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    parts = []
    for number, counts in enumerate([*cuts, WHOLE]):
        given = {"output": output, "unit": unit, "shard": 5 + 7 * number, **settings}
        part = job(grown(counts), tmp_path / str(number), tmp_path / "states", **given)
        if part is not None:
            parts.append(part)
    whole = job(grown(WHOLE), tmp_path / "whole", None, output=output, unit=unit, **settings)
    assert whole is not None
    assert len(parts) > 1
    key = ["entity", "as_of"]
    assert_frame_equal(pl.concat(parts).sort(key), whole.sort(key), check_exact=True)
    assert job(grown(WHOLE), tmp_path / "again", tmp_path / "states", output=output, unit=unit, **settings) is None


def test_old_events_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the sequence is still open, the model sees the new tokens and no others."""
    seen: list[int] = []
    original = model().encoder.embedding.forward

    def counted(fields: Any, *rest: Any) -> Any:
        seen.append(len(next(iter(fields.values()))))
        return original(fields, *rest)

    monkeypatch.setattr(model().encoder.embedding, "forward", counted)
    job(grown((25, 25, 25)), tmp_path / "a", tmp_path / "states")
    assert sum(seen) == 3 * 25
    seen.clear()
    job(grown((29, 28, 25)), tmp_path / "b", tmp_path / "states")
    assert sum(seen) == 3 + 3, "decisions are places 27 and 27; those before were kept up to place 24"


def test_in_half_precision_too_what_goes_on_has_the_bits_of_what_began_anew(tmp_path: Path) -> None:
    whole, half = (job(grown(WHOLE), tmp_path / str(kind), None, autocast=kind) for kind in (None, torch.bfloat16))
    assert whole is not None
    assert half is not None
    assert not half.equals(whole)
    states, cuts = tmp_path / "states", [*CUTS["over the ends of sequences"], WHOLE]
    parts = [job(grown(c), tmp_path / f"{i}", states, autocast=torch.bfloat16) for i, c in enumerate(cuts)]
    rows = pl.concat([part for part in parts if part is not None])
    assert rows.sort("entity", "as_of").equals(half.sort("entity", "as_of"))


@pytest.mark.parametrize("stop_after", [0, 1, 2])
def test_a_job_that_was_stopped_goes_on_as_if_it_had_not_been(stop_after: int, tmp_path: Path) -> None:
    states = tmp_path / "states"
    job(grown((40, 40, 40)), tmp_path / "first", states)
    shutil.copytree(states, tmp_path / "copy")
    whole = job(grown(WHOLE), tmp_path / "whole", tmp_path / "copy")
    index = (states / INDEX).read_bytes()
    assert job(grown(WHOLE), tmp_path / "parts", states, stop_after=stop_after) is None
    assert (states / INDEX).read_bytes() == index, "the next job would begin where this one did"
    parts = job(grown(WHOLE), tmp_path / "parts", states)
    assert whole is not None
    assert parts is not None
    assert_frame_equal(parts, whole, check_exact=True)
    assert {path.name: path.read_bytes() for path in states.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()
    }


def test_states_are_bounded_by_the_open_sequences(tmp_path: Path) -> None:
    """Files hold each entity once, whatever has been kept before, and at most max_seq_len tokens of it."""
    states = tmp_path / "states"
    for number, count in enumerate(range(20, 82, 15)):
        job(grown((count, 40, count)), tmp_path / str(number), states)
        held = [read_state(path) for path in states.iterdir() if path.name != INDEX]
        names = [name for tree in held for name, *_ in tree["entities"]]
        assert sorted(names) == sorted(events()["entity"].unique())
        assert all(length <= 32 for tree in held for length in tree["lengths"].tolist())


def test_a_past_that_has_changed_is_refused(tmp_path: Path) -> None:
    states = tmp_path / "states"
    job(grown((40, 40, 40)), tmp_path / "a", states)
    name = events()["entity"][0]
    for change in (
        grown(WHOLE).with_columns(size=pl.col("size") + 300 * ((pl.col("seq") == 7) & (pl.col("entity") == name))),
        grown(WHOLE).with_columns(
            event_time=pl.col("event_time") - ((pl.col("seq") == 7) & (pl.col("entity") == name)).cast(pl.Int64)
        ),
        grown((39, 89, 82)),
    ):
        with pytest.raises(ValueError, match=f"knows 40 events of {name}, and these data begin with others"):
            job(change, tmp_path / "b", states)
    with pytest.raises(ValueError, match=f"knows 40 events of {name}, which these data lack"):
        job(grown((0, 89, 82)), tmp_path / "b", states)
    assert job(grown(WHOLE), tmp_path / "b", states) is not None, "nothing of it was lost by asking"


def test_states_of_another_model_or_setting_are_refused(tmp_path: Path) -> None:
    states = tmp_path / "states"
    job(grown((40, 40, 40)), tmp_path / "a", states)
    for other, said in (
        ({**MADE, "model": "n"}, r"model m → n"),
        ({**MADE, "settings": {"max_seq_len": 64}}, r"settings.max_seq_len 32 → 64"),
    ):
        with pytest.raises(ValueError, match=f"were made otherwise \\({said}\\); remove the folder, or name another"):
            job(grown(WHOLE), tmp_path / "b", states, made_of=other)


def test_damaged_states_are_refused_byte_by_byte(tmp_path: Path) -> None:
    states = tmp_path / "states"
    job(grown((40, 40, 40)), tmp_path / "a", states)
    largest = max(states.iterdir(), key=lambda path: path.stat().st_size)
    for path in (states / INDEX, largest):
        whole = path.read_bytes()
        for number, bad in enumerate((whole[:-1] + bytes([whole[-1] ^ 1]), b"\x80\x04" + whole)):
            path.write_bytes(bad)
            with pytest.raises(ValueError, match=r"(is damaged|begins as a pickle).*; remove the folder, or name"):
                job(grown(WHOLE), tmp_path / f"{path.name}-{number}", states)
        path.write_bytes(whole)
    held = largest
    held.rename(tmp_path / "aside")
    with pytest.raises(ValueError, match="is not there, though the index of states names it"):
        job(grown(WHOLE), tmp_path / "b", states)
    (tmp_path / "aside").rename(held)
    assert job(grown(WHOLE), tmp_path / "b", states) is not None


def test_other_folders_and_forged_indexes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something that is no states of streams"):
        job(grown(WHOLE), tmp_path / "out", tmp_path)
    with pytest.raises(ValueError, match="is no folder"):
        job(grown(WHOLE), tmp_path / "out", tmp_path / "notes.txt")
    states = tmp_path / "states"
    job(grown((40, 40, 40)), tmp_path / "a", states)
    tree = read_state(states / INDEX)
    for change in ({"file": "../notes.txt"}, {"events": -1}, {"slot": True}, {"more": 1}):
        entities = {name: {**kept, **change} for name, kept in tree["entities"].items()}
        with (states / INDEX).open("wb") as file:
            write_state({**tree, "entities": entities}, file)
        with pytest.raises(ValueError, match="is no index of states"):
            job(grown(WHOLE), tmp_path / "b", states)
