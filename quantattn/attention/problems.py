"""Inputs of attention for tests, benchmarks and certificates, drawn from a seed.

Dimensions: N sequences, T packed queries, Tk packed keys, H query heads, Hkv key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask

Bias = Literal["none", "key", "query", "place", "head", "full", "bool"]
EXTRAS = ("softcap", "scales", "alibi", "sinks", "segments", "dropout")


@dataclass(frozen=True)
class Problem:
    """One input of attention with the gradients that come back from its results.

    Attributes:
        q: (T, H, D).
        k: (Tk, Hkv, D).
        v: (Tk, Hkv, D).
        cu_seqlens: (N + 1,) int32.
        cu_seqlens_k: (N + 1,) int32.
        mask: who sees whom.
        bias: broadcastable to (N, H, longest Nq, longest Nk), or None.
        scale: factor of q·k.
        do: (T, H, D), gradient of the loss by out.
        dlse: (T, H), gradient of the loss by lse, or None when the loss does not use it.
        label: what the problem is about.
        extras: what else acts on scores and weights.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens: Tensor
    cu_seqlens_k: Tensor
    mask: Mask
    bias: Tensor | None
    scale: float
    do: Tensor
    dlse: Tensor | None = None
    label: str = ""
    extras: Extras = Extras()  # noqa: RUF009  a frozen value

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Problem:
        """The same problem rounded to `dtype` and moved to `device`; bias and dlse keep their dtype."""

        return replace(
            self,
            q=self.q.to(device=device, dtype=dtype),
            k=self.k.to(device=device, dtype=dtype),
            v=self.v.to(device=device, dtype=dtype),
            do=self.do.to(device=device, dtype=dtype),
            bias=None if self.bias is None else self.bias.to(device=device),
            dlse=None if self.dlse is None else self.dlse.to(device=device),
            cu_seqlens=self.cu_seqlens.to(device=device),
            cu_seqlens_k=self.cu_seqlens_k.to(device=device),
            extras=self.extras.to(device=device),
        )


def random_problem(
    seed: int,
    lengths: Sequence[int],
    lengths_k: Sequence[int] | None = None,
    *,
    heads: int = 2,
    heads_k: int | None = None,
    d: int = 16,
    mask: Mask | None = None,
    bias: Bias = "none",
    extras: Collection[str] = (),
    dlse: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    label: str = "",
) -> Problem:
    """Standard-normal q, k, v, do of the given lengths, drawn on the CPU in float64 so that every device sees the same.

    Args:
        seed: of the draw.
        lengths: queries of each sequence; zeros are allowed.
        lengths_k: keys of each sequence; the same as the queries when None.
        heads: H.
        heads_k: Hkv, H when None.
        d: D.
        mask: everything visible when None.
        bias: none; one number a key, (1, 1, 1, longest Nk); a query, (1, H, longest Nq, 1); a place, (1, 1, longest Nq,
            longest Nk); a head; or everywhere, (N, H, longest Nq, longest Nk), with some −∞ in it; or bool everywhere.
        extras: which of softcap, scales, alibi, sinks, segments and dropout act.
        dlse: whether a gradient comes back through lse too.
        dtype: of q, k, v, do.
        device: where the problem stands.
        label: carried along.
    """
    wide = torch.promote_types(dtype, torch.float32)  # of bias and dlse
    lengths_k = lengths if lengths_k is None else lengths_k
    heads_k = heads if heads_k is None else heads_k
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    n_q, n_k = sum(lengths), sum(lengths_k)
    q, k, v, do = draw(n_q, heads, d), draw(n_k, heads_k, d), draw(n_k, heads_k, d), draw(n_q, heads, d)
    by_lse = draw(n_q, heads)
    added = _bias(bias, rng, (len(lengths), heads, max(lengths, default=0), max(lengths_k, default=0)))
    if added is not None and added.is_floating_point():
        added = added.to(wide)
    return Problem(
        q=q,
        k=k,
        v=v,
        cu_seqlens=_offsets(lengths),
        cu_seqlens_k=_offsets(lengths_k),
        mask=mask or Mask(),
        bias=added,
        scale=d**-0.5,
        do=do,
        dlse=by_lse.to(wide) if dlse else None,
        label=label,
        extras=_extras(extras, rng, lengths, lengths_k, heads).to(wide),
    ).to(dtype, device)


