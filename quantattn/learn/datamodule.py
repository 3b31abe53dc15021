"""Batches in an order that depends on the seed, the epoch and the step alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lightning.pytorch import LightningDataModule

from quantattn.batch import PackedBatch
from quantattn.data.pack import SequenceSet, plan
from quantattn.nn import check_decisions


class PlannedLoader:
    """Batches of a sequence set, epoch after epoch, until `total` of them have been handed out.

    The batches of epoch e are `plan(lengths, max_tokens, seed=seed, epoch=e, shuffle=…)`, so the k-th batch of a run
    is a function of (seed, k) and a loader that starts at k needs to remember nothing else.

    Args:
        sequences: what to batch.
        max_tokens: budget of tokens a batch.
        seed: of the order.
        shuffle: whether the order changes with the epoch.
        total: batches to hand out; None is one epoch.
    """

    def __init__(
        self, sequences: SequenceSet, max_tokens: int, *, seed: int, shuffle: bool, total: int | None = None
    ) -> None:
        self.sequences, self.max_tokens, self.seed, self.shuffle = sequences, max_tokens, seed, shuffle
        self._epoch, self._plan = 0, self._plan_of(0)
        self.total = len(self._plan) if total is None else total
        self.position = 0

    def _plan_of(self, epoch: int) -> Sequence[Any]:
        batches = plan(self.sequences.lengths, self.max_tokens, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
        if not batches:
            raise ValueError("there are no sequences to make batches of")
        return batches

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[PackedBatch]:
        if self.position >= self.total:  # Lightning asks for no batch beyond the last, so nothing else starts it anew
            self.position = 0
        epoch, first = 0, 0
        while self.position < self.total:
            if epoch != self._epoch:
                self._epoch, self._plan = epoch, self._plan_of(epoch)
            batches = self._plan
            while self.position < min(first + len(batches), self.total):
                indices = batches[self.position - first]
                self.position += 1
                yield self.sequences.pack(indices)
            first += len(batches)
            epoch += 1

    def state_dict(self) -> dict[str, int]:
        """How many batches have been handed out."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after the batches that had been handed out."""
        self.position = state["position"]


class PreparedData(LightningDataModule):
    """Training, validation and test batches of prepared sequences.

    Args:
        train: sequences to learn from.
        valid: sequences to stop by.
        max_tokens: budget of tokens a batch.
        seed: of the order of training batches.
        batches: training batches in the whole run.
    """

    def __init__(self, train: SequenceSet, valid: SequenceSet, *, max_tokens: int, seed: int, batches: int) -> None:
        super().__init__()
        self._train: Callable[[], PlannedLoader] = lambda: PlannedLoader(
            train, max_tokens, seed=seed, shuffle=True, total=batches
        )
        self._valid: Callable[[], PlannedLoader] = lambda: PlannedLoader(valid, max_tokens, seed=seed, shuffle=False)

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


def epoch_batches(sequences: SequenceSet, max_tokens: int, seed: int, epochs: int) -> int:
    """How many batches the first `epochs` epochs have."""
    return sum(
        len(plan(sequences.lengths, max_tokens, seed=seed, epoch=epoch, shuffle=True)) for epoch in range(epochs)
    )
