"""Runs of several real processes: what each of them saw goes to FOLDER/<case>-<rank>.pt."""

from __future__ import annotations

import os
import socket
import warnings
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from toy import model, train

from quantattn.batch import PackedBatch
from quantattn.learn.module import LossError
from quantattn.learn.parallel import World, joined
from quantattn.learn.strategies import cut
from quantattn.nn import Encoder, EncoderConfig, Loss, Model, Outcome

STEPS, LONGER, STEP = 5, 7, 4
SETTINGS: dict[str, Any] = {"validate_every": 2, "accumulate": STEP, "steps": STEPS}
RANKS = {"ddp-2": ("ddp", 2), "ddp-4": ("ddp", 4), "fsdp-2": ("fsdp", 2), "context-2": ("context", 2)}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def settings_of(case: str) -> dict[str, Any]:
    strategy, size = RANKS[case]
    return {"strategy": strategy, "devices": size, **SETTINGS}


def plain_model() -> Any:
    """Without dropout: ranks that share rows draw it otherwise than one process does."""
    return model(dropout=0.0)


def placed(rank: int, size: int, port: int) -> World:
    """This process as torchrun would have placed it."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": f"{size}", "LOCAL_RANK": f"{rank}"}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    world = World.of_environment()
    assert world == World(rank, size, rank)
    return world


def one_rank(rank: int, case: str, port: int, folder: Path) -> None:
    """Train a case, in one of its processes."""
    world = placed(rank, RANKS[case][1], port)
    made = plain_model if case.startswith("context") else model
    with joined(world, "cpu"):
        fitted, module, batches = train(folder / case, world=world, made=made, **settings_of(case))
    weights = {name: value.clone() for name, value in module.state_dict().items()} if rank == 0 else {}
    figures = {"step": fitted.step, "best_step": fitted.best_step, "best_value": fitted.best_value}
    torch.save(figures | {"batches": batches, "weights": weights}, folder / f"{case}-{rank}.pt")


def resumed_rank(rank: int, port: int, folder: Path) -> None:
    """Two ranks of FSDP that go on with what two had begun."""
    world = placed(rank, 2, port)
    longer = settings_of("fsdp-2") | {"steps": LONGER}
    with joined(world, "cpu"):
        train(folder / "resumed", world=world, resume=folder / "fsdp-2" / "checkpoints" / "last.ckpt", **longer)


def deep(again: bool | str) -> Model:
    """Five blocks in float64, the same in every process."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"n_layers": 5, "width": 8, "n_heads": 2, "hidden": 12, "gradient_checkpointing": again}
    config = EncoderConfig.of_size("tiny", codes={"code": 6}, values=(), causal=True, **shape)
    return Model(Encoder(config), Outcome().heads(config, ("no", "yes"))).double()


def batch_of(rank: int) -> PackedBatch:
    """Two sequences with a decision at the end of each."""
    code = torch.randint(0, 6, (12,), generator=torch.Generator().manual_seed(rank))
    offsets, ends = torch.tensor([0, 5, 12], dtype=torch.int32), torch.tensor([4, 11])
    return PackedBatch({"code": code}, torch.arange(12), offsets, 7, ends, torch.arange(2), {"label": torch.arange(2)})


def cut_rank(rank: int, port: int, folder: Path) -> None:
    """What two ranks of FSDP send in one step, and how far their gradients are from one process's, by units."""
    found = []
    with joined(placed(rank, 2, port), "cpu"):
        mesh = init_device_mesh("cpu", (2,))
        for again, size in product((False, True, "feed_forward"), (1, 2, None)):
            one, two = deep(again), deep(again)
            (sum(one.measured(Outcome(), batch_of(each), 0).loss for each in range(2)) / 2).backward()
            cut(two, mesh, size)
            with CommDebugMode() as sent, warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of torch, on hooks at what the model returns
                two.measured(Outcome(), batch_of(rank), 0).loss.backward()
            pairs = zip(one.parameters(), two.parameters(), strict=True)
            apart = max(float((a.grad - b.grad.full_tensor()).abs().max()) for a, b in pairs)
            found.append((again, size, apart, sorted(sent.get_comm_counts().values())))
    if rank == 0:
        torch.save(found, folder / "cut.pt")


class Spoiled(Outcome):
    """An outcome whose tenth batch, the first of rank 1 in the third step, has a loss that is not a number."""

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        loss, logs = super().__call__(model, batch, step=step)
        return Loss(loss * torch.nan if step == 9 else loss, logs)


def spoiled_rank(rank: int, port: int, folder: Path) -> None:
    """What one of two ranks says of a loss that is no number in a batch of rank 1."""
    world = placed(rank, 2, port)
    said = ""
    with joined(world, "cpu"):
        try:
            train(folder / "spoiled", world=world, objective=Spoiled(), **settings_of("ddp-2"))
        except LossError as error:
            said = str(error)
    (folder / f"spoiled-{rank}.txt").write_text(said)


def run(folder: Path) -> None:
    """All cases, one after the other, in forks of this process, which need not import anything again."""
    start = partial(torch.multiprocessing.start_processes, start_method="fork")
    for case, (_, size) in RANKS.items():
        start(one_rank, (case, free_port(), folder), size)
    start(resumed_rank, (free_port(), folder), 2)
    start(spoiled_rank, (free_port(), folder), 2)
    start(cut_rank, (free_port(), folder), 2)
