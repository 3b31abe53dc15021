"""θ, which parts a move from no move, decided on integers and fitted on training rows alone."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.protocol.labels.prices import has_book
from quantattn.data.protocol.labels.reasons import LABEL_REASON
from quantattn.data.threads import LEAST_ROWS, each, spans

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

CLASS_NAMES: dict[int, tuple[str, ...]] = {2: ("down", "up"), 3: ("down", "flat", "up")}
"""Number of classes → what each is called, by code."""
_SUMMED_AT_ONCE = 2**13  # values that stay in the nearest cache
_CLASSED_AT_ONCE = 2**15  # moves, of which all that is made on the way stays in the caches


@dataclass(frozen=True)
class Threshold:
    """θ, which parts a move from no move: up if l > θ, down if l < −θ; both compared exactly.

    Attributes:
        theta: θ ≥ 0, a rational number.
        rule: how it was found: "fixed", "mean", "quantile 1/3", "spread".
        fitted_rows: training rows that it was fitted on; 0 when fixed.
        fitted_until: no row that it was fitted on looks at or beyond this time (ns UTC); None when fixed.
    """

    theta: Fraction
    rule: str = "fixed"
    fitted_rows: int = 0
    fitted_until: int | None = None

    def __post_init__(self) -> None:
        if self.theta < 0:
            raise ValueError(f"the threshold of a move must be at least 0, got {float(self.theta)}")

    @staticmethod
    def fixed(theta: float | str | Fraction) -> Threshold:
        """A given θ; "1/50000" and "2e-5" are exact, a float is taken at its exact binary value."""
        try:
            return Threshold(Fraction(theta))
        except ZeroDivisionError as error:
            raise ValueError(f"the threshold of a move must be a number, got {theta!r}") from error

    @staticmethod
    def fit(
        moves: pl.DataFrame,
        rows: Int64Array,
        rule: Literal["mean", "quantile", "spread"] = "mean",
        quantile: float = 1 / 3,
    ) -> Threshold:
        """Fit θ on training rows.

        Args:
            moves: what `mid_moves` returned.
            rows: row numbers of the training part; those without a move are passed over.
            rule: "mean": half the mean of |l|. "quantile": the given quantile of |l|, the smallest value that at
                least this share of the rows does not exceed (1/3 makes three classes about equal). "spread": the
                mean of (ask − bid) / mid at the decisions (Berti, Kasneci 2025, arXiv 2502.15757).
            quantile: in [0, 1], for the rule of that name.

        Raises:
            ValueError: no training row has a move, or a setting is not one of these.
        """
        needed = ("move_num", "move_den", "label_end", "^(ask|bid)_price_1$")
        in_a_row = len(rows) > 0 and bool((np.diff(rows) == 1).all())
        train = moves.select(needed)[slice(rows[0], rows[-1] + 1) if in_a_row else rows]
        train = train.filter(pl.col("move_num").is_not_null())
        if not train.height:
            raise ValueError(f"none of the {len(rows)} training rows has a move to fit a threshold on")
        num, den = np.abs(train["move_num"].to_numpy()), train["move_den"].to_numpy()
        sizes = num / den
        name: str = rule
        if rule == "mean":
            theta = Fraction(exact_sum(sizes) / train.height / 2)
        elif rule == "quantile":
            if not 0 <= quantile <= 1:
                raise ValueError(f"quantile must lie in [0, 1], got {quantile}")
            row = np.argsort(sizes, kind="stable")[max(math.ceil(quantile * train.height) - 1, 0)]
            theta = Fraction(int(num[row]), int(den[row]))  # exactly this move, so that its equals do not exceed it
            name = f"quantile {Fraction(quantile).limit_denominator(1000)}"
        elif rule == "spread":
            if not has_book(train):
                raise ValueError("rule 'spread' must see a book, and the table has no ask_price_1 and bid_price_1")
            ask, bid = train["ask_price_1"].to_numpy(), train["bid_price_1"].to_numpy()
            theta = Fraction(exact_sum(2 * (ask - bid) / (ask + bid)) / train.height)
        else:
            raise ValueError(f"rule must be 'mean', 'quantile' or 'spread', got {rule!r}")
        return Threshold(theta, name, train.height, int(train["label_end"].to_numpy().max()) + 1)

    def classify(self, moves: pl.DataFrame, classes: Literal[2, 3] = 3) -> pl.DataFrame:
        """Add `label` (Int8): with 3 classes 0 down, 1 flat, 2 up; with 2 classes 0 down, 1 up, and none when flat."""
        if classes not in CLASS_NAMES:
            raise ValueError(f"classes must be 2 or 3, got {classes!r}")
        num = moves["move_num"]
        nums, dens = num.fill_null(0).to_numpy(), moves["move_den"].fill_null(1).to_numpy()
        ways = np.empty(len(num), np.int8)

        def put(rows: tuple[int, int]) -> None:
            here = slice(*rows)
            beyond = _exceeds(np.abs(nums[here]), dens[here], self.theta).view(np.int8)
            np.negative(beyond, out=beyond, where=nums[here] < 0)
            ways[here] = beyond

        each(put, [(first, min(first + _CLASSED_AT_ONCE, len(num))) for first in range(0, len(num), _CLASSED_AT_ONCE)])
        way = pl.Series("way", ways)
        if classes == 3:
            return moves.with_columns(pl.when(num.is_not_null()).then(way + 1).alias("label"))
        flat = num.is_not_null() & (way == 0)
        return moves.with_columns(
            pl.when(num.is_not_null() & ~flat).then((way + 1) // 2).alias("label"),
            *(pl.when(~flat).then(pl.col(name)).alias(name) for name in ("label_start", "label_end")),
            pl.when(flat).then(pl.lit("no move", LABEL_REASON)).otherwise("label_reason").alias("label_reason"),
        )

    def to_json(self) -> str:
        """Text from which `from_json` makes an equal threshold."""
        plain = {
            "theta": str(self.theta),
            "rule": self.rule,
            "fitted_rows": self.fitted_rows,
            "fitted_until": self.fitted_until,
        }
        return json.dumps(plain, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Threshold:
        """The threshold that `to_json` wrote."""
        plain = json.loads(text)
        return Threshold(Fraction(plain["theta"]), plain["rule"], plain["fitted_rows"], plain["fitted_until"])


def exact_sum(values: npt.NDArray[np.float64]) -> float:
    """The float64 nearest to the sum of finite values, as `math.fsum` finds it a value at a time.

    A part of every value, a multiple of one unit, is summed without rounding, then a part of what is left
    (Rump, Ogita, Oishi 2008, "Accurate floating-point summation I", algorithm 3.2).
    """

    def exact_parts(rows: tuple[int, int]) -> list[float]:
        parts: list[float] = []
        for first in range(*rows, _SUMMED_AT_ONCE):
            rest = values[first : min(first + _SUMMED_AT_ONCE, rows[1])]
            while largest := max(float(rest.max()), -float(rest.min())):
                unit = math.ldexp(1.0, math.frexp(largest)[1] + _SUMMED_AT_ONCE.bit_length())
                part = (rest + unit) - unit
                parts.append(float(part.sum()))
                rest = rest - part
        return parts

    # The parts' sum is rounded once, so that it does not matter which parts there are.
    return math.fsum(chain.from_iterable(each(exact_parts, spans(len(values), LEAST_ROWS))))


def _exceeds(num: Int64Array, den: Int64Array, theta: Fraction) -> BoolArray:
    """Whether num / den > theta, for num ≥ 0 and den > 0: floats decide, and where they are too close, integers do."""
    if theta == 0:
        positive: BoolArray = num > 0
        return positive
    bound = float(theta)
    excess = num / den - bound
    beyond: BoolArray = excess > 0
    for i in np.flatnonzero(np.abs(excess, out=excess) <= 1e-14 * bound):
        beyond[i] = int(num[i]) * theta.denominator > theta.numerator * int(den[i])
    return beyond
