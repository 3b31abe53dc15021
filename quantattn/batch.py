"""The seam between data and models: a batch of ragged sequences laid end to end, with no padding.

Dimensions: N sequences, T packed tokens, Q decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

IGNORE = -100
"""Class target of a decision that has no label; every loss and every metric leaves it out."""


@dataclass(frozen=True)
class Vectors:
    """What a few tokens of a batch carry beside their fields, such as the embedding of a filing.

    Attributes:
        rows: (K,) int64 rows of the pack, strictly ascending.
        values: (K, E) float32, the vector of each of them; a number that is NaN is missing.
    """

    rows: Tensor
    values: Tensor

    def between(self, start: int, stop: int) -> Vectors:
        """Those of the rows start … stop − 1, counted from `start`."""
        here = (self.rows >= start) & (self.rows < stop)
        return Vectors(self.rows[here] - start, self.values[here])


@dataclass(frozen=True)
class PackedBatch:
    """N sequences of T tokens in all, laid end to end.

    Attributes:
        fields: name → (T,) one value a token. Integer tensors are codes to embed (int64), floating ones are
            scaled values (float32) with 0 for missing.
        time: (T,) int64, nanoseconds UTC at which the token became available; positions when there is no clock.
        cu_seqlens: (N + 1,) int32, `cu_seqlens[n]:cu_seqlens[n + 1]` are the rows of sequence n; first 0, last T.
        max_seqlen: the longest sequence, a Python int, so that nobody asks the device for it.
        positions: (Q,) int64 rows of the pack at which a decision is made, ascending.
        keys: (Q,) int64 identifiers of the decisions in the data set that made the batch.
        targets: name → (Q, …) or (T, …) what is to be predicted; class targets use `IGNORE` for "none".
        vectors: name → what a few tokens carry beside their fields.
    """

    fields: Mapping[str, Tensor]
    time: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    positions: Tensor
    keys: Tensor
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    vectors: Mapping[str, Vectors] = field(default_factory=dict)

    @property
    def n_tokens(self) -> int:
        """T, the number of packed tokens."""
        return int(self.time.shape[0])

    @property
    def n_sequences(self) -> int:
        """N, the number of sequences."""
        return int(self.cu_seqlens.shape[0]) - 1

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        """The same batch with every tensor on `device`."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return replace(
            self,
            fields={name: move(value) for name, value in self.fields.items()},
            time=move(self.time),
            cu_seqlens=move(self.cu_seqlens),
            positions=move(self.positions),
            keys=move(self.keys),
            targets={name: move(value) for name, value in self.targets.items()},
            vectors={name: Vectors(move(each.rows), move(each.values)) for name, each in self.vectors.items()},
        )

    def pin_memory(self) -> PackedBatch:
        """The same batch in page-locked memory, for asynchronous copies to a GPU."""
        return replace(
            self,
            fields={name: value.pin_memory() for name, value in self.fields.items()},
            time=self.time.pin_memory(),
            cu_seqlens=self.cu_seqlens.pin_memory(),
            positions=self.positions.pin_memory(),
            keys=self.keys.pin_memory(),
            targets={name: value.pin_memory() for name, value in self.targets.items()},
            vectors={
                name: Vectors(each.rows.pin_memory(), each.values.pin_memory()) for name, each in self.vectors.items()
            },
        )

    def check(self) -> PackedBatch:
        """The batch itself, or ValueError unless it is what the attributes above say; reads values, so it may sync."""
        kinds = {"time": torch.int64, "cu_seqlens": torch.int32, "positions": torch.int64, "keys": torch.int64}
        for name, dtype in kinds.items():
            tensor = getattr(self, name)
            if tensor.dim() != 1 or tensor.dtype != dtype:
                raise ValueError(f"{name} must be 1-D {dtype}, got {tuple(tensor.shape)} {tensor.dtype}")
        starts = self.cu_seqlens.tolist()
        if not starts or starts[0] != 0 or starts[-1] != self.n_tokens or starts != sorted(starts):
            raise ValueError(f"cu_seqlens must rise from 0 to T = {self.n_tokens}, got {starts[:8]} …")
        longest = max((b - a for a, b in pairwise(starts)), default=0)
        if longest != self.max_seqlen:
            raise ValueError(f"max_seqlen is {self.max_seqlen} but the longest sequence has {longest} tokens")
        for name, value in self.fields.items():
            if value.shape != (self.n_tokens,):
                raise ValueError(f"field {name!r} has shape {tuple(value.shape)}, expected ({self.n_tokens},)")
        if self.positions.shape != self.keys.shape:
            raise ValueError(f"{self.positions.numel()} positions but {self.keys.numel()} keys")
        if bool(((self.positions < 0) | (self.positions >= self.n_tokens)).any()):
            raise ValueError(f"positions must lie in [0, {self.n_tokens})")
        if bool((self.positions.diff() < 0).any()):
            raise ValueError(f"positions must ascend, got {self.positions.tolist()[:8]} …")
        for name, carried in self.vectors.items():
            rows, values = carried.rows, carried.values
            if values.dim() != 2 or len(values) != len(rows) or bool((rows.diff() <= 0).any()):
                got = f"{tuple(values.shape)} of {len(rows)} rows"
                raise ValueError(f"vectors {name!r} must be (K, E) of K ascending rows, got {got}")
            if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < self.n_tokens:
                raise ValueError(f"rows of vectors {name!r} must lie in [0, {self.n_tokens})")
        for name, value in self.targets.items():
            if value.shape[:1] not in ((self.positions.numel(),), (self.n_tokens,)):
                raise ValueError(
                    f"target {name!r} has shape {tuple(value.shape)}, expected one row for each of "
                    f"{self.positions.numel()} decisions or {self.n_tokens} tokens"
                )
        return self
