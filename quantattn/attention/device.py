"""Which GPU a kernel is launched on: that of its tensors, whichever is the current one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def on_its_device(function: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """Make the device of the first tensor the current one during a call; Triton launches on the current one."""

    @wraps(function)
    def call(x: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with torch.cuda.device(x.device if x.is_cuda else -1):
            return function(x, *args, **kwargs)

    return call
