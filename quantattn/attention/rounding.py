"""What a recomputing implementation cannot avoid to lose: float64 attention with its roundings put in.

A tiled implementation forms scores, sums and the logsumexp in float32, and rounds weights and gradients by scores to
the dtype of the inputs before they are multiplied; its backward rebuilds the weights from the logsumexp, and subtracts
do·out, with an out that was rounded to that dtype, from do·v. Each of these is off here by one unit roundoff of its
format with a random sign, and nothing else is. So what comes out differs from the truth where standard attention, which
keeps its weights, happens to lose nothing: one visible key, one number, a power of two.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from quantattn.attention.dropout import kept_weights, threshold
from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask
from quantattn.attention.seen import seen_scores, seen_sum
from quantattn.attention.state import Attended

_SINGLE = 2.0**-24
"""Unit roundoff of float32."""


def _of_sum(size: Tensor, terms: int) -> Tensor:
    """What a sum in float32 loses, `size` the root of the sum of the squares of its terms.

    Added one after the other, n terms leave partial sums that grow like √(k/n) · size, and each addition is off by up
    to a unit, 1/√3 root mean square: √(n/6) units together, and one at least.
    """
    units = max(1.0, math.sqrt(terms / 6))
    return size * (_SINGLE * units)


class RoundedAttention:
    """A backend (one sequence, float64) that rounds as an implementation for inputs of `dtype` does.

    Args:
        dtype: of the implementation's inputs and outputs.
        seed: of the signs of the errors.
    """

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.unit = torch.finfo(dtype).eps / 2
        self.signs = torch.Generator().manual_seed(seed)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, cu_seqlens_k: Tensor, *,
        mask: Mask, bias: Tensor | None, scale: float, extras: Extras = Extras(),  # noqa: B008  a frozen value
    ) -> Attended:  # fmt: skip
        """Arguments and result as `exact_attention`."""
        group = q.shape[1] // k.shape[1]
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        k, v = (x.repeat_interleave(group, dim=0) for x in (k, v))
        bias = None if bias is None else bias.reshape(bias.shape[-3:])
        scores, seen = self._scores(q, k, mask, bias, scale, extras)
        n_q, n_k = scores.shape[1:]
        sees = seen.any(-1, keepdim=True)
        if extras.sinks is not None:
            sink = self._summed(extras.sinks[:, None, None], (len(q), n_q, 1))
            sees = sees | (sink != -torch.inf)
            scores = torch.cat([scores, sink], dim=-1)
        scores = scores.where(sees, 0)
        lse = torch.logsumexp(scores.detach(), dim=-1, keepdim=True)
        # Formed from a maximum and a logarithm, stored, and taken to the base of the exponential: three roundings.
        lse = self._off(lse, 2 * _SINGLE * (lse.abs() + 1))
        weights = torch.exp(scores - lse).where(sees, 0)
        weights = self._off(weights, 2 * _SINGLE * weights.detach())  # the exponential of a GPU is off by two
        lse = _ThroughWeights.apply(scores, lse, weights.detach(), self)  # type: ignore[no-untyped-call]
        mass = weights.sum(-1, keepdim=True).where(sees, 1)
        weights = weights[..., :n_k].where(seen, 0)
        if extras.dropout and extras.seed is not None:
            sequence, head = extras.origin
            kept = kept_weights(extras.seed, extras.dropout, sequence, (head, head + len(q)), (0, n_q), (0, n_k))
            weights = weights.where(kept, 0) * (2**32 / threshold(extras.dropout))
        out = _RoundedSum.apply(weights, v, seen, self)  # type: ignore[no-untyped-call]
        out = _WithDelta.apply(out, mass / mass.detach(), self)  # type: ignore[no-untyped-call]
        lse = lse.where(sees, -torch.inf)
        return Attended(out.transpose(0, 1), lse[..., 0].transpose(0, 1))

    def _scores(
        self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None, scale: float, extras: Extras
    ) -> tuple[Tensor, Tensor]:
        """(scores, seen): −∞ where invisible."""
        n_q, n_k = q.shape[1], k.shape[1]
        seen = mask.visible(n_q, n_k, device=q.device).expand(len(q), n_q, n_k)
        if bias is not None:
            seen = seen & (bias if bias.dtype == torch.bool else bias != -torch.inf)
        same = extras.visible()
        seen = seen if same is None else seen & same
        scores = seen_scores(q, k, seen)
        spread = seen_scores(q.detach().square(), k.detach().square(), seen).sqrt()
        scores = self._off(scores, _of_sum(spread, q.shape[-1])) * scale
        if extras.scales is not None:
            scores = scores * self._summed(extras.scales[:, None, None], scores.shape)
        size = scores.detach().abs()
        scores = extras.slanted(extras.bent(scores), (0, n_q), (0, n_k), n_k - n_q)
        if bias is not None and bias.dtype != torch.bool:
            scores = scores + self._summed(bias, scores.shape)
        size = size + 2 * scores.detach().abs().where(seen, 0)
        scores = self._off(scores.where(seen, -torch.inf), _SINGLE * size)
        return cast(Tensor, _RoundedGradient.apply(scores, self)), seen  # type: ignore[no-untyped-call]

    def _off(self, x: Tensor, size: Tensor) -> Tensor:
        """X off by `size` with a random sign."""
        return x + size * self.sign(x)

    def _summed(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """X broadcast, with a gradient that is off by what its sum loses."""
        return cast(Tensor, _SummedGradient.apply(x, shape, self))  # type: ignore[no-untyped-call]

    def sign(self, x: Tensor) -> Tensor:
        """−1 or 1 for each element, the same on every device."""
        return (torch.randint(2, x.shape, generator=self.signs) * 2 - 1).to(x.device, x.dtype)


class _RoundedSum(torch.autograd.Function):
    """`seen_sum` of rounded weights; its gradient by one, do·v, is off by what such a product loses in float32."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, v: Tensor, seen: Tensor, rounding: RoundedAttention) -> Tensor:
        weights = weights * (1 + rounding.unit * rounding.sign(weights))
        ctx.save_for_backward(weights, v, seen)
        ctx.rounding = rounding
        return seen_sum(weights, v, seen)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weights, v, seen = ctx.saved_tensors
        (do,) = grads
        spread = seen_scores(do.square(), v.square(), seen).sqrt()
        dw = seen_scores(do, v, seen)
        dw = dw + (_of_sum(spread, v.shape[-1]) + _SINGLE * dw.abs()) * ctx.rounding.sign(weights)
        return dw, seen_sum(weights.mT, do, seen.mT), None, None


