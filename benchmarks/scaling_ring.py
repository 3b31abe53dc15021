"""Ring attention on several GPUs beside one: time, hidden transfer, memory, and how far apart the results are.

    python benchmarks/scaling_ring.py [--gpus 2] [--tokens 65536 262144] [--masks causal full] [--no-alone] [--peer]

One sequence of 16 heads of 128 in bfloat16, forward and forward with backward; causal ones under zigzag placement, full
ones under contiguous. Rank 0 computes the whole alone first, then all ranks their rows. `hidden` is the share of the
time of the transfers, sent alone, by which a pass is not longer than the same pass with nothing sent. `out` and `dq` of
sampled rows are held to the error budget of `quantattn.attention.testing`; of dk and dv the root mean square of the
difference to one GPU is given as a share of that of one GPU, at most 1 %. `--peer` times torch's own context parallel.
Rows go to benchmarks/results/ring-<device>.csv; the exit code is 1 when a result is outside its budget. `--device cpu`
runs the same over gloo, in float32, to try it out.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from quantattn import Mask, attention
from quantattn.attention import Placement, ring, ring_attention, unshard
from quantattn.cli.benchmarks.results import write_rows

RESULTS = Path(__file__).parent / "results"
SAMPLED = 64
"""Rows whose out and dq are compared with float64."""
LARGEST_DIFFERENCE, LONG = 0.01, 300_000
"""Beyond so many tokens everything is computed once, and nothing is left out to see what it costs."""
KEY = ("gpus", "N", "mask", "pass")
Results, Sent = dict[str, Tensor], tuple[int, Tensor, Tensor]


@dataclass(frozen=True)
class RingRow:
    """One length, mask and pass, on `gpus` GPUs and on one.

    Attributes:
        stage: forward or both (forward and backward); the column is called `pass`.
        ms: milliseconds of the slowest GPU.
        ms_alone: on one GPU; speedup is their ratio.
        ms_unsent: with nothing sent.
        ms_sending: of the same transfers with nothing computed.
        hidden: share of ms_sending that is hidden behind computation, in [0, 1].
        peak_mib: peak memory of a GPU above its own rows of q, k, v and do; of the backward.
        peak_alone_mib: the same on one GPU.
        out_ratio: worst error of out over what is allowed; dq_ratio likewise.
        dkv_difference: see above, the larger one of dk and dv.
        ms_torch: torch's experimental context parallel on as many GPUs; NaN when not asked for or refused.
    """

    gpus: int
    dtype: str
    D: int
    heads: int
    N: int
    mask: str
    stage: str
    ms: float
    ms_alone: float
    speedup: float
    ms_unsent: float
    ms_sending: float
    hidden: float
    peak_mib: float
    peak_alone_mib: float
    out_ratio: float
    dq_ratio: float
    dkv_difference: float
    ms_torch: float


class Bench:
    """One process's view: its device, how it waits and how it counts."""

    def __init__(self, rank: int, asked: argparse.Namespace) -> None:
        self.rank, self.world, self.asked = rank, asked.gpus, asked
        self.gpu = asked.device == "cuda"
        self.device = torch.device("cuda", rank) if self.gpu else torch.device("cpu")
        self.dtype = torch.bfloat16 if self.gpu else torch.float32

    def wait(self) -> None:
        """Until the device is done."""
        if self.gpu:
            torch.cuda.synchronize()

    def timed(self, call: Callable[[], object], turns: int, together: bool = True) -> float:
        """Milliseconds, the least of so many turns; together, of the slowest rank."""
        found = []
        for _ in range(turns):
            self.wait()
            if together:
                dist.barrier()
            began = time.perf_counter()
            call()
            self.wait()
            found.append((time.perf_counter() - began) * 1e3)
        least = torch.tensor(min(found), device=self.device)
        if together:
            dist.all_reduce(least, dist.ReduceOp.MAX)
        return float(least)

    def peak(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """MiB above what is allocated, and what the call returned."""
        if not self.gpu:
            return float("nan"), call()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        made = call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20, made

    def measured(
        self, forward: Callable[[], None], both: Callable[[], Results], tokens: int, together: bool = True
    ) -> dict[str, Any]:
        """Milliseconds of both passes, peak memory and results; long ones are timed the first time already."""
        began = time.perf_counter()
        peak, results = self.peak(both)
        whole = (time.perf_counter() - began) * 1e3
        if tokens <= LONG:
            whole = self.timed(both, self.asked.turns, together)
        return {
            "forward": self.timed(forward, self.asked.turns, together),
            "both": whole,
            "peak": peak,
            "results": results,
        }

    def inputs(self, tokens: int) -> list[Tensor]:
        """q, k, v and do of the whole sequence, alike on all ranks: (N, H, D)."""
        draw = torch.Generator(device=self.device).manual_seed(tokens)
        shape = (tokens, self.asked.heads, self.asked.size)
        return [torch.randn(shape, device=self.device, dtype=self.dtype, generator=draw) for _ in range(4)]


def both(call: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> Results:
    """Forward and backward."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = call(*leaves)
    return dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *torch.autograd.grad(out, leaves, do)), strict=True))


@contextmanager
def nothing_sent(log: list[Sent]) -> Iterator[None]:
    """Rings compute the same blocks on what they hold; `log` gets how far, what, and like what is sent."""
    plain = ring.Ring.pass_on

    def keep(self: ring.Ring, x: Tensor, hop: int, owner: int) -> Any:
        size = self.plan.placement.size(owner)
        arriving = x if x.shape[1] == size else x.new_zeros(x.shape[0], size, *x.shape[2:])  # zeros clock a GPU higher
        log.append((hop, x, arriving))
        return ring._Transfer([], x, arriving)

    ring.Ring.pass_on = keep  # type: ignore[method-assign]
    try:
        yield
    finally:
        ring.Ring.pass_on = plain  # type: ignore[method-assign]


def send(bench: Bench, parts: list[Sent]) -> None:
    """The transfers of a pass, one after the other."""
    for hop, x, like in parts:
        arriving, to, by = torch.empty_like(like), (bench.rank + hop) % bench.world, (bench.rank - hop) % bench.world
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, arriving, by)]):
            work.wait()


def budget_ratios(found: Results, q: Tensor, k: Tensor, v: Tensor, do: Tensor, causal: bool) -> tuple[float, float]:
    """Worst error of out and dq at sampled rows over what is allowed: 2 and 3 times what the dtype loses, a floor."""
    rows = torch.linspace(0, len(q) - 1, SAMPLED, device=q.device).long()
    hidden = torch.arange(len(k), device=q.device) > rows[:, None] if causal else None
    worst = {"out": 0.0, "dq": 0.0}
    allowed = {"out": 0.0, "dq": 0.0}
    for h in range(q.shape[1]):
        truth, standard = (_rows(dtype, q[rows, h], k[:, h], v[:, h], do[rows, h], hidden) for dtype in (None, q.dtype))
        for name, factor in (("out", 2), ("dq", 3)):
            floor = 2 * ((truth[name].to(q.dtype) + 0.3 - 0.3).double() - truth[name]).abs().max()
            lost = (standard[name].double() - truth[name]).abs().max()
            allowed[name] = max(allowed[name], float(factor * lost + floor))
            worst[name] = max(worst[name], float((found[name][rows, h].double() - truth[name]).abs().max()))
    return worst["out"] / allowed["out"], worst["dq"] / allowed["dq"]


def _rows(dtype: torch.dtype | None, q: Tensor, k: Tensor, v: Tensor, do: Tensor, hidden: Tensor | None) -> Results:
    q, k, v, do = (x.to(dtype or torch.float64) for x in (q, k, v, do))
    q.requires_grad_()
    scores = q @ k.T / k.shape[1] ** 0.5
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    out = scores.softmax(-1) @ v
    return {"out": out.detach(), "dq": torch.autograd.grad(out, q, do)[0]}


def torch_context_parallel(bench: Bench, tokens: int, causal: bool, backward: bool) -> float:
    """Milliseconds of torch's experimental context parallel; NaN with its reason printed when it does not run."""
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.nn.attention import SDPBackend, sdpa_kernel

        mesh = init_device_mesh(bench.device.type, (bench.world,))
        made = [x.transpose(0, 1)[None].contiguous() for x in bench.inputs(tokens)]  # (1, H, N, D)
        with context_parallel(mesh, buffers=made, buffer_seq_dims=[2] * 4), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            q, k, v, do = made

            def forward() -> None:
                with torch.no_grad():
                    functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

            def whole() -> None:
                both(lambda *x: functional.scaled_dot_product_attention(*x, is_causal=causal), q, k, v, do)

            call = whole if backward else forward
            call()
            return bench.timed(call, bench.asked.turns)
    except Exception as error:
        if bench.rank == 0:
            print(f"torch's context parallel does not run here: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return float("nan")


def alone(bench: Bench, inputs: list[Tensor], mask: Mask) -> dict[str, Any]:
    """Rank 0 computes the whole; the others get nothing."""
    if bench.rank:
        return {}
    if not bench.asked.alone:
        return {"forward": math.nan, "both": math.nan, "peak": math.nan, "results": None}
    q, k, v, do = inputs

    def call(*x: Tensor) -> Tensor:
        return attention(*x, mask=mask).out

    def forward() -> None:
        with torch.no_grad():
            call(q, k, v)

    return bench.measured(forward, lambda: both(call, q, k, v, do), len(q), together=False)


def case(bench: Bench, tokens: int, name: str) -> list[RingRow]:
    """Both passes of one length and mask."""
    causal = name == "causal"
    mask, rank = Mask(causal=causal), bench.rank
    placement = (Placement.zigzag if causal else Placement.contiguous)(tokens, bench.world)
    inputs = bench.inputs(tokens)
    one = alone(bench, inputs, mask)
    dist.barrier()
    own = [placement.shard(x, rank) for x in inputs]
    if rank:
        inputs.clear()

    def call(*x: Tensor) -> Tensor:
        return ring_attention(*x, mask=mask, placement=placement, backend=bench.asked.backend).out

    def forward() -> None:
        with torch.no_grad():
            call(*own[:3])

    calls = {"forward": forward, "both": lambda: both(call, *own)}
    found = bench.measured(*calls.values(), tokens)
    unsent, sending = (dict.fromkeys(calls, math.nan) for _ in range(2))
    for stage, work in calls.items():
        log: list[Sent] = []
        if tokens <= LONG:
            with nothing_sent(log):
                work()
                parts, log[:] = list(log), []
                unsent[stage] = bench.timed(work, bench.asked.turns)
            sending[stage] = bench.timed(partial(send, bench, parts), 3)
    theirs = dict.fromkeys(calls, math.nan)
    if bench.asked.peer and tokens <= LONG:
        theirs = {stage: torch_context_parallel(bench, tokens, causal, stage == "both") for stage in calls}
    whole = {key: unshard(value, placement) for key, value in found["results"].items()}
    if rank:
        return []
    out, dq = budget_ratios(whole, *inputs, causal)
    apart = math.nan if one["results"] is None else max(apart_by(whole[x], one["results"][x]) for x in ("dk", "dv"))
    made = []
    for stage in calls:
        hidden = 1 - min(max((found[stage] - unsent[stage]) / sending[stage], 0.0), 1.0)
        times = (found[stage], one[stage], one[stage] / found[stage], unsent[stage], sending[stage], hidden)
        facts = (bench.world, str(bench.dtype).removeprefix("torch."), bench.asked.size, bench.asked.heads, tokens)
        made.append(RingRow(*facts, name, stage, *times, found["peak"], one["peak"], out, dq, apart, theirs[stage]))
    return made


def apart_by(one: Tensor, other: Tensor) -> float:
    """The root mean square of the difference over that of `other`."""
    return float((one.float() - other.float()).norm() / other.float().norm())


def one_rank(rank: int, asked: argparse.Namespace, meet: str) -> None:
    """All cases, in one process of several."""
    bench = Bench(rank, asked)
    if bench.gpu:
        torch.cuda.set_device(rank)
    place: dict[str, Any] = {"init_method": meet, "rank": rank, "world_size": asked.gpus}
    dist.init_process_group("nccl" if bench.gpu else "gloo", device_id=bench.device if bench.gpu else None, **place)
    began, rows = time.perf_counter(), []
    for name in asked.masks:  # compiles what there is to compile
        case(bench, 4096 * asked.gpus if bench.gpu else 64, name)
    for tokens, name in product(asked.tokens, asked.masks):
        for row in case(bench, tokens, name):
            rows.append(row)
            print(f"{time.perf_counter() - began:5.1f} s  {row}", flush=True)
    dist.destroy_process_group()
    if rank == 0:
        named = torch.cuda.get_device_name() if bench.gpu else "cpu"
        print(write_rows(rows, RESULTS, "ring", named, KEY))
        sys.exit(any(r.out_ratio > 1 or r.dq_ratio > 1 or r.dkv_difference > LARGEST_DIFFERENCE for r in rows))


def main() -> None:
    """Start a process a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=[65536, 262144])
    parser.add_argument("--masks", nargs="+", default=["causal", "full"], choices=["causal", "full"])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--alone", action=argparse.BooleanOptionalAction, default=True, help="time one GPU beside")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    asked = parser.parse_args()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast over NVLink is left alone
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(one_rank, (asked, f"file://{folder}/meet"), asked.gpus)


if __name__ == "__main__":
    main()
