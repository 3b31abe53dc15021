"""What a run keeps for those who come after it: the model folder, and an account of the data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantattn.data.prepared import Prepared
from quantattn.learn.card import parts_of
from quantattn.learn.closing import Exactness
from quantattn.nn import Model, save_pretrained
from quantattn.nn.folder import MANIFEST


def keep(
    model: Model, folder: Path, prepared: Prepared, *, card: str, extra: Mapping[str, Any], exactness: Exactness | None
) -> str:
    """Write the model folder, and give the name of the model: the SHA-256 of its manifest, which holds all others.

    Args:
        model: moved to the CPU.
        folder: where it stands.
        prepared: the data that it was trained on.
        card: what it says of itself.
        extra: plain values to keep with it.
        exactness: of the attention that it was trained with.
    """
    certified = {} if exactness is None else named(exactness.document)
    save_pretrained(
        model.cpu(),
        folder,
        vocabulary_json=prepared.vocabulary_json,
        card=card,
        extra={**extra, **certified, **seen_until(prepared)},
    )
    return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()


def seen_until(prepared: Prepared) -> dict[str, int]:
    """The end, exclusive, of what a model has seen, as `seen_until` (ns UTC): the first time of its test rows.

    Training rows, and the validation rows that chose among its weights, lie before it with their labels, by the purge.
    Nothing where the parts are not in order of time, or there is no test row.
    """
    before = [prepared.as_of[name] for name in ("train", "valid") if len(prepared.as_of[name])]
    test = prepared.as_of["test"]
    if not len(test) or not before or max(int(part.max()) for part in before) >= int(test.min()):
        return {}
    return {"seen_until": int(test.min())}


def named(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """How a model, and by its hash every plan that scores with it, names the certificate of the attention that made it.

    Its sha256, and the versions and source files with which it expires.
    """
    versions = {
        name: v for name, v in certificate.get("versions", {}).items() if name in ("quantattn", "torch", "triton")
    }
    return {
        "certificate": certificate.get("sha"),
        "certified": {"versions": versions, "sources": dict(certificate.get("sources", {}))},
    }


def described_data(prepared: Prepared) -> dict[str, Any]:
    """Counts, windows of time, universe, hashes and audit of the data, as plain values."""
    return {
        **parts_of(prepared),
        "counts": dict(prepared.counts),
        "dropped": dict(prepared.dropped),
        "hashes": dict(prepared.hashes),
        "audit": prepared.audit.as_dict(),
    }
