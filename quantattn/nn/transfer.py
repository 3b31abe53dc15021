"""Weights of one model for another: what may be taken, and why the rest may not.

A tensor of the same name and shape need not mean the same: the row of a table stands for a code, and a code for what
the vocabulary made of it. So tables are matched by field and coding, and what reads numbers by the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from quantattn.nn.config import EncoderConfig
from quantattn.nn.heads import EventsConfig
from quantattn.nn.model import Model

_TABLE, _NUMBERS, _CARRIED = "encoder.embedding.tables.", "encoder.embedding.", "encoder.embedding.carried."
_FUNCTION = ("n_heads", "n_kv_heads", "rotary_base", "local_rotary_base", "time_rotary", "time_periods")
"""Settings that change what the same weights compute, and change no shape."""
_SIGHT = ("causal", "local_window", "global_every")
"""Settings that change what a token sees; weights may go from one to the other."""


@dataclass(frozen=True)
class Transfer:
    """What became of the weights.

    Attributes:
        taken: names of the parameters that were taken.
        refused: parameter of the model → why there was nothing for it; it is as it was drawn.
        unused: names of parameters that the model has no place for.
        notes: sentences on what differs and was taken all the same.
        n_taken: scalars that were taken.
        n_all: scalars of the model.
    """

    taken: tuple[str, ...]
    refused: Mapping[str, str]
    unused: tuple[str, ...]
    notes: tuple[str, ...]
    n_taken: int
    n_all: int

    def sentences(self) -> tuple[str, ...]:
        """The report, one line a fact."""
        said = [
            f"{len(self.taken)} of {len(self.taken) + len(self.refused)} tensors taken, {self._share:.1%} of scalars"
        ]
        by_reason: dict[str, list[str]] = {}
        for name, why in self.refused.items():
            by_reason.setdefault(why, []).append(name)
        said += [f"begins anew: {_listed(names)} ({why})" for why, names in by_reason.items()]
        said += [f"has no place here: {_listed(self.unused)}"] if self.unused else []
        return (*said, *self.notes)

    @property
    def _share(self) -> float:
        return self.n_taken / max(self.n_all, 1)


@torch.no_grad()
def transfer(
    model: Model, source: Model, codings: Mapping[str, object], source_codings: Mapping[str, object]
) -> Transfer:
    """Put the weights of `source` into `model` wherever they mean the same.

    Args:
        model: is changed.
        source: is not.
        codings: field of `model` → anything that is equal for equal codings.
        source_codings: the same of `source`.

    Raises:
        ValueError: the encoders compute something else with the same weights, or have no block in common.
    """
    here, there = model.encoder.config, source.encoder.config
    for name in _FUNCTION:
        if getattr(here, name) != getattr(there, name):
            raise ValueError(f"its encoder has {name}={getattr(there, name)}, this one {getattr(here, name)}")
    found, given = model.state_dict(), source.state_dict()
    refused: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name, value in found.items():
        origin, why = _origin(name, model, source, codings, source_codings)
        if origin is not None and origin not in given:
            why = "it has none"
        elif origin is not None and given[origin].shape != value.shape:
            why = f"its shape is {tuple(given[origin].shape)}, here {tuple(value.shape)}"
        if why is not None:
            refused[name] = why
        elif origin is not None:
            value.copy_(given[origin])
            taken[name] = origin
    if not any(name.startswith("encoder.blocks.") for name in taken):
        raise ValueError(f"its encoder is {there.n_layers} × {there.width}, this one {here.n_layers} × {here.width}")
    unused = tuple(name for name in given if name not in taken.values())
    notes = tuple(
        f"{name} was {getattr(there, name)}, is {getattr(here, name)}"
        for name in _SIGHT
        if getattr(here, name) != getattr(there, name)
    )
    n_taken = sum(found[name].numel() for name in taken)
    return Transfer(tuple(taken), refused, unused, notes, n_taken, sum(value.numel() for value in found.values()))


def _origin(
    name: str, model: Model, source: Model, codings: Mapping[str, object], source_codings: Mapping[str, object]
) -> tuple[str | None, str | None]:
    """The parameter of the source that means what this one does; or None and why there is none."""
    here, there = model.encoder.config, source.encoder.config
    if name.startswith(_TABLE):
        field = sorted(here.codes)[int(name.removeprefix(_TABLE).split(".")[0])]
        if field not in there.codes:
            return None, f"it has no field {field}"
        if codings.get(field) != source_codings.get(field):
            return None, f"the codes of {field} mean something else there"
        return f"{_TABLE}{sorted(there.codes).index(field)}.weight", None
    if name.startswith(_CARRIED):
        return (name, None) if here.vectors == there.vectors else (None, "it reads other vectors")
    if name.startswith(_NUMBERS):
        return (name, None) if _numbers(here) == _numbers(there) else (None, "it reads other numbers")
    if not name.startswith("heads."):
        return name, None
    head = name.split(".")[1]
    config, other = model.head_configs[head], source.head_configs.get(head)
    if config != other:
        return None, "it has no such head" if other is None else "its head is another"
    fields = config.fields if isinstance(config, EventsConfig) else ()
    changed = [f for f in fields if codings.get(f) != source_codings.get(f)]
    return (None, f"the codes of {changed[0]} mean something else there") if changed else (name, None)


def _numbers(config: EncoderConfig) -> tuple[object, ...]:
    return config.values, config.value_frequencies, dict(config.value_edges)


def _listed(names: tuple[str, ...] | list[str]) -> str:
    """Names, those of one part together: encoder.blocks.2.* (8)."""
    parts: dict[str, int] = {}
    for name in names:
        key = ".".join(name.split(".")[:3])
        parts[key] = parts.get(key, 0) + 1
    return ", ".join(key if count == 1 else f"{key}.* ({count})" for key, count in parts.items())


def parts_of(model: Model) -> Iterator[str]:
    """Names by which parts of a model may be called: encoder, encoder.embedding, encoder.blocks.0, and heads.label."""
    for name, _ in model.named_modules():
        if name:
            yield name
