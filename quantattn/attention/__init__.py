"""Exact attention: the function, its specification, its algebra, and why which implementation runs."""

from quantattn.attention.api import attention
from quantattn.attention.choose import BACKENDS, Choice, choose_backend
from quantattn.attention.mask import Mask
from quantattn.attention.state import Attended, AttentionState, merge_attention

__all__ = ["BACKENDS", "Attended", "AttentionState", "Choice", "Mask", "attention", "choose_backend", "merge_attention"]
