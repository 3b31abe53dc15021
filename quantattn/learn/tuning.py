"""How a run takes up what another has learned: whose weights it begins with, and which of them it changes how fast."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from quantattn.data.prepared import Prepared
from quantattn.nn import EncoderConfig, Ensemble, Model
from quantattn.nn.adapters import add_adapters
from quantattn.nn.folder import told
from quantattn.nn.transfer import Transfer, parts_of, transfer


@dataclass(frozen=True)
class Tuning:
    """What a run takes up and what it changes.

    Attributes:
        start: a model's folder, or a run's, whose weights the run begins with; None draws all of them.
        freeze: parts of the model that are not trained, by name: encoder, encoder.embedding, encoder.blocks.0, …
        layer_decay: the learning rate of each layer as a share of that of the layer above it; heads have all of it.
        adapter_rank: of low-rank adapters of the encoder's matrices, which are then all of the encoder that is trained;
            0 for none.
        adapter_alpha: α of the adapters, W + (α / rank) B A.
    """

    start: str | None = None
    freeze: tuple[str, ...] = ()
    layer_decay: float = 1.0
    adapter_rank: int = 0
    adapter_alpha: float = 16.0

    def __post_init__(self) -> None:
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"tuning.layer_decay must lie in (0, 1], got {self.layer_decay}")
        if self.adapter_rank < 0:
            raise ValueError(f"tuning.adapter_rank must be 0 or more, got {self.adapter_rank}")
        if not 0 < self.adapter_alpha < math.inf:
            raise ValueError(f"tuning.adapter_alpha must be positive, got {self.adapter_alpha}")

    def folder(self) -> Path | None:
        """The folder of the model to begin with.

        Raises:
            ValueError: there is none.
        """
        if self.start is None:
            return None
        path = Path(self.start)
        folder = path / "model" if (path / "model").is_dir() else path
        if not (folder / "manifest.json").is_file():
            kind = "a checkpoint, which does not say what its codes mean" if path.is_file() else "no model"
            raise ValueError(
                f"tuning.start={self.start} is {kind}; name the folder of a run that has ended, or its model"
            )
        return folder


def started(model: Model, source: Model, prepared: Prepared) -> Transfer:
    """Put the weights of a model that was read from a folder into `model`.

    Raises:
        ValueError: they do not fit, or the source had seen what these data are tested on.
    """
    if isinstance(source, Ensemble):
        raise ValueError(
            "tuning.start names an ensemble, whose members have weights of their own; name one of their runs"
        )
    if source.artefact is None:
        raise ValueError("a model to begin with must come from its folder, which says what its codes mean")
    seen = source.artefact.extra.get("seen_until")
    first = min((int(time) for time in prepared.as_of["test"]), default=None)
    if isinstance(seen, int) and first is not None and seen > first:
        raise ValueError(
            f"the model to begin with has learned from data until {seen} ns UTC, but the first test decision here is "
            f"of {first}: it may have seen what it would be tested on"
        )
    ours, read = codings(prepared.vocabulary_json), scales(prepared.vocabulary_json)
    try:
        theirs, was_read = codings(source.artefact.vocabulary_json), scales(source.artefact.vocabulary_json)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the vocabulary of tuning.start is none that a run writes: {type(error).__name__}, {told(error)}"
        ) from error
    try:
        found = transfer(model, source, ours, theirs)
    except ValueError as error:
        raise ValueError(f"the weights of tuning.start do not fit: {error}") from error
    notes = list(found.notes)
    if not isinstance(seen, int):
        notes.append("the model does not say until when it had seen data, so nobody knows whether it saw the test rows")
    for name in prepared.values:
        before, now = was_read.get(name), read.get(name)
        if before != now:
            notes.append(f"{name} was scaled by (center, scale) = {before}, is by {now}")
    return Transfer(found.taken, found.refused, found.unused, tuple(notes), found.n_taken, found.n_all)


def codings(vocabulary_json: str) -> dict[str, object]:
    """Field of codes → what is equal for two vocabularies in which its codes mean the same."""
    plain: dict[str, Any] = json.loads(vocabulary_json)
    if "bpe" in plain:
        return {"token": plain["bpe"]}
    found: dict[str, object] = {f"{name}_code": values for name, values in plain.get("categories", {}).items()}
    found |= {f"{name}_code": (field["edges"], plain.get("zone")) for name, field in plain.get("numeric", {}).items()}
    return found | {"event": (dict(found), plain["merges"])} if "merges" in plain else found


def scales(vocabulary_json: str) -> dict[str, tuple[float, float]]:
    """Float field → (center, scale) by which its numbers are read."""
    fields = json.loads(vocabulary_json).get("numeric", {})
    return {f"{name}_value": (field["center"], field["scale"]) for name, field in fields.items()}


def like(encoder: EncoderConfig, source: EncoderConfig) -> EncoderConfig:
    """The encoder with the bins and the scales of vectors of the one whose weights it takes, which belong to them."""
    changes: dict[str, Any] = {}
    if encoder.value_edges and encoder.values == source.values and set(encoder.value_edges) == set(source.value_edges):
        changes["value_edges"] = source.value_edges
    if {name: len(pairs) for name, pairs in encoder.vectors.items()} == {
        name: len(pairs) for name, pairs in source.vectors.items()
    }:
        changes["vectors"] = source.vectors
    return encoder.with_changes(**changes)


def restrain(model: Model, tuning: Tuning) -> tuple[nn.Module, ...]:
    """Add adapters and freeze what is to stay; the parts that are frozen, which are not to drop entries either.

    Raises:
        ValueError: a part that the model does not have, or nothing left to train.
    """
    if tuning.adapter_rank:
        add_adapters(model, tuning.adapter_rank, tuning.adapter_alpha)
    modules = dict(model.named_modules())
    for name in tuning.freeze:
        if name not in modules or not name:
            known = [part for part in parts_of(model) if part.count(".") <= 2]
            raise ValueError(f"tuning.freeze: the model has no part {name!r}; it has {', '.join(known)}")
        modules[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"tuning.freeze={list(tuning.freeze)} leaves nothing to train")
    return tuple(modules[name] for name in tuning.freeze)


def depth_of(name: str, n_layers: int) -> int:
    """How many layers lie above a parameter of a module that trains a model: 0 for heads, n_layers + 1 for tables."""
    parts = name.removeprefix("model.").split(".")
    if parts[:2] == ["encoder", "embedding"]:
        return n_layers + 1
    if parts[:2] == ["encoder", "blocks"]:
        return n_layers - int(parts[2])
    return 0


def summary(found: Transfer | None, model: Model) -> dict[str, Any]:
    """What is trained and what was taken, as plain values."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    plain: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters()), "trained": trained}
    if found is None:
        return plain
    return plain | {
        "taken": list(found.taken),
        "begins_anew": dict(found.refused),
        "unused": list(found.unused),
        "said": list(found.sentences()),
    }
