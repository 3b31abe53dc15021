"""What eight bits cost: `float8_attention` against float64, beside bfloat16, on data with and without outliers.

Its budget is in the unit of what is lost anyway, as that of 16 bits is (`testing.py`): standard attention whose q, k, v
and weights are rounded to float8 with one scale a tensor. An implementation passes when the largest and the root mean
square error of out, and those of lse, are at most twice that. `python -m quantattn.attention.float8_errors` prints it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quantattn.attention.exact import exact_attention, standard_attention
from quantattn.attention.float8 import float8_attention, quantise
from quantattn.attention.mask import Mask
from quantattn.attention.state import Attended


class Error(NamedTuple):
    """Largest and root mean square error against float64."""

    largest: float
    rms: float


class Row(NamedTuple):
    """One way to compute one problem.

    Attributes:
        data: name of the distribution.
        how: the way.
        out: error of out.
        lse: error of lse.
        ratio: RMS error of out over that of float8 with one scale a tensor.
        ok: whether all errors are within the budget of float8.
    """

    data: str
    how: str
    out: Error
    lse: Error
    ratio: float
    ok: bool


def _normal(x: Tensor, name: str, rng: torch.Generator) -> Tensor:
    return x


def _outliers(x: Tensor, name: str, rng: torch.Generator) -> Tensor:
    """N(0, 1) + N(0, 100) · Bernoulli(0.001): Shah et al. 2024, §4.3."""
    return x + 10 * torch.randn(x.shape, generator=rng) * (torch.rand(x.shape, generator=rng) < 0.001)


def _columns(x: Tensor, name: str, rng: torch.Generator) -> Tensor:
    """Two columns of all keys are about 20, as in trained models: Zhang et al. 2024, SageAttention, §4.2."""
    if name == "k":
        x[..., :2] += 20
    return x


DISTRIBUTIONS: dict[str, Callable[[Tensor, str, torch.Generator], Tensor]] = {
    "normal": _normal, "outliers": _outliers, "columns": _columns,
}  # fmt: skip
"""What is made of a standard normal tensor and its name."""
HOPPER = "the last in Hopper's kernel"
"""Where there is such a GPU; its results are rounded to bfloat16 as well."""
WAYS = {
    "float8, one scale a tensor": {"per_block": False, "incoherent": False},
    "float8, scales by block": {"per_block": True, "incoherent": False},
    "float8, by block and rotated": {"per_block": True, "incoherent": True},
}


def draw(data: str, n_q: int, n_k: int, heads: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(q, k, v), float32: (Nq, H, D) and (Nk, H, D), each number a bfloat16, so that every way has the same inputs."""
    rng = torch.Generator().manual_seed(seed)
    q, k, v = (
        DISTRIBUTIONS[data](torch.randn(n, heads, d, generator=rng), name, rng).bfloat16().float()
        for name, n in (("q", n_q), ("k", n_k), ("v", n_k))
    )
    return q, k, v


def standard_float8(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Attended:
    """Attention as it is usually written, its four operands in float8 with one scale a tensor; (N, H, D), float32."""
    q, k, v = (quantise(x[None], len(x), shared=True).restored()[0].transpose(0, 1) for x in (q, k, v))
    hidden = ~Mask(causal=causal).visible(q.shape[1], k.shape[1], q.device)
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    out = weights.to(torch.float8_e4m3fn).float() @ v / weights.sum(-1, keepdim=True)
    return Attended(out.transpose(0, 1), torch.logsumexp(scores, -1).T)


def float8_errors(
    data: str, n_q: int, n_k: int, heads: int, d: int, *, causal: bool = False, seed: int = 0, device: str = "cpu"
) -> list[Row]:
    """Errors of bfloat16 and of each way of float8 on one problem; forms the matrix, for the truth.

    Every query must see a key.
    """
    q, k, v = (x.to(device) for x in draw(data, n_q, n_k, heads, d, seed))
    mask, offsets = Mask(causal=causal), [q.new_tensor([0, n], dtype=torch.int32) for n in (n_q, n_k)]
    truth = exact_attention(q.double(), k.double(), v.double(), *offsets, mask=mask, bias=None, scale=d**-0.5)

    def lost(found: Attended) -> tuple[Error, Error]:
        gaps = [(x.double() - y) for x, y in zip(found, truth, strict=True)]
        out, lse = (Error(float(gap.abs().max()), float(gap.square().mean().sqrt())) for gap in gaps)
        return out, lse

    usual = lost(standard_float8(q, k, v, causal))
    half = [x.bfloat16() for x in (q, k, v)]
    found = {"bfloat16": lost(standard_attention(*half, *offsets, mask=mask, bias=None, scale=d**-0.5))}
    for how, options in WAYS.items():
        found[how] = lost(float8_attention(q, k, v, mask=mask, **options))  # type: ignore[arg-type]
    if q.is_cuda and torch.cuda.get_device_capability(q.device) == (9, 0):
        found[HOPPER] = lost(float8_attention(*half, mask=mask, backend="hopper"))
    plain = found["float8, one scale a tensor"][0].rms
    return [
        Row(data, how, out, lse, out.rms / plain,
            all(x <= 2 * y for have, can in zip((out, lse), usual, strict=True)
                for x, y in zip(have, can, strict=True)))
        for how, (out, lse) in found.items()
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 when a way is outside the budget."""
    parser = argparse.ArgumentParser(prog="python -m quantattn.attention.float8_errors", description=__doc__)
    for name, value in (("queries", 512), ("keys", 16_384), ("heads", 2), ("head-size", 128), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args(arguments)
    rows = [
        row for data in DISTRIBUTIONS
        for row in float8_errors(data, asked.queries, asked.keys, asked.heads, asked.head_size,
                                 causal=asked.causal, seed=asked.seed, device=asked.device)
    ]  # fmt: skip
    print(f"{'data':10}{'computed in':30}{'max out':>10}{'RMS out':>10}{'RMS lse':>10}{'ratio':>8}  within budget")
    for row in rows:
        figures = f"{row.out.largest:>10.2e}{row.out.rms:>10.2e}{row.lse.rms:>10.2e}{row.ratio:>8.3f}"
        print(f"{row.data:10}{row.how:30}{figures}  {'yes' if row.ok else 'NO'}")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
