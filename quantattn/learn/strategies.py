"""What Lightning calls a strategy: who averages gradients, and where parameters and optimizer states lie."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.optim import Optimizer

from quantattn.learn.parallel import World
from quantattn.nn import Model

UNIT = 2**25
"""Parameters that are put together at once, at least: fewer take the host longer to ask for than the GPUs to send."""


def strategy_of(name: str, world: World, blocks: int | None = None) -> Strategy | str:
    """Lightning's strategy for the trainer's setting of this name; `blocks` is for FSDP, see `cut`."""
    if world.size == 1:
        return "auto"
    if name == "fsdp":
        return Sharded(world, blocks)
    # Buffers are constants here, and sending them would be one more thing to wait for in every forward.
    return DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True)


class Sharded(ModelParallelStrategy):
    """FSDP2 with checkpoints as one process writes and reads them: whole tensors, optimizer states by number.

    So a run of several ranks can go on in one process or with another number of ranks, and the other way about.
    """

    def __init__(self, world: World, blocks: int | None = None) -> None:
        super().__init__(world.size, 1, save_distributed_checkpoint=False)
        self.blocks = blocks

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """As `optimizer.state_dict()` of one process, on rank 0; empty on the others."""
        assert self.model is not None
        plain: Optimizer = getattr(optimizer, "optimizer", optimizer)  # Lightning's wrapper holds the real one
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        found = get_optimizer_state_dict(self.model, plain, options=options)
        if self.global_rank != 0:
            return {}
        return _renamed(found, {name: number for number, name in enumerate(self._names(plain))})

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a whole checkpoint; every rank keeps its part of the weights and of the optimizer states."""
        assert self.model is not None
        checkpoint = self.checkpoint_io.load_checkpoint(checkpoint_path)
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.model, checkpoint["state_dict"], options=options)
        for optimizer, state in zip(self.optimizers, checkpoint.get("optimizer_states", ()), strict=False):
            named = _renamed(state, dict(enumerate(self._names(optimizer))))
            set_optimizer_state_dict(self.model, optimizer, named, options=options)
            for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
                group.update({key: value for key, value in saved.items() if key != "params"})  # pairs came as lists
        return checkpoint

    def _names(self, optimizer: Optimizer) -> list[str]:
        """The names of the optimizer's parameters, in its order."""
        assert self.model is not None
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


def _renamed(state: Mapping[str, Any], names: Mapping[Any, Any]) -> dict[str, Any]:
    """An optimizer's state with its parameters called otherwise, in the order of their new names."""
    groups = [group | {"params": [names[each] for each in group["params"]]} for group in state["param_groups"]]
    states = {names[each]: value for each, value in state["state"].items()}
    order = [each for group in groups for each in group["params"] if each in states]
    return {"state": {each: states[each] for each in order}, "param_groups": groups}


def cut(model: Model, mesh: DeviceMesh, blocks: int | None = None) -> None:
    """Cut every parameter over the ranks of the mesh; those of a unit of blocks are put together when it is computed.

    Args:
        model: to be cut in place.
        mesh: the ranks.
        blocks: of a unit at most; None is as many as have `UNIT` parameters.
    """
    for unit in units(list(model.encoder.blocks), blocks):
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # The rest is put together for the time of a loss, whatever parts of the model its objective calls.
    register_fsdp_forward_method(model, Model.measured.__name__)


def units(blocks: list[nn.Module], size: int | None) -> list[list[nn.Module]]:
    """Neighbouring blocks in units of `size` at most, as few as can be and as equal as can be, see `cut`."""
    if size is None:
        size = math.ceil(UNIT / sum(parameter.numel() for parameter in blocks[0].parameters()))
    count = math.ceil(len(blocks) / size)
    bounds = [len(blocks) * at // count for at in range(count + 1)]
    return [blocks[start:end] for start, end in itertools.pairwise(bounds)]
