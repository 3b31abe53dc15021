"""From the fields of a token to a vector of width C."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import Tensor, nn

from quantattn.batch import Vectors
from quantattn.nn.config import EncoderConfig
from quantattn.nn.invariant import Linear, elementwise
from quantattn.nn.lookup import look_up


class Embedding(nn.Module):
    """Sum of one code embedding a categorical field and a linear map of the float fields.

    x = Σ_f E_f[code_f] + W [v, missing, sin(2π ω v), cos(2π ω v), PLE(v)], where v is 0 and `missing` is 1 when the
    value is NaN. Two kinds of features are options (Gorishniy et al. 2022, arXiv 2203.05556, section 3): periodic ones
    where `value_frequencies > 0`, with ω drawn with deviation `value_frequency_scale` and learned, and piecewise-linear
    ones of the fields in `value_edges`. Code 0 (missing) and code 1 (masked) have vectors of their own.

    A token that carries a vector u, such as the embedding of a filing that becomes public then, has W_u û added to it,
    û = clamp((u − center) / scale, ±8).
    """

    batch_invariant = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        # Sorted, so that two descriptions that list the same fields in another order are the same function.
        self.names = tuple(sorted(config.codes))
        self.values = config.values
        self.tables = nn.ModuleList(nn.Embedding(config.codes[name], config.width) for name in self.names)
        self.frequencies: nn.Parameter | None = None
        self.frequency_scale = config.value_frequency_scale
        self.bins = PiecewiseLinear(config) if config.value_edges else None
        self.project: Linear | None = None
        if config.values:
            self.project = Linear(config.value_features, config.width, bias=False)
            if config.value_frequencies:
                self.frequencies = nn.Parameter(torch.empty(len(config.values), config.value_frequencies))
        self.carried = nn.ModuleList(CarriedVector(config, name) for name in sorted(config.vectors))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw parameters so that the sum over the fields begins with unit variance an entry."""
        terms = len(self.names) + (self.project is not None)
        for table in self.tables:
            nn.init.normal_(table.weight, std=terms**-0.5)  # type: ignore[arg-type]
        if self.project is not None:
            nn.init.normal_(self.project.weight, std=(terms * max(1, len(self.values))) ** -0.5)
        if self.frequencies is not None:
            nn.init.normal_(self.frequencies, std=self.frequency_scale)
        for carried in self.carried:
            carried.reset_parameters()  # type: ignore[operator]

    def forward(self, fields: Mapping[str, Tensor], vectors: Mapping[str, Vectors] = MappingProxyType({})) -> Tensor:
        """(T, C) embeddings of a batch's fields and vectors; those that the encoder does not know are left alone.

        Raises:
            ValueError: a field is missing from the batch, is integer where values are expected or the reverse, or (on a
                CPU, where it can be seen) has a code beyond its table; vectors are missing or of another size.
        """
        check_fields(fields, self.names, self.values)
        if not torch.compiler.is_compiling():
            for name, table in zip(self.names, self.tables, strict=True):
                _check_codes(name, fields[name], table.weight.shape[0])  # type: ignore[arg-type,index]
        terms = [
            look_up(fields[name], table.weight)  # type: ignore[arg-type]
            for name, table in zip(self.names, self.tables, strict=True)
        ]
        if self.project is not None:
            given = torch.stack([fields[name] for name in self.values], dim=-1)  # (T, V)
            terms.append(self.project(self._features(given.to(self.project.weight.dtype))))
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        for carried in self.carried:
            total = carried(total, vectors)
        return total

    def _features(self, given: Tensor) -> Tensor:
        missing = torch.isnan(given)
        value = given.masked_fill(missing, 0.0)
        features = [value, missing.to(value.dtype)]
        if self.frequencies is not None:
            angle = (2 * math.pi * value[..., None] * self.frequencies).flatten(-2)  # (T, V · frequencies)
            features += [elementwise(turn, angle, self.batch_invariant) for turn in (torch.sin, torch.cos)]
        if self.bins is not None:
            features.append(self.bins(value, missing))
        return torch.cat(features, dim=-1)


class CarriedVector(nn.Module):
    """x[rows] + W û for the rows that carry a vector u, with û = clamp((u − center) / scale, −8, 8).

    A number of u that is missing gives 0 in û, so a vector of which all is missing adds nothing.
    """

    center: Tensor
    scale: Tensor

    def __init__(self, config: EncoderConfig, name: str) -> None:
        super().__init__()
        self.name = name
        center, scale = zip(*config.vectors[name], strict=True)
        self.project = Linear(len(center), config.width, bias=False)
        # They belong to the description, as the edges of bins do.
        with torch.device("cpu"):
            self.register_buffer("center", torch.tensor(center, dtype=torch.float32), persistent=False)
            self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32), persistent=False)

    def reset_parameters(self) -> None:
        """Draw the map so that it adds entries of unit variance."""
        nn.init.normal_(self.project.weight, std=self.project.in_features**-0.5)

    def forward(self, x: Tensor, vectors: Mapping[str, Vectors]) -> Tensor:
        """(T, C) → (T, C).

        Raises:
            ValueError: there are no vectors of this name, or they are of another size.
        """
        if self.name not in vectors:
            raise ValueError(f"the batch lacks vectors {self.name!r}; it has {', '.join(sorted(vectors)) or 'none'}")
        given = vectors[self.name]
        if given.values.shape[1] != len(self.center):
            raise ValueError(
                f"vectors {self.name!r} have {given.values.shape[1]} numbers, this encoder reads {len(self.center)}"
            )
        read = ((given.values - self.center) / self.scale).clamp(-8, 8).nan_to_num(nan=0.0)
        return x.index_add(0, given.rows, self.project(read.to(self.project.weight.dtype)).to(x.dtype))


class PiecewiseLinear(nn.Module):
    """How far each value has come through each bin of its field: clamp((v − b_{t−1}) / (b_t − b_{t−1}), 0, 1).

    Bins below the value give 1, those above it 0. Beyond the edges all stand still, where the first and last of the
    paper go on in a line: the value itself stands beside them, and a bin as narrow as those between quantiles would
    make a huge feature of a value that training never saw. A missing value gives 0 everywhere; the flag of the
    embedding tells it from b_0.
    """

    field: Tensor
    left: Tensor
    width: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        bins = [
            (number, low, high - low)
            for number, name in enumerate(config.values)
            for low, high in pairwise(config.value_edges.get(name, ()))
        ]
        field, left, width = zip(*bins, strict=True)
        # Edges belong to the description, and no file of weights fills them in afterwards: they are made here also when
        # the rest is described on no device.
        with torch.device("cpu"):
            self.register_buffer("field", torch.tensor(field), persistent=False)
            self.register_buffer("left", torch.tensor(left, dtype=torch.float32), persistent=False)
            self.register_buffer("width", torch.tensor(width, dtype=torch.float32), persistent=False)

    def forward(self, value: Tensor, missing: Tensor) -> Tensor:
        """(T, V) values, 0 where they are `missing` (T, V) → (T, bins of all fields)."""
        share = ((value[..., self.field] - self.left) / self.width).clamp(0, 1)
        return share.masked_fill(missing[..., self.field], 0.0)


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
