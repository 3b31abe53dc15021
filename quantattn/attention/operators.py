"""Registration of the library's operators with torch's dispatcher, thin enough for small problems.

`torch.library.custom_op` does the same and more: at every call it reads the operator's schema again, which for one of
thirty arguments takes longer than a small attention on a GPU. Here the dispatcher calls the implementation at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.compiler import disable

_LIBRARY = torch.library.Library("quantattn", "FRAGMENT")  # type: ignore[no-untyped-call]


class _Opaque:
    """An implementation that no compiler looks into, though telling one so would import it, which takes a second.

    Before it is imported nothing is compiled. Which of the two holds is asked at every call, and by a property: there
    is no tensor in its frame, so that a compiler passes it over.
    """

    def __init__(self, implementation: Callable[..., Any]) -> None:
        self._plain = implementation
        self._disabled: Callable[..., Any] | None = None

    @property
    def __call__(self) -> Callable[..., Any]:
        if "torch._dynamo" not in sys.modules:
            return self._plain
        if self._disabled is None:
            self._disabled = disable(self._plain)  # type: ignore[no-untyped-call]
        return self._disabled


def operator(name: str, schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], OpOverload]:
    """Register the function below as `quantattn::name`, on every device.

    Args:
        name: within the namespace.
        schema: arguments and results in torch's notation; results are new tensors.
        fake: outputs without data, for tracing.
    """

    def register(implementation: Callable[..., Any]) -> OpOverload:
        _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
        _LIBRARY.impl(name, _Opaque(implementation), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"quantattn::{name}", fake, lib=_LIBRARY)
        overload: OpOverload = getattr(torch.ops.quantattn, name).default
        return overload

    return register


def differentiate(
    op: OpOverload,
    backward: Callable[..., tuple[Tensor | None, ...]] | None = None,
    save: Callable[[Any, tuple[Any, ...], Any], None] | None = None,
) -> None:
    """Say what the gradients of an operator are; without a backward, that it has none.

    Args:
        op: of `operator`.
        backward: (ctx, gradients of the outputs) → gradients of all arguments; made of operators.
        save: (ctx, all arguments, outputs), as `setup_context` of an autograd function.
    """
    defaults = tuple(argument.default_value for argument in op._schema.arguments)

    class Differentiated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                output = op(*inputs)
            if save is not None:
                save(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            if backward is None:
                raise RuntimeError(
                    f"{op._schema.name} has no derivative; backend='exact' of attention has those of any order"
                )
            return backward(ctx, *gradients)

    def call(*inputs: Any) -> Any:
        inputs = (*inputs, *defaults[len(inputs) :])  # the dispatcher leaves away what equals its default
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
            return Differentiated.apply(*inputs)  # type: ignore[no-untyped-call]
        with torch._C._AutoDispatchBelowAutograd():
            return op(*inputs)

    _LIBRARY.impl(op._schema.name.split("::")[1], call, "Autograd")  # type: ignore[no-untyped-call]
