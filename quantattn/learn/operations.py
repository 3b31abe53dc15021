"""How many operations a model takes, and how many a device could do meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule

from quantattn.batch import PackedBatch
from quantattn.nn import EncoderConfig

PEAKS = {"H200": 989.5, "H100 80GB HBM3": 989.5, "A100": 312.0}
"""Part of a GPU's name → TFLOP/s of its dense 16-bit products by its data sheet."""


def peak_of(module: LightningModule) -> float | None:
    """TFLOP/s that the device of a module which is trained in 16 bits could do; None where it is not known."""
    if module.device.type != "cuda" or "16" not in str(module.trainer.precision):
        return None
    name = torch.cuda.get_device_name(module.device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def tflop(module: LightningModule, batch: PackedBatch) -> float:
    """10¹² operations of a training module's model on a batch, see `operations`."""
    model: Any = module.model
    skipped = 1 if model.decision_heads() else 0
    lengths = batch.cu_seqlens.diff().tolist()
    return operations(model.encoder.config, model.encoder.blocks[0], lengths, skipped) / 1e12


def operations(config: EncoderConfig, block: torch.nn.Module, lengths: Sequence[int], skipped: int = 0) -> float:
    """Floating-point operations of the blocks in forward and backward over sequences of these lengths.

    6 · P · tokens + 12 · C · pairs a block: P are the matrices of a block, pairs the (query, key) pairs that it shows.
    Embedding, heads, the optimizer and what is computed twice do not count.

    Args:
        config: of the encoder.
        block: one of its blocks, all of which have the same shapes.
        lengths: tokens of each sequence.
        skipped: blocks at the end that are left out, because they are computed for decisions alone.
    """
    matrices = sum(p.numel() for p in block.parameters() if p.ndim == 2)
    total, tokens = 0.0, sum(lengths)
    for layer in range(config.n_layers - skipped):
        window = config.local_window if config.is_local(layer) else None
        total += 6.0 * matrices * tokens + 12.0 * config.width * sum(pairs(n, window, config.causal) for n in lengths)
    return total


def pairs(n: int, window: int | None, causal: bool) -> int:
    """How many (query, key) pairs of n tokens are within `window` on each side, or on the left alone."""
    reach = n - 1 if window is None else min(window, n - 1)
    left = n * (reach + 1) - reach * (reach + 1) // 2
    return left if causal else 2 * left - n
