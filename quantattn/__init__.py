"""quantattn: exact attention encoders for long financial sequences.

The name `quantattn.attention` is the function. What else its package holds comes by `from quantattn.attention import`,
modules too (`from quantattn.attention import testing`); `import quantattn.attention.testing as testing` would look for
it on the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quantattn.attention import Attended, AttentionState, Mask, attention, merge_attention
from quantattn.batch import PackedBatch

if TYPE_CHECKING:
    from quantattn.nn import Encoder, load_model

__version__ = "0.1.0"
__all__ = [
    "Attended",
    "AttentionState",
    "Encoder",
    "Mask",
    "PackedBatch",
    "__version__",
    "attention",
    "load_model",
    "merge_attention",
]


def __getattr__(name: str) -> Any:
    # The encoder is loaded on first use: somebody who wants the attention function alone pays for nothing else.
    if name in ("Encoder", "load_model"):
        from quantattn import nn

        return getattr(nn, name)
    raise AttributeError(f"module 'quantattn' has no attribute {name!r}")
