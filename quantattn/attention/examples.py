"""The worked examples: attention small enough to be done by hand, with exact rational answers and known wrong ones."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantattn.attention.mask import Mask
from quantattn.attention.state import Attended

_PARTS = 3
"""Head columns that a score is spread over, so that three numbers of a 16-bit dtype add up to it."""


class Arguments(NamedTuple):
    """What a backend is called with: the first five in this order, the others by name."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens: Tensor
    cu_seqlens_k: Tensor
    mask: Mask
    bias: Tensor | None
    scale: float


@dataclass(frozen=True)
class Block:
    """The state of some keys of an example's first query.

    Attributes:
        keys: half-open range.
        m: maximum score, a natural logarithm, −∞ when all are hidden.
        l: Σ exp(score − m).
        u: Σ exp(score − m) · value.
        out: the block's own answer u / l.
        rescaled_by: exp(m − m of all blocks), by which l and u are multiplied before they are added.
    """

    keys: tuple[int, int]
    m: float
    l: Fraction
    u: Fraction
    out: Fraction
    rescaled_by: Fraction


@dataclass(frozen=True)
class Example:
    """One worked example.

    Attributes:
        name: what it is called.
        text: what it shows.
        mask: who sees whom.
        scores: (H, Nq, Nk) float64, before the bias.
        values: (Hkv, Nk) float64, one number a key.
        bias: (Nq, Nk) float64, or None.
        weights: (H, Nq, Nk) float64, the right softmax.
        out: (H, Nq) float64, the right answer.
        lse: (H, Nq) float64, the right natural logsumexp.
        wrong: name of a mistake → (H, Nq) float64, what it leads to.
        blocks: states of blocks of keys, where the example splits them; empty otherwise.
        merged: (m, l, u) of all blocks together, or None.
    """

    name: str
    text: str
    mask: Mask
    scores: Tensor
    values: Tensor
    bias: Tensor | None
    weights: Tensor
    out: Tensor
    lse: Tensor
    wrong: Mapping[str, Tensor]
    blocks: tuple[Block, ...]
    merged: tuple[float, Fraction, Fraction] | None

    def arguments(
        self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu", d: int = 16, stretch: int = 1
    ) -> Arguments:
        """q, k, v and the rest that make a backend compute the example, scale 1.

        Query i of its group holds ones in its own three columns and each key holds the query's score there, in three
        parts that add up to it, so that 16-bit inputs carry scores like ln 3 to about 24 bits. The columns of v are the
        value, minus the value, and 1.

        With `stretch` > 1 the queries and the keys stand that many places apart, so that they fall into different
        tiles of an implementation whose tiles are large. Between them are queries of zeros, and keys and values of NaN
        which the bias hides; the example's results are the rows `[::stretch]`.

        Raises:
            ValueError: the head size d is too small to hold the scores.
        """
        heads, n_q, n_k = self.scores.shape
        heads_k = self.values.shape[0]
        group = heads // heads_k
        if d < _PARTS * group * n_q:
            raise ValueError(f"example {self.name!r} needs a head size of {_PARTS * group * n_q}, got {d}")
        q = torch.zeros(n_q, heads, d, dtype=torch.float64)
        k = torch.zeros(n_k, heads_k, d, dtype=torch.float64)
        for head in range(heads):
            for i in range(n_q):
                first = _PARTS * (head % group * n_q + i)
                q[i, head, first : first + _PARTS] = 1
                k[:, head // group, first : first + _PARTS] = _in_parts(self.scores[head, i], dtype)
        v = torch.zeros(n_k, heads_k, d, dtype=torch.float64)
        v[..., 0], v[..., 1], v[..., 2] = self.values.T, -self.values.T, 1
        bias, mask = self.bias, self.mask
        if stretch > 1:
            q, k, v = _apart(q, stretch, 0.0), _apart(k, stretch, torch.nan), _apart(v, stretch, torch.nan)
            bias = torch.zeros(n_q, n_k, dtype=torch.float64) if bias is None else bias
            bias = _apart(_apart(bias, stretch, 0.0).mT, stretch, -torch.inf).mT
            left, right = (None if bound is None else bound * stretch for bound in (mask.left, mask.right))
            mask = Mask(window=(left, right), prefix=mask.prefix * stretch)
        return Arguments(
            q=q.to(device, dtype),
            k=k.to(device, dtype),
            v=v.to(device, dtype),
            cu_seqlens=torch.tensor([0, q.shape[0]], dtype=torch.int32, device=device),
            cu_seqlens_k=torch.tensor([0, k.shape[0]], dtype=torch.int32, device=device),
            mask=mask,
            bias=None if bias is None else bias.to(device, torch.promote_types(dtype, torch.float32)),
            scale=1.0,
        )

    def expected(self, d: int = 16) -> Attended:
        """The right result for `arguments`: out (Nq, H, d) and lse (Nq, H), float64."""
        out = torch.zeros(self.out.shape[1], self.out.shape[0], d, dtype=torch.float64)
        out[..., 0], out[..., 1] = self.out.T, -self.out.T
        out[..., 2] = torch.isfinite(self.lse.T).to(torch.float64)
        return Attended(out, self.lse.T.contiguous())


@cache
def worked_examples() -> tuple[Example, ...]:
    """Every example of `worked_examples.json`, from the installed package or from `data/` of a checkout."""
    installed = files("quantattn").joinpath("worked_examples.json")
    source = installed if installed.is_file() else Path(__file__).parents[2] / "data" / "worked_examples.json"
    return tuple(_example(entry) for entry in json.loads(source.read_text("utf-8"))["examples"])


def number(written: str | Mapping[str, str]) -> float:
    """The float64 nearest to a number of the file: "17/6", "-inf", "nan", {"ln": "3"}, {"ln": "2", "plus": "10000"}."""
    if isinstance(written, str):
        return float(written) if written in ("-inf", "nan") else float(Fraction(written))
    return float(Fraction(written.get("plus", "0"))) + math.log(Fraction(written["ln"]))


def _example(entry: Mapping[str, Any]) -> Example:
    window = entry["mask"]["window"]
    merged = entry.get("merged")
    return Example(
        name=entry["name"],
        text=entry["text"],
        mask=Mask(causal=entry["mask"]["causal"], window=None if window is None else tuple(window)),
        scores=_tensor(entry["scores"]),
        values=_tensor(entry["values"]),
        bias=_tensor(entry["bias"]) if "bias" in entry else None,
        weights=_tensor(entry["weights"]),
        out=_tensor(entry["out"]),
        lse=_tensor(entry["lse"]),
        wrong={wrong["name"]: _tensor(wrong["out"]) for wrong in entry["wrong"]},
        blocks=tuple(_block(block) for block in entry.get("blocks", ())),
        merged=None if merged is None else (number(merged["m"]), Fraction(merged["l"]), Fraction(merged["u"])),
    )


def _block(entry: Mapping[str, Any]) -> Block:
    first, last = entry["keys"]
    l, u, out, rescaled_by = (Fraction(entry[name]) for name in ("l", "u", "out", "rescaled_by"))
    return Block((first, last), number(entry["m"]), l, u, out, rescaled_by)


def _tensor(written: Any) -> Tensor:
    def read(entry: Any) -> Any:
        return [read(part) for part in entry] if isinstance(entry, list) else number(entry)

    return torch.tensor(read(written), dtype=torch.float64)


def _apart(x: Tensor, stretch: int, between: float) -> Tensor:
    """(N, …) → ((N − 1)·stretch + 1, …): the rows `stretch` places apart and `between` in the places between them."""
    spread = torch.full(((x.shape[0] - 1) * stretch + 1, *x.shape[1:]), between, dtype=x.dtype)
    spread[::stretch] = x
    return spread


def _in_parts(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """(Nk,) → (Nk, 3) numbers of `dtype` that add up to the scores as nearly as they can."""
    parts, rest = [], scores
    for _ in range(_PARTS):
        part = rest.to(dtype).double()
        parts.append(part)
        rest = rest - part
    return torch.stack(parts, dim=-1)
