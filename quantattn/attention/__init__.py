"""Exact attention: the function, its specification, its algebra."""

from quantattn.attention.api import attention
from quantattn.attention.mask import Mask
from quantattn.attention.state import Attended, AttentionState

__all__ = ["Attended", "AttentionState", "Mask", "attention"]
