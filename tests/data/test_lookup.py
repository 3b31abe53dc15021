"""Look-ups: a value that is worked out once is, bit for bit, the value that every row would be given alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.lookup import edges_not_above, once_a_run, once_a_value
from quantattn.data.tokens import CLIP, FIRST_CODE, MISSING, NumericField

quick = settings(max_examples=120, deadline=None)


def alone(field: NumericField, linear: bool, x: int | float | None) -> tuple[int, bytes]:
    """Code and bits of the value of one row, with nothing but the standard library."""
    if x is None:
        return MISSING, np.float32(0).tobytes()
    bent = float(x) if linear else math.copysign(math.log1p(abs(float(x))), x)
    scaled = min(max((bent - field.center) * (1 / field.scale), -CLIP), CLIP)
    return FIRST_CODE + sum(edge <= x for edge in field.edges), np.float32(scaled).tobytes()


def columns() -> st.SearchStrategy[list[int | None]]:
    """Values close together, far apart, or at the ends of Int64; the last two are worked out row by row."""
    spans = st.sampled_from([(0, 3), (-4, 5), (-(2**40), 2**40), (-(2**63), 2**63 - 1)])
    return spans.flatmap(lambda span: st.lists(st.none() | st.integers(*span), max_size=60))


@given(columns(), columns(), st.sampled_from(["size", "imbalance"]), st.integers(2, 9))
@quick
def test_tokens_are_those_of_every_row_alone(
    seen: Sequence[int | None], asked: Sequence[int | None], name: str, n_bins: int
) -> None:
    field = NumericField.fit(name, np.asarray([x for x in seen if x is not None], np.int64), n_bins)
    for column in (asked, [*asked, *asked, *asked]):  # twice as long as wide, values are looked up
        frame = pl.DataFrame({"x": column}, schema={"x": pl.Int64})
        made = frame.select(field.tokens(name, pl.col("x"))).unnest("x")
        assert made.schema == {f"{name}_code": pl.UInt16, f"{name}_value": pl.Float32}
        code, value = made.get_columns()
        bits = [(c, np.float32(v).tobytes()) for c, v in zip(code, value, strict=True)]
        assert bits == [alone(field, name == "imbalance", x) for x in column]


@given(
    st.sampled_from([5, 300, 2**40]).flatmap(lambda most: st.lists(st.integers(-most, most), min_size=1, max_size=80)),
    st.sampled_from(["size", "imbalance"]),
    st.integers(2, 40),
    st.integers(1, 9),
)
@quick
def test_counted_values_are_fitted_as_sorted_ones(seen: list[int], name: str, n_bins: int, times: int) -> None:
    """The same bits of center and scale too, since both are those of the sorted values, one a row."""
    values = np.asarray(seen * times, np.int64)
    ordered = np.sort(values).astype(np.float64)
    bent = ordered if name == "imbalance" else np.sign(ordered) * np.log1p(np.abs(ordered))
    edges = sorted({sorted(values.tolist())[k * len(values) // n_bins] for k in range(1, n_bins)})
    assert NumericField.fit(name, values, n_bins) == NumericField(tuple(edges), bent.mean(), bent.std() or 1.0)


@pytest.mark.parametrize("end", [2**63 - 1, -(2**63)])
def test_values_at_the_ends_of_int64_are_looked_up(end: int) -> None:
    values = [end, None, *([end] * 9), end - 1 if end > 0 else end + 1]
    field = NumericField.fit("size", np.asarray([x for x in values if x is not None], np.int64), 4)
    made = pl.DataFrame({"x": values}, schema={"x": pl.Int64}).select(field.tokens("size", pl.col("x"))).unnest("x")
    assert [(c, np.float32(v).tobytes()) for c, v in made.rows()] == [alone(field, False, x) for x in values]


@pytest.mark.parametrize("values", [[0.5, -1.0, None, 3.25], [None, None], []])
def test_floats_and_nulls_are_worked_out_row_by_row(values: list[float | None]) -> None:
    field = NumericField.fit("feature_1", np.asarray([0.25, 0.5, 3.25]), 3)
    column = pl.DataFrame({"x": values}, schema={"x": pl.Float64})
    made = column.select(field.tokens("feature_1", pl.col("x"))).unnest("x").rows()
    assert [(c, np.float32(v).tobytes()) for c, v in made] == [alone(field, True, x) for x in values]


def test_few_values_are_worked_out_once() -> None:
    """A hundred rows of three values: three and the missing one are asked for. Of as many values as rows, all are."""
    heights: list[int] = []

    def counted(column: pl.Expr) -> list[pl.Expr]:
        return [column.map_batches(lambda s: heights.append(len(s)) or s, return_dtype=pl.Int64).alias("same")]

    for values, asked in ((list(range(7, 10)) * 33 + [None], 4), (list(range(0, 200, 2)), 100)):
        frame = pl.DataFrame({"x": values}, schema={"x": pl.Int64})
        made = frame.select(once_a_value(pl.col("x"), counted, {"same": pl.Int64})).unnest("x")
        assert made["same"].to_list() == values
        assert heights.pop() == asked
        assert not heights


@pytest.mark.parametrize("n_edges", [1, 31, 64, 65, 300])
def test_edges_are_counted_as_they_are_searched(n_edges: int) -> None:
    """Few are compared with whole blocks and many are searched for: the same number, in blocks whole and broken."""
    random = np.random.default_rng(n_edges)
    edges = np.unique(random.integers(-(2**62), 2**62, n_edges))
    near = np.concatenate([edges, edges - 1, edges + 1, [-(2**63), 2**63 - 1]])
    values = random.choice(near, 40_000)
    made = pl.DataFrame({"x": values}).select(edges_not_above(pl.col("x"), edges.tolist())).to_series()
    assert made.dtype == pl.UInt32
    np.testing.assert_array_equal(made.to_numpy(), np.searchsorted(edges, values, side="right"))


def test_a_name_is_looked_up_once_a_run() -> None:
    names = ["B", "B", "A", "B", "C", "C"]
    ticks = {"A": 1, "B": 50, "C": 7}
    for some in (names, names[:1], []):
        frame = pl.DataFrame({"entity": some}, schema={"entity": pl.String})
        made = frame.select(once_a_run(pl.col("entity"), ticks)).to_series()
        assert made.dtype == pl.Int64
        assert made.to_list() == [ticks[name] for name in some]
    with pytest.raises(pl.exceptions.InvalidOperationError, match="incomplete mapping"):
        pl.DataFrame({"entity": [*names, "D"]}).select(once_a_run(pl.col("entity"), ticks))
