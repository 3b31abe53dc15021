"""Encoders whose rows are shared, in three real processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from quantattn.batch import IGNORE, PackedBatch, Vectors
from quantattn.nn import Encoder, MaskedEvents, Model, NextEvent, Objective, Outcome
from quantattn.nn.encoder import share_rows

PROCESSES = 3
LENGTHS = (31, 2, 17)


@dataclass(frozen=True)
class Case:
    """One encoder and objective, on so many ranks."""

    label: str
    world: int
    objective: Objective
    lengths: tuple[int, ...] = LENGTHS
    encoder: dict[str, Any] = field(default_factory=dict)

    def model(self) -> Model:
        torch.manual_seed(0)
        config = {"n_layers": 3, "width": 16, "n_heads": 2, "hidden": 12, "time_rotary": 0.5} | self.encoder
        vectors = {"note": ((0.1, 2.0), (0.0, 1.0), (0.3, 0.7))}
        encoder = Encoder("tiny", codes={"kind": 7, "side": 4}, values=("size",), vectors=vectors, **config)
        model = Model(encoder, self.objective.heads(encoder.config, ("down", "flat", "up"))).double()
        for parameter in model.heads.parameters():  # they begin at zero, which would hide the encoder
            torch.nn.init.normal_(parameter, std=0.5)
        return model.train()

    def batch(self) -> PackedBatch:
        draw = torch.Generator().manual_seed(3)
        total, cu = sum(self.lengths), torch.tensor((0, *self.lengths)).cumsum(0)
        label = torch.randint(0, 3, (len(self.lengths),), generator=draw)
        label[-1] = IGNORE if len(label) > 1 else label[-1]
        return PackedBatch(
            fields={
                "kind": torch.randint(2, 7, (total,), generator=draw),
                "side": torch.randint(2, 4, (total,), generator=draw),
                "size": torch.randn(total, generator=draw),
            },
            time=torch.randint(0, 10**9, (total,), generator=draw).cumsum(0),
            cu_seqlens=cu.int(),
            max_seqlen=max(self.lengths),
            positions=cu[1:] - 1,
            keys=torch.arange(len(self.lengths)),
            targets={"label": label},
            vectors={"note": Vectors(torch.tensor([0, total - 1]), torch.randn(2, 3, generator=draw))},
        ).check()


def cases() -> list[Case]:
    """Masks, windows, packs, objectives over rows and over decisions, and both kinds of checkpointing."""
    causal = {"causal": True}
    windows = {"local_window": 4, "global_every": 2, "local_rotary_base": 100.0}
    return [
        Case("outcome, full, on 2", 2, Outcome()),
        Case("outcome, mean of a causal past, on 3", 3, Outcome(pooling="mean"), encoder=causal | {"qk_norm": True}),
        Case("one causal sequence, on 3", 3, NextEvent(), (50,), causal),
        Case("one full sequence, on 2", 2, MaskedEvents(), (29,), {"gradient_checkpointing": True}),
        Case("a causal pack with windows, on 3", 3, NextEvent(), LENGTHS, causal | windows),
        Case("a full pack with windows, on 2", 2, MaskedEvents(), LENGTHS, windows),
        Case("grouped heads, lean, on 2", 2, NextEvent(), LENGTHS,
             causal | {"n_kv_heads": 1, "gradient_checkpointing": "feed_forward"}),
        Case("a row a rank, on 3", 3, Outcome(), (2, 1)),
    ]  # fmt: skip


def computed(case: Case) -> dict[str, Tensor]:
    """Loss and gradients, by name, of one process or of this one's part."""
    return of_model(case.model(), case)


def of_model(model: Model, case: Case) -> dict[str, Tensor]:
    loss = case.objective(model, case.batch(), step=4).loss
    loss.backward()
    return {"loss": loss.detach()} | {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def shared(case: Case, group: dist.ProcessGroup) -> dict[str, Tensor]:
    """The same with rows spread over the group and gradients averaged, as DDP averages them."""
    model = case.model()
    share_rows(model, group)
    rows: list[int] = []
    for block in model.encoder.blocks:
        block.feed_forward.register_forward_hook(lambda _, x, __: rows.append(x[0].shape[0]))
    found = of_model(model, case)
    for name, gradient in found.items():
        if name != "loss":
            dist.all_reduce(gradient, group=group)
            gradient /= dist.get_world_size(group)
    return found | {"rows": torch.tensor(rows)}


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "no error"


def main(process: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=process, world_size=PROCESSES)
    groups = {world: dist.new_group(range(world)) for world in (2, 3)}
    found: dict[str, Any] = {case.label: shared(case, groups[case.world]) for case in cases() if process < case.world}
    compiled = Encoder("tiny", codes={"kind": 3})
    compiled.config = compiled.config.with_changes(compile=True)
    found["compiled"] = refusal(lambda: share_rows(compiled))
    found["too few"] = refusal(lambda: shared(Case("", 3, Outcome(), (2,)), groups[3]))
    torch.save(found, folder / f"{process}.pt")
    dist.barrier()
    dist.destroy_process_group()


def run(folder: Path) -> None:
    """All cases, in forks of this process, which need not import anything again."""
    torch.multiprocessing.start_processes(main, (folder,), PROCESSES, start_method="fork")
