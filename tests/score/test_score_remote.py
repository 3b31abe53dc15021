"""Scores and data that lie elsewhere: which URLs are taken, what is said of the others, and a real server like S3."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from small_job import N, recipe, rows, save_model

from quantattn.data.remote import fetch
from quantattn.score.crew import Alone
from quantattn.score.run import score_with
from quantattn.score.sink import DeltaSink, apart, check_place, place_of, read_plan


def test_where_scores_may_go() -> None:
    assert place_of("runs/out") == Path("runs/out")
    assert place_of("file:///a/b%20c") == Path("/a/b c")
    assert place_of("s3://bucket/scores/") == "s3://bucket/scores"
    assert apart("s3://bucket/scores") == "s3://bucket/scores/_quarantine"
    with pytest.raises(ValueError, match="ftp:// is no place for a table of scores: name a folder, or s3://"):
        place_of("ftp://host/scores")
    with pytest.raises(ValueError, match="credentials do not belong into a URL") as refused:
        place_of("s3://key:secret@bucket/scores")
    assert "secret" not in str(refused.value)


def test_data_are_fetched_under_their_own_names(tmp_path: Path) -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    store.pipe({"/market/a.csv": b"1", "/market/deep/b.csv": b"2", "/other/c.csv": b"3"})
    folder = fetch("memory://market", tmp_path)
    assert {str(path.relative_to(tmp_path)): path.read_text() for path in folder.rglob("*.csv")} == {
        "market/a.csv": "1",
        "market/deep/b.csv": "2",
    }
    assert fetch("memory://other/c.csv", tmp_path).read_text() == "3"
    assert fetch(f"file://{tmp_path}/market", tmp_path / "no") == tmp_path / "market"


def test_no_key_of_a_store_leads_out_of_the_folder(tmp_path: Path) -> None:
    import fsspec
    from fsspec.implementations.memory import MemoryFile

    store = fsspec.filesystem("memory")
    odd = ("/odd/a.csv", "/odd/../../b.csv")
    store.store |= {key: MemoryFile(store, key, b"1") for key in odd}
    try:
        with pytest.raises(ValueError, match="is no name of a file below it"):
            fetch("memory://odd", tmp_path / "in" / "deep")
        assert all((tmp_path / "in" / "deep") in path.parents for path in tmp_path.rglob("*.csv"))
    finally:
        for key in odd:
            del store.store[key]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://nothing", "data.path=memory://nothing: there is no such file or prefix"),
        ("gopher://a/b", "data.path=gopher://a/b: no package reads gopher://"),
        ("s3://key:secret@bucket/x", "credentials do not belong into a URL (s3://…)"),
    ],
)
def test_what_cannot_be_fetched_is_said(url: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:
        fetch(url, tmp_path)
    assert str(refused.value).startswith(said)
    assert "secret" not in str(refused.value)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip(
        "moto.server", reason="moto[server], a server like S3, is not installed; too heavy for every run"
    )
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", "5997"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:5997/scores", method="PUT"))
                break
            except OSError:
                time.sleep(0.1)
        given = {"AWS_ENDPOINT_URL": "http://127.0.0.1:5997", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        for name, value in (given | {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}).items():
            monkeypatch.setenv(name, value)
        yield "s3://scores/job"
    finally:
        server.kill()
        server.wait()


def test_a_table_in_an_object_store_is_that_of_a_folder(bucket: str, tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    whole, there = recipe(model, tmp_path / "whole"), recipe(model, tmp_path / "unused")
    assert score_with(Alone(whole.worker("cpu"), whole.out), whole.plan, whole.out)
    place = place_of(bucket)
    assert not check_place(place)
    asked = iter(range(100))
    worker = there.worker("cpu")
    assert not score_with(Alone(worker, place), there.plan, place, stop=lambda: next(asked) >= 3)
    one, other = DeltaSink(place, there.plan), DeltaSink(place, there.plan)
    columns = worker.rows(there.plan.shards[3])
    assert [one.write("shard-000003", columns), other.write("shard-000003", columns)] == [True, False]
    assert score_with(Alone(worker, place), there.plan, place)
    found = pl.read_delta(bucket).sort("key").drop("plan_sha")
    assert found.equals(rows(tmp_path / "whole"))
    assert (found.height, one.clean()) == (3 * N, 0)
    assert read_plan(place) == there.plan.described
