"""From the fields of a token to a vector of width C."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from quantattn.nn.config import EncoderConfig
from quantattn.nn.invariant import Linear, elementwise


class Embedding(nn.Module):
    """Sum of one code embedding a categorical field and a linear map of the float fields.

    x = Σ_f E_f[code_f] + W [v, missing, sin(2π ω v), cos(2π ω v)], where v is 0 and `missing` is 1 when the value
    is NaN. The periodic features (Gorishniy et al. 2022, arXiv 2203.05556) exist when
    `value_frequencies > 0`; ω is learned. Code 0 (missing) and code 1 (masked) have vectors of their own.
    """

    batch_invariant = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        # Sorted, so that two descriptions that list the same fields in another order are the same function.
        self.names = tuple(sorted(config.codes))
        self.values = config.values
        self.tables = nn.ModuleList(nn.Embedding(config.codes[name], config.width) for name in self.names)
        self.frequencies: nn.Parameter | None = None
        self.project: Linear | None = None
        if config.values:
            self.project = Linear(config.value_features, config.width, bias=False)
            if config.value_frequencies:
                self.frequencies = nn.Parameter(torch.empty(len(config.values), config.value_frequencies))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw parameters so that the sum over the fields begins with unit variance an entry."""
        terms = len(self.names) + (self.project is not None)
        for table in self.tables:
            nn.init.normal_(table.weight, std=terms**-0.5)  # type: ignore[arg-type]
        if self.project is not None:
            nn.init.normal_(self.project.weight, std=(terms * max(1, len(self.values))) ** -0.5)
        if self.frequencies is not None:
            nn.init.normal_(self.frequencies)

    def forward(self, fields: Mapping[str, Tensor]) -> Tensor:
        """(T, C) embeddings of a batch's fields; fields that the encoder does not know are left alone.

        Raises:
            ValueError: a field is missing from the batch, is integer where values are expected or the reverse, or (on a
                CPU, where it can be seen) has a code beyond its table.
        """
        check_fields(fields, self.names, self.values)
        if not torch.compiler.is_compiling():
            for name, table in zip(self.names, self.tables, strict=True):
                _check_codes(name, fields[name], table.weight.shape[0])  # type: ignore[arg-type,index]
        terms = [
            functional.embedding(fields[name], table.weight)  # type: ignore[arg-type]
            for name, table in zip(self.names, self.tables, strict=True)
        ]
        if self.project is not None:
            given = torch.stack([fields[name] for name in self.values], dim=-1)  # (T, V)
            terms.append(self.project(self._features(given.to(self.project.weight.dtype))))
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def _features(self, given: Tensor) -> Tensor:
        missing = torch.isnan(given)
        value = given.masked_fill(missing, 0.0)
        features = [value, missing.to(value.dtype)]
        if self.frequencies is not None:
            angle = (2 * math.pi * value[..., None] * self.frequencies).flatten(-2)  # (T, V · frequencies)
            features += [elementwise(turn, angle, self.batch_invariant) for turn in (torch.sin, torch.cos)]
        return torch.cat(features, dim=-1)


def check_fields(fields: Mapping[str, Tensor], codes: tuple[str, ...], values: tuple[str, ...]) -> None:
    """Raise ValueError unless the batch has every field that the encoder was made for, in its kind."""
    lacking = [name for name in (*codes, *values) if name not in fields]
    if lacking:
        raise ValueError(f"the batch lacks {', '.join(lacking)}; its fields are {', '.join(sorted(fields)) or 'none'}")
    for name in codes:
        if fields[name].is_floating_point():
            raise ValueError(f"field {name!r} holds codes for this encoder, the batch has {fields[name].dtype} values")
    for name in values:
        if not fields[name].is_floating_point():
            raise ValueError(f"field {name!r} holds values for this encoder, the batch has {fields[name].dtype} codes")


def _check_codes(name: str, codes: Tensor, count: int) -> None:
    """Raise ValueError for a code outside [0, count); on a GPU the look-up itself stops the run."""
    if codes.device.type != "cpu" or not codes.numel():
        return
    low, high = (int(x) for x in torch.aminmax(codes))
    if low < 0 or high >= count:
        raise ValueError(f"field {name!r} holds codes from {low} to {high}, this encoder knows 0 to {count - 1}")