class _WithDelta(torch.autograd.Function):
    """The sum over the mass 1, whose gradient is −do·out, with an out that was rounded."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, mass: Tensor, rounding: RoundedAttention) -> Tensor:
        ctx.save_for_backward(total, mass)
        ctx.rounding = rounding
        return total / mass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        total, mass = ctx.saved_tensors
        (do,) = grads
        stored = total * (1 + ctx.rounding.unit * ctx.rounding.sign(total))
        delta = (do * stored).sum(-1, keepdim=True)
        spread = (do * stored).square().sum(-1, keepdim=True).sqrt()
        size = _of_sum(spread, do.shape[-1]) + _SINGLE * delta.abs()
        return do / mass, -delta - size * ctx.rounding.sign(delta), None


class _ThroughWeights(torch.autograd.Function):
    """The logsumexp of the scores, whose gradient goes through the weights that were rebuilt from it."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, lse: Tensor, weights: Tensor, rounding: RoundedAttention) -> Tensor:
        ctx.save_for_backward(weights)
        ctx.rounding = rounding
        return lse.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (weights,) = ctx.saved_tensors
        (dlse,) = grads
        return weights * (dlse + _SINGLE * dlse.abs() * ctx.rounding.sign(dlse)), None, None, None


class _RoundedGradient(torch.autograd.Function):
    """The identity, whose gradient is rounded to the dtype of the inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounding: RoundedAttention) -> Tensor:
        ctx.rounding = rounding
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        return grad * (1 + ctx.rounding.unit * ctx.rounding.sign(grad)), None


class _SummedGradient(torch.autograd.Function):
    """The identity, whose gradient will be summed over the axes broadcast here and is off by what that sum loses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, ...], rounding: RoundedAttention) -> Tensor:
        ctx.rounding, ctx.shape = rounding, x.shape
        return x.expand(shape).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        terms = grad.numel() // max(1, ctx.shape.numel())
        grad = grad + _of_sum(grad.abs(), terms) * ctx.rounding.sign(grad)
        return grad.sum_to_size(ctx.shape), None, None
