"""Keys and values that a stream has brought so far, so that a new event costs what it sees and not what came before.

    cache = KeyValueCache(mask=Mask(causal=True, window=(4096, 0)))
    for q, k, v in events:                 # (n, H, D), (n, Hkv, D), (n, Hkv, D)
        cache.append(k, v)
        out, lse = cache.attend(q)

gives, bit for bit, the rows of `attention(q, k, v, mask=mask, deterministic="batch")` over everything at once, however
the stream was cut into pieces: in that mode a query's sums depend on its keys and their places alone, and the cache
lets go of keys in whole blocks only, so that those that stay keep their places in their blocks.

Dimensions: B streams in step, n new tokens, H query heads, Hkv key/value heads, D head size.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from quantattn.attention.api import attention
from quantattn.attention.mask import Mask
from quantattn.attention.state import Attended
from quantattn.attention.tiling import ORDERED_K


class KeyValueCache:
    """The keys and values of one causal layer, of one stream (n, Hkv, D) or of B streams in step (B, n, Hkv, D).

    Places are counted from the start of the stream and never change. Buffers are at most about twice what is held, and
    appending costs O(1) a token on average. Keys and values that were appended get no gradient.

    Attributes:
        mask: who sees whom; causal, and with a window (left, 0) the cache holds that many keys and little more.
        margin: how many tokens `rollback` can always take back; keys are held that much longer. Without a window
            everything can be taken back.
        backend: of `attention`: "auto", "triton" or "tiled".
        first: place of the first key that is held.
        length: how many tokens have been appended and not taken back; the place of the next one.
    """

    def __init__(self, *, mask: Mask = Mask(causal=True), margin: int = 0, backend: str = "auto") -> None:  # noqa: B008  a frozen value
        if not isinstance(mask, Mask):
            raise TypeError(f"mask must be a Mask, got {type(mask).__name__}")
        if mask.right != 0 or mask.prefix or mask.rule is not None:
            raise ValueError(
                "a stream sees no later key and forgets its first ones; expected a causal mask without prefix or rule, "
                f"got {mask}"
            )
        if type(margin) is not int or margin < 0:
            raise ValueError(f"margin counts tokens and must be an int ≥ 0, got {margin!r}")
        self.mask, self.margin, self.backend = mask, margin, backend
        self.first = 0
        self.length = 0
        self._start = 0  # row of the buffers at which place `first` stands
        self._k: Tensor | None = None  # (…, capacity, Hkv, D)
        self._v: Tensor | None = None

    @property
    def held(self) -> int:
        """How many keys are held."""
        return self.length - self.first

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(x.numel() * x.element_size() for x in (self._k, self._v) if x is not None)

    def append(self, k: Tensor, v: Tensor) -> None:
        """Put n ≥ 0 tokens at the end, after letting go of the blocks that no query from the present end on can see.

        Args:
            k: (n, Hkv, D), or (B, n, Hkv, D); every later piece has the B, Hkv, D, dtype and device of the first.
            v: as k.

        Raises:
            ValueError: shapes, dtypes or devices that differ, or a gradient that would be lost.
        """
        self._check(k, v)
        n = k.shape[-3]
        if self.mask.left is not None:
            unseen = max(0, self.length - self.mask.left - self.margin) // ORDERED_K * ORDERED_K
            self._start += max(0, unseen - self.first)
            self.first = max(self.first, unseen)
        self._make_room(k, v, n)
        for buffer, new in ((self._k, k), (self._v, v)):
            assert buffer is not None  # `_make_room` has made it
            buffer.narrow(-3, self._start + self.held, n).copy_(new.detach())
        self.length += n

    def attend(
        self,
        q: Tensor,
        *,
        scale: float | Tensor | None = None,
        softcap: float | None = None,
        alibi: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Attended:
        """Attention of the newest n tokens, whose keys and values are the last that were appended.

        Costs O(n · seen). Arguments as in `attention`. The result is differentiable in q, scale and sinks until the
        next append.

        Args:
            q: (n, H, D), or (B, n, H, D).
            scale: factor of q·k, 1/√D when None.
            softcap: see `attention`.
            alibi: see `attention`.
            sinks: see `attention`.

        Returns:
            out as q, and lse (n, H) or (B, n, H).

        Raises:
            ValueError: more queries than tokens, a query whose keys were let go, or shapes that do not belong together.
        """
        if self._k is None or self._v is None:
            raise ValueError("the cache is empty; append keys and values before attending")
        if not isinstance(q, Tensor) or q.dim() != self._k.dim():
            got = tuple(q.shape) if isinstance(q, Tensor) else type(q).__name__
            raise ValueError(f"q must be a tensor of {self._k.dim()} axes as the keys are, got {got}")
        n = q.shape[-3]
        if n > self.length:
            raise ValueError(f"the queries belong to the newest tokens; got {n} queries and {self.length} tokens")
        self._require(self.length - n, f"{n} queries reach back further than the newest append")
        k, v = (x.narrow(-3, self._start, self.held) for x in (self._k, self._v))
        return attention(
            q, k, v, mask=self.mask, scale=scale, softcap=softcap, alibi=alibi, sinks=sinks,
            deterministic="batch", backend=self.backend,
        )  # fmt: skip

    def rollback(self, n: int) -> None:
        """Take back the newest n tokens, as if they had never been appended.

        Raises:
            ValueError: there are fewer, or keys that the next token would see were let go (see `margin`).
        """
        if type(n) is not int or not 0 <= n <= self.length:
            raise ValueError(f"rollback takes an int from 0 to the {self.length} tokens there are, got {n!r}")
        self._require(self.length - n, f"taking back {n} tokens goes further than margin={self.margin} allows")
        self.length -= n

    def fork(self) -> Self:
        """An independent copy that goes on from here; keys and values that are held are copied now, O(held)."""
        other = type(self)(mask=self.mask, margin=self.margin, backend=self.backend)
        other.first, other.length = self.first, self.length
        if self._k is not None and self._v is not None:
            other._k, other._v = (x.narrow(-3, self._start, self.held).clone() for x in (self._k, self._v))
        return other

    def _require(self, place: int, why: str) -> None:
        """Raise unless every key that a query at this place sees is held."""
        oldest = 0 if self.mask.left is None else max(0, place - self.mask.left)
        if oldest < self.first:
            raise ValueError(f"{why}: a query at place {place} sees keys from {oldest} on, held from {self.first} on")

    def _check(self, k: Tensor, v: Tensor) -> None:
        if not isinstance(k, Tensor) or not isinstance(v, Tensor):
            raise TypeError(f"k and v must be tensors, got {type(k).__name__} and {type(v).__name__}")
        shapes = f"k {tuple(k.shape)} {k.dtype} {k.device}, v {tuple(v.shape)} {v.dtype} {v.device}"
        if k.dim() not in (3, 4) or k.shape != v.shape or k.dtype != v.dtype or k.device != v.device:
            raise ValueError(f"k and v must both be (n, Hkv, D) or both (B, n, Hkv, D), of one dtype, got {shapes}")
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ValueError("a cache gives its keys and values no gradient; append them under torch.no_grad()")
        if self._k is None:
            return
        expected = (*self._k.shape[:-3], *self._k.shape[-2:]), self._k.dtype, self._k.device
        if ((*k.shape[:-3], *k.shape[-2:]), k.dtype, k.device) != expected:
            sizes = [*map(str, self._k.shape[:-3]), "n", *map(str, self._k.shape[-2:])]
            first = f"({', '.join(sizes)}) {expected[1]} {expected[2]}"
            raise ValueError(f"expected k and v as the first ones, {first}, got {shapes}")

    def _make_room(self, k: Tensor, v: Tensor, n: int) -> None:
        """Buffers with n free rows after the last: moved to the front while they are half empty, else doubled."""
        capacity = 0 if self._k is None else self._k.shape[-3]
        needed = max(2 * (self.held + n), ORDERED_K)
        if self._k is not None and self._start + self.held + n <= capacity <= 2 * needed:
            return
        if self._start < self.held or self.held + n > capacity or capacity > 2 * needed:
            capacity = needed
        moved = []
        for old, new in ((self._k, k), (self._v, v)):
            buffer = new.new_empty(*new.shape[:-3], capacity, *new.shape[-2:])
            if old is not None:
                buffer.narrow(-3, 0, self.held).copy_(old.narrow(-3, self._start, self.held))
            moved.append(buffer)
        self._k, self._v = moved
        self._start = 0
