"""What four processes compute for `test_context.py`: `python ring_cases.py FOLDER DEVICE`.

On CPUs they talk by gloo and are forks of one that has loaded everything and computed nothing, which is four times
cheaper; on "cuda" each has its own GPU, is spawned, and talks by NCCL.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which registered operators load when one is called first
import torch.distributed as dist
from torch import Tensor

from quantattn import Mask, attention
from quantattn.attention.context import ring_attention, ring_attention_op, unshard
from quantattn.attention.placement import Placement
from quantattn.attention.problems import Problem, random_problem

PROCESSES = 4
MEMBERS = {1: [2], 2: [3, 1], 3: [1, 2, 3], 4: [0, 1, 2, 3]}
"""Which processes form the ring of each size: their rank in it is another than their rank among all."""


@dataclass(frozen=True)
class Case:
    """A pack on a ring.

    Attributes:
        label: of the test.
        world: ranks of the ring.
        lengths: of the sequences.
        mask: who sees whom.
        placement: "zigzag", "contiguous" or "balanced".
        backend: as in `ring_attention`.
        dtype: of q, k and v.
        dlse: whether a gradient comes back through lse.
        do: whether one comes back through out.
        d: D.
    """

    label: str
    world: int
    lengths: tuple[int, ...]
    mask: Mask
    placement: str = "zigzag"
    backend: str = "auto"
    dtype: torch.dtype = torch.float32
    dlse: bool = True
    do: bool = True
    d: int = 16

    def problem(self, device: str = "cpu") -> Problem:
        p = random_problem(
            len(self.label),
            self.lengths,
            heads=4,
            heads_k=2,
            d=self.d,
            mask=self.mask,
            dlse=self.dlse,
            dtype=self.dtype,
            device=device,
        )
        return p if self.do else replace(p, do=torch.zeros_like(p.do))

    def placed(self) -> Placement:
        cu = self.problem().cu_seqlens
        if self.placement == "balanced":
            return Placement.balanced(cu, self.world, self.mask, chunks=3)
        return getattr(Placement, self.placement)(sum(self.lengths), self.world)


def cases() -> list[Case]:
    causal, near, around = Mask(causal=True), Mask(causal=True, window=(9, 0)), Mask(window=(5, 23))
    pack = (3, 50, 0, 17, 1, 26)
    found = [Case("a causal pack on one rank", 1, pack, causal), Case("a window on one rank", 1, pack, around)]
    for world in (2, 3, 4):
        found += [
            Case(f"a causal sequence on {world}", world, (103,), causal),
            Case(f"a causal pack on {world}", world, pack, causal, dlse=False),
            Case(f"a full pack on {world}", world, pack, Mask(), "contiguous"),
            Case(f"a causal window on {world}", world, pack, near),
            Case(f"a window both ways on {world}", world, pack, around, "balanced"),
            Case(f"a window both ways, contiguous on {world}", world, pack, around, "contiguous"),
        ]
    return [
        *found,
        Case("a dealt causal pack on 4", 4, pack, causal, "balanced"),
        Case("blocks by tiled on 2", 2, pack, causal, backend="tiled"),
        Case("sixteen bits on 4", 4, (130, 70), causal, dtype=torch.bfloat16),
        Case("a loss of lse alone on 2", 2, pack, causal, do=False),
        Case("kernels on 2", 2, (13, 9), Mask(causal=True, window=(12, 0)), backend="triton"),
    ]


def compute(case: Case, group: dist.ProcessGroup, device: str, kept: list[int] | None = None) -> dict[str, Tensor]:
    """This rank's rows of every result; `kept` gets the sizes of what is saved for the backward."""
    p, placement, rank = case.problem(device), case.placed(), dist.get_rank(group)
    q, k, v, do = (placement.shard(x, rank) for x in (p.q, p.k, p.v, p.do))
    strided = case.world == 3
    leaves = [(x.mT.contiguous().mT if strided else x.clone()).requires_grad_() for x in (q, k, v)]
    sizes: list[int] = [] if kept is None else kept

    def keep(x: Tensor) -> Tensor:
        sizes.append(x.shape[0])
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out, lse = ring_attention(
            *leaves, p.cu_seqlens, mask=p.mask, scale=p.scale, placement=placement, group=group, backend=case.backend
        )
    outputs, seeds = ([out], [do]) if case.do else ([], [])
    if p.dlse is not None:
        outputs, seeds = [*outputs, lse], [*seeds, placement.shard(p.dlse, rank)]
    gradients = torch.autograd.grad(outputs, leaves, seeds)
    return {"out": out.detach(), "lse": lse.detach(), **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}


