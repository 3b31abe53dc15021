"""Batches in an order that depends on the seed, the epoch and the step alone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from quantattn.batch import PackedBatch
from quantattn.data.mapped import MappedSequences, write_sequences
from quantattn.data.pack import Ints, SequenceSet, plan, shard
from quantattn.learn.orphans import end_with_parent
from quantattn.nn import check_decisions


class PlannedLoader:
    """Batches of a sequence set, epoch after epoch, until `total` of them have been handed out.

    The batches of epoch e are `plan(lengths, max_tokens, seed=seed, epoch=e, shuffle=…)`, dealt to the ranks by
    `shard`, so the k-th batch of a rank is a function of (seed, k) and a loader that starts at k needs to remember
    nothing else: read step by step and rank by rank, the order is the same for any number of ranks and workers. What it
    remembers counts the batches of all ranks, so that another number of ranks can go on with it.

    Args:
        sequences: what to batch; with workers, a set that is mapped from files (`write_sequences`).
        max_tokens: budget of tokens a batch.
        seed: of the order.
        shuffle: whether the order changes with the epoch.
        total: batches to hand out; None is one epoch.
        rank: number of this process among `world`.
        world: processes that share each epoch.
        step: batches an optimizer step, of all ranks; an epoch is whole steps. None is one a rank.
        workers: further processes, spawned, that make the batches ahead; 0 makes each when it is asked for.
        one: every epoch is the first batch of the first one.

    Attributes:
        waited: seconds that whoever iterates has waited for batches; without workers, in which they were made.

    Raises:
        ValueError: there are no sequences, or not enough for the ranks; workers and a set in memory.
    """

    def __init__(
        self,
        sequences: SequenceSet,
        max_tokens: int,
        *,
        seed: int,
        shuffle: bool,
        total: int | None = None,
        rank: int = 0,
        world: int = 1,
        step: int | None = None,
        workers: int = 0,
        one: bool = False,
    ) -> None:
        if workers and not isinstance(sequences, MappedSequences):
            raise ValueError("workers share mapped files, not memory: give them what write_sequences returns")
        self.sequences, self.max_tokens, self.seed, self.shuffle = sequences, max_tokens, seed, shuffle
        self.rank, self.world, self.step, self.workers, self.one = rank, world, step, workers, one
        self._epoch, self._plan = 0, self._plan_of(0)
        self.total = len(self._plan) if total is None else total
        self.position = 0
        self.waited = 0.0

    def _plan_of(self, epoch: int) -> Sequence[Ints]:
        epoch = 0 if self.one else epoch
        batches = plan(self.sequences.lengths, self.max_tokens, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
        if not batches:
            raise ValueError("there are no sequences to make batches of")
        batches = batches[:1] if self.one else batches
        return shard(batches, self.rank, self.world, self.step)

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[PackedBatch]:
        if self.position >= self.total:  # Lightning asks for no batch beyond the last, so nothing else starts it anew
            self.position = 0
        batches = self._of_workers() if self.workers else map(self.sequences.pack, self._from(self.position))
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - began
            if batch is None:
                return
            self.position += 1
            yield batch

    def _from(self, position: int) -> Iterator[Ints]:
        """Numbers of the sequences of each batch from `position` to the last."""
        epoch, first = 0, 0
        while position < self.total:
            if epoch != self._epoch:
                self._epoch, self._plan = epoch, self._plan_of(epoch)
            batches = self._plan
            yield from batches[max(position - first, 0) : self.total - first]
            first += len(batches)
            position = max(position, min(first, self.total))
            epoch += 1

    def _of_workers(self) -> Iterator[PackedBatch]:
        # A generator of its own: torch seeds workers from the global one otherwise, and the model's dropout would
        # depend on their number.
        packs: Any = DataLoader(
            self.sequences,  # type: ignore[arg-type]  # checked in __init__
            batch_size=None,
            sampler=self._from(self.position),
            num_workers=self.workers,
            multiprocessing_context="spawn",
            generator=torch.Generator(),
            worker_init_fn=end_with_parent,
        )
        yield from packs

    def state_dict(self) -> dict[str, int]:
        """How many batches have been handed out, by all ranks."""
        return {"position": self.position * self.world}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after the batches that had been handed out."""
        self.position = state["position"] // self.world


class PreparedData(LightningDataModule):
    """Training, validation and test batches of prepared sequences.

    Args:
        train: sequences to learn from.
        valid: sequences to stop by.
        max_tokens: budget of tokens a batch.
        seed: of the order of training batches.
        batches: training batches in the whole run, of all ranks.
        step: batches an optimizer step, of all ranks.
        workers: processes that make training batches, see `PlannedLoader`.
        rank: number of this process among those that share the batches.
        world: how many they are.
        one_batch: train on the first batch again and again.

    Raises:
        ValueError: no sequences to train on, or none to validate on.
    """

    def __init__(
        self,
        train: SequenceSet,
        valid: SequenceSet,
        *,
        max_tokens: int,
        seed: int,
        batches: int,
        step: int = 1,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        one_batch: bool = False,
    ) -> None:
        super().__init__()
        for name, part in (("training", train), ("validation", valid)):
            if not len(part.lengths):
                raise ValueError(f"no {name} sequences: use more data, or another split (splits.valid, splits.test)")
        own: Mapping[str, Any] = {"seed": seed, "rank": rank, "world": world}
        self._train: Callable[[], PlannedLoader] = lambda: PlannedLoader(
            train, max_tokens, shuffle=True, total=batches // world, step=step, workers=workers, one=one_batch, **own
        )
        self._valid: Callable[[], PlannedLoader] = lambda: PlannedLoader(valid, max_tokens, shuffle=False, **own)

    def on_before_batch_transfer(self, batch: PackedBatch, dataloader_idx: int) -> PackedBatch:
        """Refuse a batch, while it is still on the CPU, in which a decision would see its own future."""
        assert self.trainer is not None
        model: Any = self.trainer.lightning_module.model
        if model.decision_heads():
            check_decisions(batch, model.encoder.config)
        return batch

    def train_dataloader(self) -> PlannedLoader:
        """All batches of the run, in order, over as many epochs as it takes."""
        return self._train()

    def val_dataloader(self) -> PlannedLoader:
        """One epoch of the validation set."""
        return self._valid()


@contextmanager
def shared(sequences: SequenceSet, folder: Path, workers: int) -> Iterator[SequenceSet]:
    """The sequences, in files of this folder while the block lasts when there are workers."""
    if not workers:
        yield sequences
        return
    try:
        yield write_sequences(sequences, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def epoch_batches(sequences: SequenceSet, max_tokens: int, seed: int, epochs: int, step: int = 1) -> int:
    """How many batches the first `epochs` epochs have, in whole steps of `step` batches."""
    plans = (plan(sequences.lengths, max_tokens, seed=seed, epoch=epoch) for epoch in range(epochs))
    return sum(len(shard(batches, 0, 1, step)) for batches in plans)
