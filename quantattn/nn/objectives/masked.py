"""Hide events, or single fields of them, from the encoder and predict what was hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from quantattn.batch import IGNORE, PackedBatch
from quantattn.nn.config import MASKED, EncoderConfig
from quantattn.nn.heads import EventsConfig, EventsHead, HeadConfig
from quantattn.nn.model import Model
from quantattn.nn.objectives.likelihood import mean_nll
from quantattn.nn.objectives.objective import Goal, Loss, TrainingRows, generator_of, head_of


@dataclass(frozen=True)
class MaskedEvents:
    """Hide whole events from the encoder and predict their fields (Devlin et al. 2019, arXiv 1810.04805).

    At round(rate · T) tokens of the batch every field to be predicted gets the code `MASKED`, and every float field and
    what the token carries (`PackedBatch.vectors`) become missing; the loss is the mean over fields of the mean
    cross-entropy, in nats, at those tokens. Event times stay visible. Which tokens are hidden is a function of
    (seed, step, T) alone, on every device; a call without a step draws them from torch's global CPU generator, as
    dropout does.

    Attributes:
        rate: share of tokens that are hidden, in (0, 1].
        fields: fields to hide and predict; None is every field of codes.
        seed: of the choice of tokens.
        span: tokens that are hidden together, one after the other (Joshi et al. 2020, arXiv 1907.10529): the pack is
            cut into stretches of so many, from a place that is drawn too, and stretches are hidden until the share is
            reached, of the last one a part. They pass over the ends of sequences.
        per_field: draw the tokens of each field anew, so that the other fields of an event may stay visible. A float
            field `x_value` is hidden with the codes `x_code`; one that has no codes, and a vector, wherever any field
            is hidden.
    """

    goal: ClassVar[Goal] = "data"
    rate: float = 0.3
    fields: tuple[str, ...] | None = None
    seed: int = 0
    span: int = 1
    per_field: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must be in (0, 1], got {self.rate}")
        if isinstance(self.span, bool) or not isinstance(self.span, int) or self.span < 1:
            raise ValueError(f"span must be a whole number of tokens from 1, got {self.span!r}")
        if self.fields is not None:
            object.__setattr__(self, "fields", tuple(self.fields))

    def fitted(self, rows: TrainingRows) -> MaskedEvents:
        """Itself."""
        return self

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """One head over the codes of the fields."""
        return {"events": EventsConfig(self.fields or tuple(encoder.codes))}

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, nll_<field>, count (tokens hidden, of each field)."""
        head = head_of(model, "events", EventsHead)
        fields, values, device = head.config.fields, model.encoder.config.values, batch.time.device
        if not self.per_field:
            rows = self.rows(batch.n_tokens, step).to(device, non_blocking=True)
            hidden = model.encoder(self.without_vectors(self.hide(batch, rows, fields, values), rows))
            targets = {name: batch.fields[name][rows] for name in fields}
            return mean_nll(head, hidden[rows], targets, rows.new_full((), rows.shape[0]))
        drawn = {name: self.rows(batch.n_tokens, step, name) for name in fields}
        union = torch.unique(torch.cat(list(drawn.values())))
        moved = {name: rows.to(device, non_blocking=True) for name, rows in drawn.items()}
        everywhere = union.to(device, non_blocking=True)
        seen = batch
        for name in fields:
            seen = self.hide(seen, moved[name], (name,), [value for value in values if stem(value) == stem(name)])
        alone = [value for value in values if stem(value) not in {stem(name) for name in fields}]
        hidden = model.encoder(self.without_vectors(self.hide(seen, everywhere, (), alone), everywhere))
        targets = {
            name: batch.fields[name][everywhere].where(torch.isin(union, rows).to(device), IGNORE)
            for name, rows in drawn.items()
        }
        count = next(iter(moved.values())).shape[0]
        return mean_nll(head, hidden[everywhere], targets, everywhere.new_full((), count))

    def rows(self, n_tokens: int, step: int | None, field: str | None = None) -> Tensor:
        """(R,) ascending int64 rows to hide, of a field or of all, on the CPU; at least one when there are tokens."""
        count = max(1, round(self.rate * n_tokens)) if n_tokens else 0
        of_field = "" if field is None else f", field {field}"
        generator = generator_of(f"masked events, seed {self.seed}, step {step}{of_field}", step)
        if self.span == 1:
            return torch.randperm(n_tokens, generator=generator)[:count].sort().values
        before = int(torch.randint(self.span, (), generator=generator))
        stretches = torch.randperm(-(-(n_tokens + before) // self.span), generator=generator)
        rows = (stretches[:, None] * self.span - before + torch.arange(self.span)).flatten()
        return rows[(rows >= 0) & (rows < n_tokens)][:count].sort().values

    @staticmethod
    def hide(batch: PackedBatch, rows: Tensor, codes: Sequence[str], values: Sequence[str]) -> PackedBatch:
        """The batch with those rows masked in the fields of codes and missing in the float fields."""
        hidden: dict[str, Tensor] = {name: batch.fields[name].index_fill(0, rows, MASKED) for name in codes}
        hidden |= {name: batch.fields[name].index_fill(0, rows, torch.nan) for name in values}
        return replace(batch, fields={**batch.fields, **hidden})

    @staticmethod
    def without_vectors(batch: PackedBatch, rows: Tensor) -> PackedBatch:
        """The batch with what those rows carry missing."""
        vectors = {
            name: replace(each, values=each.values.masked_fill(torch.isin(each.rows, rows)[:, None], torch.nan))
            for name, each in batch.vectors.items()
        }
        return replace(batch, vectors=vectors)


def MaskedLanguage(rate: float = 0.3, seed: int = 0, field: str = "token", span: int = 1) -> MaskedEvents:
    """Masked-language modelling: masked events whose one field is the token."""
    return MaskedEvents(rate, (field,), seed, span)


def stem(field: str) -> str:
    """What a field of codes and a float field of the same column have in common: `size` of size_code and size_value."""
    return field.removesuffix("_code").removesuffix("_value")
