"""Several processes that train one model: which of them this is, how they meet, and how Lightning ties them together.

    trainer=ddp       every rank takes its share of a step's batches; gradients are averaged
    trainer=fsdp      the same, with parameters, gradients and optimizer states cut over the ranks (FSDP2)
    trainer=context   every rank takes its rows of the same batch, see `quantattn.nn.context`

Who starts the processes says so by the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT)
or by those that srun gives to the tasks of a step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

_PREPARED = "quantattn/prepared"


class LostRank(RuntimeError):
    """Another process of the run has ended; this one cannot go on without it."""


@dataclass(frozen=True)
class World:
    """Which process of a run this is.

    Attributes:
        rank: 0 … size − 1; rank 0 owns the run folder.
        size: processes of the run, on all machines.
        local: rank among those of this machine, the number of its GPU.
    """

    rank: int = 0
    size: int = 1
    local: int = 0

    @staticmethod
    def of_environment() -> World | None:
        """What torchrun or srun says about this process; None when nobody started it as one of several.

        Raises:
            ValueError: the variables contradict each other.
        """
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        elif int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
            names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
        else:
            return None
        said = {name: os.environ.get(name) for name in names}
        try:
            rank, size, local = (int(said[name] or "") for name in names)
        except ValueError:
            raise ValueError(
                f"the processes of this run were started with {said}, expected three whole numbers"
            ) from None
        if not 0 <= local <= rank < size:
            raise ValueError(f"the processes of this run were started with {said}: no rank of so many")
        return World(rank, size, local)


@contextmanager
def joined(world: World, accelerator: str) -> Iterator[Store]:
    """The processes as one process group, gloo on CPUs and NCCL on GPUs; a place where they leave word for each other.

    Raises:
        ValueError: a variable that says where to meet is missing, or somebody else is at the port.
    """
    os.environ.update(as_torchrun_says(world, os.environ))
    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if lacking:
        raise ValueError(f"{world.size} processes need {' and '.join(lacking)} to meet; start them with torchrun")
    on_gpu = accelerator == "gpu"
    if on_gpu:
        torch.cuda.set_device(world.local)
    try:
        store, rank, size = next(rendezvous("env://", world.rank, world.size))
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise ValueError(
            f"port {os.environ['MASTER_PORT']} of this machine, at which the processes of this run would meet, is in "
            "use by another program; give all of them another MASTER_PORT"
        ) from error
    device = torch.device("cuda", world.local) if on_gpu else None
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size, device_id=device)
    try:
        yield store
    finally:
        leave()


def as_torchrun_says(world: World, told: Mapping[str, str]) -> dict[str, str]:
    """The variables of torchrun, which Lightning and torch read, for a process of which only srun has `told`."""
    if "RANK" in told:
        return {}
    found: dict[str, Any] = {"RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": world.local}
    found["GROUP_RANK"] = told.get("SLURM_NODEID", "0")
    nodes = told.get("SLURM_STEP_NODELIST", told.get("SLURM_NODELIST"))
    if nodes is not None:
        # All tasks of a job step come to the same place without a word between them.
        found["MASTER_ADDR"] = SLURMEnvironment.resolve_root_node_address(nodes)
        job, step = (int(told.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        # Steps of one job, and jobs that follow on each other, may share a machine: none of their ports are equal.
        found["MASTER_PORT"] = 15_000 + (job + 1_237 * step) % 10_000
    return {name: str(value) for name, value in found.items() if name not in told}


def announce(store: Store, word: str) -> None:
    """Leave a word for the ranks that wait for it; rank 0 does, once."""
    store.set(_PREPARED, word)


def awaited(store: Store) -> str:
    """What rank 0 has announced, however long its preparation takes.

    Raises:
        LostRank: rank 0 has ended meanwhile.
    """
    try:
        while not store.check([_PREPARED]):
            time.sleep(0.1)
        return str(store.get(_PREPARED), "utf-8")
    except dist.DistError as error:
        raise LostRank("rank 0 has ended before it had prepared the data") from error


def leave() -> None:
    """Leave the process group, if there is one: what follows is for one process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def of_all_ranks(value: Tensor, ranks: int) -> list[float]:
    """The scalar of every rank, by rank; every rank has to ask."""
    return rows_of_all_ranks(value.reshape(1, 1), ranks).flatten().tolist()


def rows_of_all_ranks(rows: Tensor, ranks: int) -> Tensor:
    """(ranks · n, …) of every rank's rows (n, …): row i of rank r becomes row i · ranks + r; every rank has to ask."""
    if ranks == 1:
        return rows
    found = [torch.empty_like(rows) for _ in range(ranks)]
    dist.all_gather(found, rows.contiguous())
    return torch.stack(found, dim=1).flatten(0, 1)


@contextmanager
def naming_the_lost(world: World) -> Iterator[None]:
    """Say in one sentence what a collective reports when another rank has ended.

    Raises:
        LostRank: in place of what gloo and NCCL say.
    """
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or any(word in str(error) for word in _OF_GLOO)
        if world.size == 1 or not lost:
            raise
        raise LostRank(
            f"rank {world.rank} of {world.size} stopped, because another rank has ended; ckpt_path=auto goes on from "
            "the last checkpoint"
        ) from error


_OF_GLOO = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting")


class SameSteps(Callback):
    """Keeps the batches of every step what they were when a run goes on with another number of ranks.

    A checkpoint counts the batches of one rank; here they are counted anew for this number of ranks.

    Args:
        batches: of one step, of all ranks.
        ranks: that share them.
    """

    def __init__(self, batches: int, ranks: int) -> None:
        self.batches, self.ranks = batches, ranks

    def state_dict(self) -> dict[str, Any]:
        """Plain values, kept in `last.ckpt`."""
        return {"batches": self.batches, "ranks": self.ranks}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Translate the loop's counts of batches.

        Raises:
            ValueError: the run was begun with another number of batches a step.
        """
        before = checkpoint["callbacks"].get(self.state_key, self.state_dict())
        if before["batches"] != self.batches:
            raise ValueError(
                f"the run was begun with trainer.accumulate={before['batches']} batches a step, now it is "
                f"{self.batches}; go on with trainer.accumulate={before['batches']}"
            )
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for counts in (progress["total"], progress["current"]):
            for name, count in counts.items():
                counts[name] = count * before["ranks"] // self.ranks