def any_problem(
    kind: int, seed: int, *, dtype: torch.dtype, device: torch.device | str = "cpu", longest: int = 40
) -> Problem:
    """A problem of any sort: heads, head size, sort of mask and bias, and extras from `kind`, the rest from `seed`.

    What a kernel is compiled for follows from the kind (and dtype), lengths, bounds and values from the seed. Half of
    the kinds have sequences of one length, as a dense batch has.
    """
    fixed, free = torch.Generator().manual_seed(kind), torch.Generator().manual_seed(seed)

    def pick(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=fixed))]

    def upto(n: int) -> int:
        return int(torch.randint(n + 1, (), generator=free))

    count, heads_k, equal, crossed = pick(1, 1, 2, 3, 5), pick(1, 2, 3), pick(True, False), pick(True, False, False)
    heads, d = heads_k * pick(1, 2, 3), pick(1, 8, 16, 24, 40, 64, 80)
    bias = pick("none", "none", "none", "key", "query", "place", "head", "full", "bool")
    extras = [name for name in EXTRAS if pick(True, False, False, False)]
    sort, dlse = (
        pick("full", "causal", "window", "left", "right", "causal window", "prefix", "prefix window"),
        pick(0, 1),
    )

    def lengths() -> list[int]:
        return [upto(longest)] * count if equal else [upto(longest) for _ in range(count)]

    n_q = lengths()
    n_k = lengths() if crossed else n_q
    left, right, prefix = upto(longest // 3), upto(longest // 4), 1 + upto(longest // 3)
    masks = {
        "full": Mask(),
        "causal": Mask(causal=True),
        "window": Mask(window=(left, right)),
        "left": Mask(window=(left, None)),
        "right": Mask(window=(None, right)),
        "causal window": Mask(causal=True, window=(left, None)),
        "prefix": Mask(causal=True, prefix=prefix),
        "prefix window": Mask(window=(left, right), prefix=prefix),
    }
    label = f"kind {kind}, seed {seed}: {sort}, bias {bias}, {', '.join(extras) or 'no extras'}"
    return random_problem(
        seed, n_q, n_k, heads=heads, heads_k=heads_k, d=d, mask=masks[sort], bias=bias, extras=extras,
        dlse=dlse, dtype=dtype, device=device, label=label,
    )  # fmt: skip


def _bias(kind: Bias, rng: torch.Generator, shape: tuple[int, int, int, int]) -> Tensor | None:
    n, h, i, j = shape
    if kind == "none":
        return None
    shapes = {"key": (1, 1, 1, j), "query": (1, h, i, 1), "place": (1, 1, i, j), "head": (n, h, 1, 1)}
    bias = torch.randn(shapes.get(kind, shape), generator=rng, dtype=torch.float64)
    if kind in ("full", "bool"):
        hidden = torch.rand(shape, generator=rng) < 0.1
        return ~hidden if kind == "bool" else bias.masked_fill(hidden, -torch.inf)
    return bias


def _extras(
    names: Collection[str], rng: torch.Generator, lengths: Sequence[int], lengths_k: Sequence[int], heads: int
) -> Extras:
    unknown = sorted(set(names) - set(EXTRAS))
    if unknown:
        raise ValueError(f"extras are {', '.join(EXTRAS)}; got {', '.join(unknown)}")

    def per_head() -> Tensor:
        return torch.randn(heads, generator=rng, dtype=torch.float64)

    values: dict[str, Any] = {}
    if "softcap" in names:
        values["softcap"] = 1.5
    if "scales" in names:
        values["scales"] = 1 + 0.5 * per_head()
    if "alibi" in names:
        values["alibi"] = per_head().abs() / 8
    if "sinks" in names:
        values["sinks"] = per_head()
    if "segments" in names:
        values["segments"], values["segments_k"] = (
            torch.cat([_documents(n, rng) for n in side]) for side in (lengths, lengths_k)
        )
    if "dropout" in names:
        values["dropout"], values["seed"] = 0.25, torch.randint(2**40, (1,), generator=rng)
    return Extras(**values)


def _documents(n: int, rng: torch.Generator) -> Tensor:
    """(n,) int32, three or fewer runs of equal numbers, the last of which may come again."""
    return ((torch.arange(n) * 3) // max(n, 1) % int(torch.randint(2, 4, (), generator=rng))).int()


def _offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32)
