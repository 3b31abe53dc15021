"""Bins and scale of one numeric field of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.lookup import edges_not_above, once_a_value
from quantattn.data.merges import FIRST_CODE, MISSING
from quantattn.data.raw_fields import FEATURE

CLIP = 8.0
LINEAR: frozenset[str] = frozenset({"imbalance", "clock"})
"""Numeric fields whose value is scaled as it is; the others are scaled as sign(x) · log(1 + |x|)."""


@dataclass(frozen=True)
class NumericField:
    """Bins and scale of one numeric field.

    Attributes:
        edges: rising numbers of the values' own type; a value x falls into bin #{edge ≤ x}, so there are
            len(edges) + 1 bins and values beyond the training range land in the outermost ones.
        center: mean of the (possibly logarithmic) training values.
        scale: their standard deviation, 1 when they are all equal.
    """

    edges: tuple[int, ...] | tuple[float, ...]
    center: float
    scale: float

    @staticmethod
    def fit(name: str, values: npt.NDArray[np.int64] | npt.NDArray[np.float64], n_bins: int) -> NumericField:
        """Edges at the n_bins-quantiles of `values` (duplicates removed); an empty array gives one bin."""
        if not len(values):
            return NumericField((), 0.0, 1.0)
        ranks, counts = np.arange(1, n_bins) * len(values) // n_bins, None
        low, high = values.min(), values.max()
        if values.dtype == np.int64 and int(high) - int(low) < len(values) // 2:
            # Values that lie close together are counted, which takes less than to sort them.
            counts = np.bincount(values - low)
            ordered, ranks = low + np.arange(len(counts)), np.searchsorted(np.cumsum(counts), ranks, side="right")
        else:
            ordered = np.sort(values)
        bent = ordered.astype(np.float64)
        if not is_linear(name):  # in place: fresh memory costs more than the arithmetic
            np.log1p(np.abs(bent, out=bent), out=bent)
            np.negative(bent, out=bent, where=ordered < 0)
        center = _mean(bent, counts)
        bent -= center
        scale = math.sqrt(_mean(np.square(bent, out=bent), counts))
        return NumericField(tuple(np.unique(ordered[ranks]).tolist()), center, scale if scale > 0 else 1.0)

    def code(self, raw: pl.Expr) -> pl.Expr:
        """UInt16 code of an Int64 expression, or of a Float64 one when the field was fitted on such."""
        place = edges_not_above(raw, self.edges).cast(pl.UInt16) + FIRST_CODE
        return pl.when(raw.is_not_null()).then(place).otherwise(MISSING).cast(pl.UInt16)

    def value(self, name: str, raw: pl.Expr) -> pl.Expr:
        """Float32 scaled value of such an expression, clipped to ±CLIP, 0 where it is null."""
        bent = raw.cast(pl.Float64)
        if not is_linear(name):
            bent = bent.sign() * bent.abs().log1p()
        # Times and not by: see `quantattn.data.market.features.SQUARES_IN_ONE`.
        return ((bent - self.center) * (1 / self.scale)).clip(-CLIP, CLIP).fill_null(0.0).cast(pl.Float32)

    def tokens(self, name: str, raw: pl.Expr) -> pl.Expr:
        """The struct of `code` and `value` of such an expression, under the names of their columns."""
        code, value = f"{name}_code", f"{name}_value"
        return once_a_value(
            raw,
            lambda column: (self.code(column).alias(code), self.value(name, column).alias(value)),
            {code: pl.UInt16, value: pl.Float32},
        )


def is_linear(name: str) -> bool:
    """Whether values of this field are scaled as they are."""
    return name in LINEAR or name.startswith(FEATURE)


def _mean(values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64] | None) -> float:
    """Of all values, each so many times; summed as if they stood there one by one."""
    return float((values if counts is None else np.repeat(values, counts)).mean())