def alone(case: Case, device: str) -> dict[str, Tensor]:
    """The same by `attention`, in this process."""
    p = case.problem(device)
    leaves = [x.requires_grad_() for x in (p.q, p.k, p.v)]
    out, lse = attention(*leaves, p.cu_seqlens, mask=p.mask, scale=p.scale)
    gradients = torch.autograd.grad([out, lse], leaves, [p.do, p.dlse])
    return {"out": out.detach(), "lse": lse.detach(), **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a | b)


def hides_the_future(group: dist.ProcessGroup) -> bool:
    """Whether NaN in the last row's key and value changes no bit of the rows before."""
    rank, placement = dist.get_rank(group), Placement.zigzag(40, 2)
    p = random_problem(7, (40,))
    spoiled = [x.clone().index_fill_(0, torch.tensor([39]), torch.nan) for x in (p.k, p.v)]
    found = []
    for k, v in ((p.k, p.v), spoiled):
        out, lse = ring_attention(
            *(placement.shard(x, rank) for x in (p.q, k, v)),
            mask=Mask(causal=True),
            placement=placement,
            group=group,
            backend="tiled",
        )
        before = placement.rows(rank) < 39
        found.append({"out": out[before], "lse": lse[before], "last": out[~before].isnan().all()})
    return same(found[0] | {"last": torch.tensor(True)}, found[1])


def compiles(group: dist.ProcessGroup) -> bool:
    """Whether one graph without a break gives the bits of the eager ring, for two packs and placements."""
    rank = dist.get_rank(group)

    def loss(x: Tensor, cu: Tensor, placement: Placement) -> Tensor:
        q = (2 * x).unflatten(1, (2, 8))
        out, lse = ring_attention(q, q, q, cu, mask=Mask(causal=True), placement=placement, group=group)
        return out.square().sum() + lse.sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch._dynamo.config.error_on_recompile = True
    found = []
    zigzag = Placement.zigzag(40, 2)
    for cu, placement in (([0, 11, 40], zigzag), ([0, 30, 40], Placement(zigzag.intervals[::-1]))):
        x = placement.shard(torch.randn(40, 16, generator=torch.Generator().manual_seed(0)), rank).requires_grad_()
        offsets = torch.tensor(cu, dtype=torch.int32)
        eager, traced = (torch.autograd.grad(f(x, offsets, placement), x)[0] for f in (loss, compiled))
        found.append(torch.equal(eager, traced))
    return all(found)


def checked_operator(group: dist.ProcessGroup) -> dict[str, str]:
    """What `opcheck` finds on a ring of one."""
    q, k, v = (torch.randn(12, heads, 8, requires_grad=True) for heads in (4, 2, 2))
    cu, table = torch.tensor([0, 5, 12], dtype=torch.int32), Placement.zigzag(12, 1).table
    problem = (group.group_name, 0.3, None, 0, "tiled", False)
    return dict(torch.library.opcheck(ring_attention_op, (q, k, v, cu, table, *problem)))


