"""Encoders on several GPUs beside one: tokens a second in training, and the longest sequence of shared rows.

    python benchmarks/scaling_encoder.py training [--gpus 2] [--sizes base long] [--strategies ddp fsdp] [--steps 10]
    python benchmarks/scaling_encoder.py longest [--gpus 2] [--sizes base] [--tokens 262144] [--causal] [--alone]

`training` is `quantattn.learn.fit` on sequences of 8,192 random events: masked events, bfloat16 with float32
parameters, batches of 65,536 tokens, as many an optimizer step as there are GPUs, whoever shares them: first one GPU,
which makes all of them, then all GPUs by each strategy. Time is the median of the steps after the fourth; losses of a
step are compared with those of one GPU. `longest` is one forward and backward of the next event (causal) or masked
events over one sequence, rows shared by all GPUs, blocks computed again in the backward; `--alone` is the same on one
GPU. Rows go to benchmarks/results/scaling-<device>.csv. `--device cpu` runs the same over gloo with tiny shapes.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from quantattn.cli.benchmarks.results import write_rows
from quantattn.data.pack import Decisions, SequenceSet, TokenTable
from quantattn.learn.datamodule import PreparedData
from quantattn.learn.fit import Progress, fit
from quantattn.learn.history import read_rows
from quantattn.learn.module import Schedule, Training
from quantattn.learn.parallel import World, joined
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import Encoder, MaskedEvents, Model, NextEvent
from quantattn.nn.encoder import share_rows

RESULTS = Path(__file__).parent / "results"
CODES = {"kind": 9, "side": 4, "size": 64, "price": 64, "gap": 64}
KEY = ("what", "size", "strategy", "gpus", "N")
FIRST_TIMED = 4


@dataclass(frozen=True)
class ScalingRow:
    """One measurement.

    Attributes:
        what: training or longest.
        size: of the encoder.
        strategy: single, ddp, fsdp or context.
        gpus: how many.
        N: tokens of a sequence.
        tokens: of an optimizer step, all GPUs together.
        ms: milliseconds of a step.
        tokens_per_s: tokens over that time.
        scaling: tokens_per_s over that of one GPU; NaN where none was measured.
        peak_mib: peak memory of the first GPU.
        loss: of the last step, nats.
        loss_difference: largest difference of a step's loss to one GPU, nats.
    """

    what: str
    size: str
    strategy: str
    gpus: int
    N: int
    tokens: int
    ms: float
    tokens_per_s: float
    scaling: float
    peak_mib: float
    loss: float
    loss_difference: float


def sequences(count: int, length: int, seed: int) -> SequenceSet:
    """So many sequences of random codes in which each event's size says the next one's side, so that losses fall."""
    rng = np.random.default_rng(seed)
    fields = {name: rng.integers(2, n, count * length) for name, n in CODES.items()}
    fields["side"] = 2 + np.roll(fields["size"], 1) % 2
    offsets = np.arange(count + 1, dtype=np.int64) * length
    table = TokenTable(fields, np.arange(count * length, dtype=np.int64), offsets, tuple(map(str, range(count))))
    return SequenceSet(table, Decisions(offsets[1:] - 1), length, "document")


def encoder_of(asked: argparse.Namespace, size: str, **changes: Any) -> Encoder:
    """The named size; on a CPU a tiny one."""
    torch.manual_seed(0)
    if asked.device == "cpu":
        return Encoder("tiny", codes=CODES, **changes)
    return Encoder(size, codes=CODES, **changes)


def trained(asked: argparse.Namespace, world: World, size: str, strategy: str) -> dict[str, Any]:
    """Steps of one strategy: milliseconds of each, losses, and peak memory."""
    gpu, length = asked.device == "cuda", 8192 if asked.device == "cuda" else 64
    settings = TrainerSettings(
        accelerator="gpu" if gpu else "cpu",
        devices=world.size,
        strategy=strategy,
        precision="bf16-mixed" if gpu else "32-true",
        max_steps=asked.steps,
        validate_every=10**6,
        accumulate=asked.gpus,
        log_every=1,
    )
    step, sharing = settings.batches_a_step, {"rank": world.rank, "world": world.size}
    encoder = encoder_of(asked, size)
    objective = MaskedEvents()
    module = Training(
        Model(encoder, objective.heads(encoder.config, ())),
        objective,
        optimizer=partial(torch.optim.AdamW, lr=3e-4),
        schedule=Schedule(asked.steps),
        rank=world.rank,
        ranks=world.size,
    )
    cut = sequences(8 * step * asked.steps, length, 0)
    data = PreparedData(
        cut, sequences(step, length, 1), max_tokens=8 * length, seed=0, batches=step * asked.steps, step=step, **sharing
    )
    ends: list[float] = []

    def watch(at: Progress) -> None:
        if at.step > len(ends):
            ends.append(time.perf_counter())

    folder = Path(asked.folder) / f"{size}-{strategy}-{world.size}"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    fit(module, data, folder, settings, total_steps=asked.steps, watch=watch, world=world)
    peak = torch.cuda.max_memory_allocated() / 2**20 if gpu else math.nan
    took = [(b - a) * 1e3 for a, b in pairwise(ends)][FIRST_TIMED - 1 :]
    losses = [value for _, name, value in read_rows(folder / "metrics.csv") if name == "train/loss"]
    return {"ms": statistics.median(took), "losses": losses, "peak": peak, "N": length, "tokens": 8 * length * step}


def training(asked: argparse.Namespace, world: World) -> list[ScalingRow]:
    """One GPU, then all of them by each strategy."""
    rows = []
    for size in asked.sizes:
        one = trained(asked, World(), size, "single") if world.rank == 0 else {}
        dist.barrier()
        for strategy in ("single", *asked.strategies):
            found = one if strategy == "single" else trained(asked, world, size, strategy)
            dist.barrier()
            if world.rank:
                continue
            gpus, tokens, ms = 1 if strategy == "single" else world.size, found["tokens"], found["ms"]
            apart = max(abs(a - b) for a, b in zip(found["losses"], one["losses"], strict=True))
            figures = (tokens, ms, tokens / ms * 1e3, one["ms"] / ms, found["peak"], found["losses"][-1], apart)
            rows.append(ScalingRow("training", size, strategy, gpus, found["N"], *figures))
            print(rows[-1], flush=True)
    return rows


def longest(asked: argparse.Namespace, world: World) -> list[ScalingRow]:
    """One forward and backward a length, by all ranks together or by the first one alone."""
    rows = []
    device = torch.device("cuda", world.local) if asked.device == "cuda" else torch.device("cpu")
    for size in asked.sizes:
        encoder = encoder_of(asked, size, causal=asked.causal, gradient_checkpointing=True)
        objective = NextEvent() if asked.causal else MaskedEvents()
        model = Model(encoder, objective.heads(encoder.config, ())).to(device).train()
        if not asked.alone:
            share_rows(model)
        for tokens in (2048, *asked.tokens):  # the first one compiles what there is to compile
            if asked.alone and world.rank:
                continue
            batch = sequences(1, tokens, 0).pack([0]).to(device)
            ms, peak, loss = step_of(model, objective, batch, device, together=not asked.alone)
            if world.rank == 0 and tokens != 2048:
                gpus, strategy = (1, "single") if asked.alone else (world.size, "context")
                figures = (ms, tokens / ms * 1e3, math.nan, peak, loss, math.nan)
                rows.append(ScalingRow("longest", size, strategy, gpus, tokens, tokens, *figures))
                print(rows[-1], flush=True)
    dist.barrier()
    return rows


def step_of(
    model: Model, objective: Any, batch: Any, device: torch.device, together: bool
) -> tuple[float, float, float]:
    """Milliseconds and peak MiB of one forward and backward, gradients averaged over the ranks; and the loss."""
    gpu = device.type == "cuda"
    model.zero_grad()
    if gpu:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    if together:
        dist.barrier()
    began = time.perf_counter()
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=gpu):
        loss = objective(model, batch, step=0).loss
    loss.backward()
    if together:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        whole = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(whole)
    if gpu:
        torch.cuda.synchronize()
    ms = (time.perf_counter() - began) * 1e3
    return ms, torch.cuda.max_memory_allocated() / 2**20 if gpu else math.nan, float(loss.detach())


@contextmanager
def started(rank: int, asked: argparse.Namespace) -> Iterator[World]:
    """This process among all, as torchrun would have started it."""
    world = World(rank, asked.gpus, rank)
    os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": f"{world.size}", "LOCAL_RANK": f"{rank}"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{asked.port}"}
    with joined(world, "gpu" if asked.device == "cuda" else "cpu"):
        yield world


def one_rank(rank: int, asked: argparse.Namespace) -> None:
    """What was asked for, in one process of several."""
    with started(rank, asked) as world:
        rows = (training if asked.what == "training" else longest)(asked, world)
    if rank == 0:
        named = torch.cuda.get_device_name() if asked.device == "cuda" else "cpu"
        print(write_rows(rows, RESULTS, "scaling", named, KEY))


def main() -> None:
    """Start a process a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["training", "longest"])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--sizes", nargs="+", default=["base"])
    parser.add_argument("--strategies", nargs="+", default=["ddp", "fsdp"], choices=["ddp", "fsdp"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tokens", type=int, nargs="+", default=[262144])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--port", type=int, default=29511)
    asked = parser.parse_args()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast over NVLink is left alone
    memory = Path("/dev/shm")  # checkpoints of a benchmark need no disk
    asked.folder = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
    try:
        torch.multiprocessing.spawn(one_rank, (asked,), asked.gpus)
    finally:
        shutil.rmtree(asked.folder)


if __name__ == "__main__":
    main()
