"""A model's scores for every decision of a sequence set, in canonical order."""

from __future__ import annotations

import torch
from torch import Tensor

from quantattn.data.pack import SequenceSet, plan
from quantattn.nn import Model, check_decisions
from quantattn.nn.memory import scoring


def predict(
    model: Model, sequences: SequenceSet, max_tokens: int, *, device: str = "cpu", autocast: torch.dtype | None = None
) -> dict[str, Tensor]:
    """What `model.score` says of each decision: name → (Q, …) float32 on the CPU, row q for key q.

    Args:
        model: moved to `device`.
        sequences: every decision is in exactly one of them.
        max_tokens: budget of tokens a batch.
        device: where the model runs.
        autocast: dtype of products and attention; None computes in the parameters' own.

    Raises:
        OutOfMemory: a batch does not fit into memory.
        RuntimeError: a decision was scored twice or never.
    """
    model = model.to(device)
    found: dict[str, Tensor] = {}
    seen = torch.zeros(len(sequences.decisions), dtype=torch.int64)
    with torch.autocast(torch.device(device).type, dtype=autocast or torch.float32, enabled=autocast is not None):
        for indices in plan(sequences.lengths, max_tokens, shuffle=False):
            batch = sequences.pack(indices)
            if not len(batch.keys):
                continue
            check_decisions(batch, model.encoder.config)
            seen[batch.keys] += 1
            with scoring(batch, "data.max_tokens_per_batch"):
                said = {name: rows.float().cpu() for name, rows in model.score(batch.to(device)).items()}
            for name, rows in said.items():
                if name not in found:
                    found[name] = torch.full((len(seen), *rows.shape[1:]), torch.nan)
                found[name][batch.keys] = rows
    if bool((seen != 1).any()):
        key = int((seen != 1).nonzero()[0])
        raise RuntimeError(f"decision {key} was scored {int(seen[key])} times, expected once")
    return found
