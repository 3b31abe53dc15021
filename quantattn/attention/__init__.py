"""Exact attention: the function, its specification, its algebra, and why which implementation runs."""

from quantattn.attention.api import attention
from quantattn.attention.cache import KeyValueCache
from quantattn.attention.choose import BACKENDS, Choice, choose_backend
from quantattn.attention.context import ring_attention, unshard
from quantattn.attention.float8 import float8_attention
from quantattn.attention.linear import batch_invariant_linear
from quantattn.attention.mask import Mask
from quantattn.attention.norm import add_norm, add_norm_linear, by_kernel
from quantattn.attention.placement import Placement
from quantattn.attention.rotation import rotate, rotate_heads
from quantattn.attention.rules import MaskRule, register_mask_rule
from quantattn.attention.state import Attended, AttentionState, merge_attention
from quantattn.attention.summaries import (
    AttentionMap,
    AttentionSummary,
    TopKeys,
    attention_map,
    attention_summary,
    top_keys,
)
from quantattn.attention.swiglu import swiglu_linear

__all__ = [
    "BACKENDS",
    "Attended",
    "AttentionMap",
    "AttentionState",
    "AttentionSummary",
    "Choice",
    "KeyValueCache",
    "Mask",
    "MaskRule",
    "Placement",
    "TopKeys",
    "add_norm",
    "add_norm_linear",
    "attention",
    "attention_map",
    "attention_summary",
    "batch_invariant_linear",
    "by_kernel",
    "choose_backend",
    "float8_attention",
    "merge_attention",
    "register_mask_rule",
    "ring_attention",
    "rotate",
    "rotate_heads",
    "swiglu_linear",
    "top_keys",
    "unshard",
]