def sentence(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "no error"


def refusals(ring: dist.ProcessGroup, rank: int) -> dict[str, str]:
    """Sentences for mistakes that only a ring of three can make; `rank` within it."""
    q = torch.zeros(4, 2, 8)
    heads = torch.zeros(4, 4 if rank == 2 else 2, 8)
    rows = torch.zeros(5 if rank == 1 else 4, 2, 8)
    cu = torch.tensor([0, 12], dtype=torch.int32)
    causal, mixed = Mask(causal=True), Mask(causal=rank == 0)
    return {
        "heads": sentence(lambda: ring_attention(heads, q, q, group=ring, check=True)),
        "rows": sentence(lambda: ring_attention(rows, rows, rows, group=ring, check=True)),
        "share": sentence(lambda: ring_attention(rows, rows, rows, cu, group=ring, check=True)),
        "mask": sentence(lambda: ring_attention(q, q, q, mask=mixed, group=ring, check=True)),
        "dtype": sentence(lambda: ring_attention(*([q.double() if rank else q] * 3), group=ring, check=True)),
        "alike": sentence(lambda: ring_attention(q, q, q, mask=causal, group=ring, check=True)),
        "cu": sentence(lambda: ring_attention(q, q, q, cu + 1, group=ring)),
        "total": sentence(lambda: ring_attention(q, q, q, cu * 2, group=ring)),
        "world": sentence(lambda: ring_attention(q, q, q, cu, placement=Placement.zigzag(12, 2), group=ring)),
        "exact": sentence(lambda: ring_attention(q, q, q, group=ring, backend="exact")),
        "sdpa": sentence(lambda: ring_attention(q, q, q, mask=Mask(window=(1, 1)), group=ring, backend="sdpa")),
        "shapes": sentence(lambda: ring_attention(q, q[:3], q[:3], group=ring)),
        "gradient": sentence(lambda: unshard(q.clone().requires_grad_(), Placement.contiguous(12, 3), ring)),
    }


def main(process: int, folder: Path, device: str) -> None:
    torch.set_num_threads(1)
    place: dict[str, Any] = {"init_method": f"file://{folder}/rendezvous", "rank": process, "world_size": PROCESSES}
    if device == "cuda":
        torch.cuda.set_device(process)
        dist.init_process_group("nccl", device_id=torch.device("cuda", process), **place)
    else:
        dist.init_process_group("gloo", **place)
    groups = {world: dist.new_group(members) for world, members in MEMBERS.items()}
    results: dict[str, Any] = {}
    for case in cases():
        if process in MEMBERS[case.world]:
            kept: list[int] = []
            group, placement = groups[case.world], case.placed()
            rank, q = dist.get_rank(group), case.problem(device).q
            found = compute(case, group, device, kept)
            results[case.label] = {name: x.cpu() for name, x in found.items()} | {
                "rank": rank,
                "kept": kept,
                "repeats": same(found, compute(case, group, device)),
                "joined": torch.equal(unshard(placement.shard(q, rank), placement, group), q),
            }
            if case.world == 1:
                results[case.label]["as_alone"] = same(found, alone(case, device))
    if device == "cpu":
        results |= beside(process, groups)
    torch.save(results, folder / f"{process}.pt")
    dist.barrier()
    dist.destroy_process_group()


def beside(process: int, groups: dict[int, dist.ProcessGroup]) -> dict[str, Any]:
    """What does not depend on the device."""
    results: dict[str, Any] = {}
    if process in MEMBERS[2]:
        results["hides the future"] = hides_the_future(groups[2])
        results["compiled"] = compiles(groups[2])
    if process in MEMBERS[1]:
        results["opcheck"] = checked_operator(groups[1])
    if process in MEMBERS[3]:
        results["refusals"] = refusals(groups[3], dist.get_rank(groups[3]))
    else:
        q = torch.zeros(4, 2, 8)
        results["outside"] = sentence(lambda: ring_attention(q, q, q, group=groups[3]))
    return results


if __name__ == "__main__":
    folder, device = Path(sys.argv[1]), sys.argv[2]
    context = multiprocessing.get_context("spawn" if device == "cuda" else "fork")
    processes = [context.Process(target=main, args=(n, folder, device)) for n in range(PROCESSES)]
    for one in processes:
        one.start()
    while any(one.is_alive() for one in processes) and not any(one.exitcode for one in processes):
        time.sleep(0.05)
    for one in processes:
        one.join(5)
        one.kill()  # the others wait in vain for one that failed
    sys.exit(any(one.exitcode for one in processes))
