"""A real Ray cluster of several worker processes, one of them killed midway: the same table."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_job import N, recipe, save_model, sha, work

from quantattn.score import Progress
from quantattn.score.cluster import Cluster
from quantattn.score.crew import Alone
from quantattn.score.run import score_with

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="Ray is not installed; it is too heavy for every test run")
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    ray.shutdown()


def test_without_ray_a_sentence_says_what_to_install(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ValueError, match=r"engine=ray needs the package ray: pip install 'quantattn\[ray\]'"):
        Cluster(recipe(model, tmp_path / "out"), 2, gpu=False)


def test_a_cluster_with_a_killed_worker_writes_what_one_process_writes(ray: Any, model: Path, tmp_path: Path) -> None:
    whole = recipe(model, tmp_path / "whole")
    assert score_with(Alone(whole.worker("cpu"), whole.out), whole.plan, whole.out)
    job = recipe(model, tmp_path / "parts")
    crew = Cluster(job, 2, gpu=False)
    seen: list[Progress] = []
    killed: list[int] = []

    def watch(at: Progress) -> None:
        seen.append(at)
        if at.done == 40 and not killed:
            killed.append(next(place.pid for place in crew._places if place.pid is not None))
            os.kill(killed[0], signal.SIGKILL)

    assert score_with(crew, job.plan, job.out, watch=watch)
    assert sha(tmp_path / "parts") == sha(tmp_path / "whole")
    assert (seen[-1].done, seen[-1].lost) == (3 * N, 1)
    assert f"(process {killed[0]}) was lost" in next(at.said for at in seen if at.said)


def test_failures_keep_their_sentence(ray: Any, model: Path, tmp_path: Path) -> None:
    job = recipe(model, tmp_path / "out")
    another = save_model(tmp_path / "model")
    (another / "card.md").write_text("another")
    with pytest.raises(ValueError, match=r"card\.md"):
        score_with(Cluster(replace(job, model=str(another)), 1, gpu=False), job.plan, job.out)
    with pytest.raises(ValueError, match="workers=9, but the Ray cluster has room for 3"):
        Cluster(job, 9, gpu=False)
    assert len(work().entity) == 3 * N
