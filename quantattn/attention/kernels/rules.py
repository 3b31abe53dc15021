"""A mask rule written out by its Triton twin, to be compared with its torch twin."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _write_rule(out_ptr, n_q, n_k, RULE: tl.constexpr, BLOCK: tl.constexpr):
    query = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    key = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    seen = ((query < n_q) & (key < n_k)) & RULE(query, key, n_q, n_k)
    tl.store(out_ptr + query * n_k + key, seen.to(tl.int8), mask=(query < n_q) & (key < n_k))


def evaluate(rule: Any, n_q: int, n_k: int, device: torch.device) -> Tensor:
    """(Nq, Nk) bool."""
    out = torch.full((n_q, n_k), -1, dtype=torch.int8, device=device)
    _write_rule[(-(-n_q // 32), -(-n_k // 32))](out, n_q, n_k, RULE=rule, BLOCK=32)
    return out != 0
