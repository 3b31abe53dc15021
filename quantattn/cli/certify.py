"""The attention that a run really uses, checked against float64 before the run, as plain values for its report."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from quantattn.attention import Mask, choose_backend, machine
from quantattn.attention.certificate import Certificate, changed
from quantattn.attention.choose import require_backend
from quantattn.attention.validate import validate
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import EncoderConfig

if TYPE_CHECKING:
    from quantattn.learn.closing import Exactness


def backends_used(encoder: EncoderConfig, trainer: TrainerSettings) -> tuple[str, ...]:
    """Names of the implementations that run under the encoder's setting, in its layers' masks.

    Raises:
        ValueError: a backend asked for by name that cannot run here, with the reason.
    """
    device = "cuda" if trainer.accelerator == "gpu" else "cpu"
    q = torch.empty(1, encoder.n_heads, encoder.head_size, dtype=trainer.attention_dtype, device=device)
    masks = [Mask(causal=encoder.causal)]
    if (window := encoder.local_window) is not None:
        masks.append(Mask(causal=encoder.causal, window=(window, 0 if encoder.causal else window)))
    if encoder.attention_backend == "auto":
        return tuple(sorted({choose_backend(q, q, q, mask=mask).backend for mask in masks}))
    for mask in masks:
        require_backend(encoder.attention_backend, q, mask=mask, bias=None)
    return (encoder.attention_backend,)


def certify(encoder: EncoderConfig, trainer: TrainerSettings) -> Exactness:
    """The certificate of the attention that the run will use: its backends, its dtype, its device."""
    from quantattn.learn.closing import Exactness  # and drawings, which only a report needs

    device = "cuda" if trainer.accelerator == "gpu" else "cpu"
    certificate = _validated(backends_used(encoder, trainer), trainer.attention_dtype, device)
    return Exactness(certificate.ok, sentence(certificate), json.loads(certificate.to_json()))


@functools.lru_cache  # the jobs of one multirun share a process
def _validated(backends: tuple[str, ...], dtype: torch.dtype, device: str) -> Certificate:
    return validate(backends, (dtype,), device)


def sentence(certificate: Certificate) -> str:
    """The certificate in one sentence."""
    if not certificate.ok:
        return certificate.statement()
    compared = [f for f in certificate.passed if f.quantity == "forward" and f.standard > 0]
    said = []
    for backend, dtype in dict.fromkeys((f.backend, f.dtype) for f in compared):
        group = [f for f in compared if (f.backend, f.dtype) == (backend, dtype)]
        worst = max(group, key=lambda f: f.worst)
        said.append(
            f"{backend} in {dtype} is within {worst.worst:.2g} of float64 where standard attention loses "
            f"{worst.standard:.2g}"
        )
    return f"{'; '.join(said)}; {len(certificate.passed)} checks passed on {certificate.device}"


def expired(extra: Mapping[str, object]) -> str | None:
    """Why the certificate that a model names says nothing about what is installed here; None while it holds.

    Also None for a model that names none.

    Args:
        extra: what stands in the model's folder, as data: other kinds of values than a run writes name no certificate.
    """
    certified = extra.get("certified")
    named = [certified.get(name) if isinstance(certified, Mapping) else None for name in ("versions", "sources")]
    versions, sources = ({str(k): str(v) for k, v in x.items()} if isinstance(x, Mapping) else {} for x in named)
    return changed(versions, sources, machine.versions(), machine.sources())
