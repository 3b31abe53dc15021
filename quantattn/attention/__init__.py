"""Exact attention: the function, its specification, its algebra, and why which implementation runs."""

from quantattn.attention.api import attention
from quantattn.attention.choose import Choice, choose_backend
from quantattn.attention.mask import Mask
from quantattn.attention.state import Attended, AttentionState

__all__ = ["Attended", "AttentionState", "Choice", "Mask", "attention", "choose_backend"]
