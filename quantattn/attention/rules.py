"""Mask rules of one's own: who sees whom by an equation in the places of query and key.

A rule has two twins, one in torch and one as a small Triton function, and a name, by which a `Mask` and the operators
refer to it. The twins are compared on a device before the kernel is used there for the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Visible = Callable[[Tensor, Tensor, int, int], Tensor]
"""(query, key, Nq, Nk) → bool: places within their sequence, int64 tensors that broadcast against each other."""

_LENGTHS = ((1, 1), (70, 70), (40, 90), (90, 40))
"""(Nq, Nk) on which twins are compared: fewer, as many and more queries than keys."""


@dataclass(frozen=True)
class MaskRule:
    """A rule and the devices on which its twins were found equal.

    Attributes:
        name: by which masks refer to it.
        visible: the torch twin.
        kernel: the twin as a `triton.jit` function of (query, key, n_q, n_k), or None: then no kernel takes it.
        checked: devices.
    """

    name: str
    visible: Visible
    kernel: Any | None = None
    checked: set[torch.device] = field(default_factory=set, compare=False, repr=False)

    def of(self, query: Tensor, key: Tensor, n_q: int, n_k: int) -> Tensor:
        """The torch twin's answer.

        Raises:
            TypeError: it is not a bool tensor.
        """
        seen = self.visible(query, key, n_q, n_k)
        if not isinstance(seen, Tensor) or seen.dtype != torch.bool:
            got = f"a {seen.dtype} tensor" if isinstance(seen, Tensor) else type(seen).__name__
            raise TypeError(f"mask rule {self.name!r} must return a bool tensor, got {got}")
        return seen

    def checked_kernel(self, device: torch.device) -> Any:
        """The Triton twin, after it has been compared with the torch twin on this device.

        Raises:
            ValueError: there is none, or the two disagree; the sentence names the first pair.
        """
        if self.kernel is None:
            raise ValueError(f"mask rule {self.name!r} has no Triton function; register it with kernel=…")
        if device not in self.checked:
            from quantattn.attention.kernels.rules import evaluate

            for n_q, n_k in _LENGTHS:
                query, key = torch.arange(n_q, device=device)[:, None], torch.arange(n_k, device=device)[None, :]
                expected = self.of(query, key, n_q, n_k).expand(n_q, n_k)
                wrong = (evaluate(self.kernel, n_q, n_k, device) != expected).nonzero()
                if len(wrong):
                    i, j = wrong[0].tolist()
                    shown = "shows" if expected[i, j] else "hides"
                    raise ValueError(
                        f"the twins of mask rule {self.name!r} disagree: with Nq = {n_q} and Nk = {n_k} torch {shown} "
                        f"key {j} to query {i} and the kernel does not agree"
                    )
            self.checked.add(device)
        return self.kernel


_RULES: dict[str, MaskRule] = {}


def register_mask_rule(name: str, visible: Visible, kernel: Any | None = None) -> str:
    """Make a rule known; `Mask(rule=name)` then sees what its bounds and the rule let it see.

        @triton.jit
        def every_third(query, key, n_q, n_k):
            return (key % 3 == 0) | (key == query + n_k - n_q)

        register_mask_rule("every third", lambda i, j, n_q, n_k: (j % 3 == 0) | (j == i + n_k - n_q), every_third)

    A rule reads nothing but its four arguments, so that what it hides does not depend on data. Every block of a mask
    with a rule is visited as a partly visible one: bounds, where the rule has some, belong into the mask.

    Args:
        name: not taken yet, unless by the same functions.
        visible: the torch twin.
        kernel: the `triton.jit` twin; None leaves the rule to the backends without kernels.

    Returns:
        The name.

    Raises:
        ValueError: an empty name, or one that another rule has.
        TypeError: `visible` cannot be called.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"a mask rule needs a name, got {name!r}")
    if not callable(visible):
        raise TypeError(f"mask rule {name!r} needs a torch function of (query, key, Nq, Nk), got {visible!r}")
    rule = MaskRule(name, visible, kernel)
    if _RULES.get(name, rule) != rule:
        raise ValueError(f"there is another mask rule of the name {name!r}")
    _RULES.setdefault(name, rule)
    return name


def rule_named(name: str) -> MaskRule:
    """A registered rule.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in _RULES:
        known = ", ".join(sorted(_RULES)) or "none"
        raise ValueError(f"there is no mask rule {name!r}; registered: {known}")
    return _RULES[name]
