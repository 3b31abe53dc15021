"""A run of several processes, seen from the command line: who starts them, and how they come to the same data."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from torch.distributed.distributed_c10d import Store

from quantattn.cli.errors import UsageError
from quantattn.cli.launch import launch
from quantattn.cli.preparation import prepare
from quantattn.cli.settings import TrainSettings
from quantattn.data.prepared import Prepared
from quantattn.learn.parallel import World, announce, awaited


def world_of(asked: TrainSettings) -> World | None:
    """Which process of the run this is; None when they are yet to be started.

    Raises:
        UsageError: other processes were started than the settings ask for.
    """
    trainer, ranks = asked.trainer, asked.trainer.ranks if asked.train else 1
    try:
        world = World.of_environment()
    except ValueError as error:
        raise UsageError(str(error)) from error
    if world is not None and world.size != ranks:
        raise UsageError(
            f"{world.size} processes were started, but trainer.devices={trainer.devices} and trainer.nodes="
            f"{trainer.nodes} ask for {trainer.ranks}" + ("" if asked.train else ", and train=false is for one")
        )
    if ranks == 1:
        return World()
    if world is None and trainer.nodes > 1:
        raise UsageError(f"trainer.nodes={trainer.nodes}: torchrun or srun starts the processes of several machines")
    return world


def started_here(asked: TrainSettings, folder: Path, flags: Sequence[str]) -> int:
    """The same run in a process a device; its exit code."""
    overrides = [each for each in HydraConfig.get().overrides.task if not each.startswith("paths.output_dir=")]
    command = [sys.executable, "-m", "quantattn", "train", *flags, *overrides, f"paths.output_dir={folder}"]
    return launch(command, asked.trainer.ranks, f"ckpt_path=auto paths.output_dir={folder} goes on")


@dataclass(frozen=True)
class Team:
    """This process and the place where the processes of a run leave word for each other."""

    world: World
    store: Store

    def prepare(self, asked: TrainSettings, splits: Any, resume: Path | None) -> tuple[Prepared, Path | None]:
        """The data, and the checkpoint that the first process found to go on from.

        Every process prepares for itself, at the same time unless preparing writes files.

        Raises:
            LostRank: the first process has ended.
            ValueError: it found other data.
        """
        if self.world.rank == 0:
            prepared = prepare(asked, splits)
            word = {"hashes": dict(prepared.hashes), "resume": None if resume is None else str(resume)}
            announce(self.store, json.dumps(word, sort_keys=True))
            return prepared, resume
        writes = asked.shards is not None or asked.data.source.get("set_aside") is not None
        heard = json.loads(awaited(self.store)) if writes else None
        prepared = prepare(asked, splits)
        heard = json.loads(awaited(self.store)) if heard is None else heard
        if heard["hashes"] != dict(prepared.hashes):
            raise ValueError(
                f"process {self.world.rank} found other data than process 0: {dict(prepared.hashes)}, expected "
                f"{heard['hashes']}"
            )
        return prepared, None if heard["resume"] is None else Path(heard["resume"])
