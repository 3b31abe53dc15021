"""Several processes that train one model are one process: losses, weights, order and what a checkpoint holds."""

from __future__ import annotations

import socket
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_cases import LONGER, RANKS, SETTINGS, STEP, plain_model, run
from test_resume import same
from torch import nn
from toy import model, train

from quantattn.learn.checkpoint import read_checkpoint
from quantattn.learn.history import read_rows
from quantattn.learn.parallel import World, as_torchrun_says, joined
from quantattn.learn.strategies import units
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import EncoderConfig
from quantattn.nn.encoder import Block

LAST = Path("checkpoints") / "last.ckpt"
every_case = pytest.mark.parametrize("case", RANKS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of all cases, each of real processes that meet over gloo."""
    folder = tmp_path_factory.mktemp("ranks")
    run(folder)
    for name, made in (("dropped", model), ("plain", plain_model)):
        _, module, batches = train(folder / name, made=made, **SETTINGS)
        torch.save({"batches": batches, "weights": module.state_dict()}, folder / f"{name}-0.pt")
    return folder


def beside(case: str) -> str:
    """The run of one process that a case is compared with."""
    return "plain" if case.startswith("context") else "dropped"


def of(folder: Path, case: str, rank: int = 0) -> dict[str, Any]:
    return torch.load(folder / f"{case}-{rank}.pt", weights_only=True)  # type: ignore[no-any-return]


@every_case
def test_losses_and_weights_are_those_of_one_process(case: str, folder: Path) -> None:
    """In float32, to the rounding of sums in another order: 5 optimizer steps of 4 batches each."""
    one, several = (read_rows(folder / name / "metrics.csv") for name in (beside(case), case))
    assert [row[:2] for row in several] == [row[:2] for row in one]
    assert [row[2] for row in several] == pytest.approx([row[2] for row in one], abs=1e-6)
    expected, found = of(folder, beside(case))["weights"], of(folder, case)["weights"]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)


@every_case
def test_the_last_checkpoint_is_that_of_one_process(case: str, folder: Path) -> None:
    """Whole tensors under the same names, so that one process can go on with it, or any other number."""
    expected, found = (read_checkpoint(folder / name / LAST) for name in (beside(case), case))
    assert found["optimizer_states"][0]["param_groups"] == expected["optimizer_states"][0]["param_groups"]
    for part in ("state_dict", "optimizer_states"):
        a, b = (dict(flat(state[part])) for state in (expected, found))
        assert a.keys() == b.keys()
        for name, value in a.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(b[name], value, rtol=1e-4, atol=1e-5)
    assert same(found["lr_schedulers"], expected["lr_schedulers"])


def flat(value: Any, name: str = "") -> Any:
    """Every leaf of nested dicts and lists with its path."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield name, value
    else:
        yield from chain.from_iterable(flat(each, f"{name}.{key}") for key, each in items)


@every_case
def test_a_step_has_the_same_sequences_whoever_shares_it(case: str, folder: Path) -> None:
    size = RANKS[case][1]
    ranks = [[tuple(batch) for batch in of(folder, case, rank)["batches"]] for rank in range(size)]
    whole = [tuple(batch) for batch in of(folder, beside(case))["batches"]]
    if case.startswith("context"):
        assert ranks == [whole] * size
        return
    together = [batch for batches in zip(*ranks, strict=True) for batch in batches]
    assert together == whole
    per_epoch = 4  # 12 sequences in 3 batches, one of them cut in two to make a step of 4
    for epoch in range(len(whole) // per_epoch):
        in_epoch = together[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(chain.from_iterable(in_epoch)) == list(range(12))


@every_case
def test_one_process_goes_on_with_what_several_began(case: str, folder: Path, tmp_path: Path) -> None:
    made = plain_model if case.startswith("context") else model
    longer = {**SETTINGS, "steps": 7, "made": made}
    _, _, whole = train(tmp_path / "whole", **longer)
    fitted, module, rest = train(tmp_path / "rest", resume=folder / case / LAST, **longer)
    assert fitted.step == 7
    assert rest == whole[5 * STEP :]
    assert all(torch.isfinite(value).all() for value in module.state_dict().values())


def test_parameters_that_are_cut_go_on_as_whole_ones_do(folder: Path, tmp_path: Path) -> None:
    """Two ranks of FSDP and one process, from the same checkpoint of two ranks."""
    train(tmp_path, resume=folder / "fsdp-2" / LAST, **{**SETTINGS, "steps": LONGER})
    one, two = (read_checkpoint(place / LAST) for place in (tmp_path, folder / "resumed"))
    assert one["global_step"] == two["global_step"] == LONGER
    assert same(one["optimizer_states"][0]["param_groups"], two["optimizer_states"][0]["param_groups"])
    for part in ("state_dict", "optimizer_states"):
        for (name, a), (again, b) in zip(flat(one[part]), flat(two[part]), strict=True):
            assert name == again
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_units_of_blocks_have_the_gradients_of_one_process_and_ask_less_often(
    folder: Path,
) -> None:
    """Each unit and the rest ask for parameters in forward and in backward, and send gradients once."""
    found = torch.load(folder / "cut.pt", weights_only=True)
    assert len(found) == 9
    for again, size, apart, sent in found:
        asked = {1: 6, 2: 4, None: 2}[size]
        assert apart < 1e-12, (again, size)
        assert sent == [asked, 2 * asked], (again, size)


@given(st.integers(1, 30), st.integers(1, 40))
def test_units_are_neighbours_few_and_of_equal_size(blocks: int, size: int) -> None:
    made: list[nn.Module] = [nn.Identity() for _ in range(blocks)]
    parts = units(made, size)
    assert [each for part in parts for each in part] == made
    assert len(parts) == -(-blocks // size)
    assert max(map(len, parts)) <= min(size, min(map(len, parts)) + 1)


def test_units_are_as_large_as_pays_when_nobody_says() -> None:
    with torch.device("meta"):
        base = [Block(EncoderConfig.of_size("base", codes={"code": 6}, values=()), local=False) for _ in range(22)]
    assert [len(part) for part in units(list(base), None)] == [5, 6, 5, 6]
    assert [len(part) for part in units([nn.Linear(2**13, 2**13, device="meta") for _ in range(3)], None)] == [1, 1, 1]


def test_a_loss_that_is_no_number_on_one_rank_stops_all_before_the_step(folder: Path) -> None:
    said = [(folder / f"spoiled-{rank}.txt").read_text() for rank in range(2)]
    assert said[0].startswith("the loss became nan at step 2 (in the batch of rank 1); the last checkpoint holds")
    assert said[1].startswith("the loss became nan at step 2 (batch ")
    last = read_checkpoint(folder / "spoiled" / LAST)
    assert last["global_step"] == 2
    assert all(torch.isfinite(value).all() for value in last["state_dict"].values())


def test_a_run_keeps_its_batches_a_step(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"begun with trainer\.accumulate=4 batches a step, now it is 2; go on with"):
        train(tmp_path, steps=7, accumulate=2, resume=folder / "ddp-2" / LAST)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"devices": 2}, "make 2 processes: choose trainer=ddp, fsdp or context"),
        ({"devices": 0}, "trainer.devices must be at least 1"),
        ({"strategy": "horovod"}, "must be one of single, ddp, fsdp, context, got 'horovod'"),
        ({"strategy": "ddp", "devices": 2, "accumulate": 3}, "3 batches a step cannot be shared by 2 processes"),
        ({"strategy": "fsdp", "devices": 2, "nodes": 2, "accumulate": 2}, "cannot be shared by 4 processes"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TrainerSettings(**settings)


def test_a_step_is_one_batch_a_process_unless_told_otherwise() -> None:
    asked = {"devices": 2, "nodes": 3, "accumulate": None}
    assert TrainerSettings(strategy="ddp", **asked).batches_a_step == 6  # type: ignore[arg-type]
    assert TrainerSettings(strategy="context", **asked).batches_a_step == 1  # type: ignore[arg-type]


def test_a_process_knows_its_rank_by_torchrun_or_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    assert World.of_environment() is None
    monkeypatch.setenv("SLURM_NTASKS", "4")  # of a batch script that starts no step
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert World.of_environment() is None
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(ValueError, match="expected three whole numbers"):
        World.of_environment()
    monkeypatch.setenv("SLURM_LOCALID", "1")
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert World.of_environment() == World(3, 4, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ValueError, match="no rank of so many"):
        World.of_environment()


def test_what_srun_says_is_what_torchrun_would_say() -> None:
    told = {"SLURM_STEP_NODELIST": "gpu[07-09,12]", "SLURM_NODEID": "1", "SLURM_JOB_ID": "4321234"}
    ranks = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "1"}
    assert as_torchrun_says(World(3, 4, 1), told) == ranks | {"MASTER_ADDR": "gpu07", "MASTER_PORT": "16234"}
    assert as_torchrun_says(World(3, 4, 1), told | {"MASTER_PORT": "29500"}) == ranks | {"MASTER_ADDR": "gpu07"}
    assert as_torchrun_says(World(3, 4, 1), {"RANK": "3"}) == {}


def test_steps_of_one_job_and_jobs_that_follow_on_each_other_meet_at_ports_of_their_own() -> None:
    ports = set()
    for job, step in product(range(4_321_200, 4_321_300), range(8)):
        told = {"SLURM_STEP_NODELIST": "gpu07", "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
        ports.add(int(as_torchrun_says(World(0, 2), told)["MASTER_PORT"]))
    assert len(ports) == 800
    assert min(ports) >= 15_000
    assert max(ports) < 25_000


def test_a_port_at_which_somebody_else_is_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, str(value))
        sentence = f"port {port} of this machine, .* is in use by another program; give all of them another MASTER_PORT"
        with pytest.raises(ValueError, match=sentence), joined(World(0, 2), "cpu"):
            pytest.fail("it has met somebody")
