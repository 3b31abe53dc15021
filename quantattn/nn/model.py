"""A model: an encoder and the heads that read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from quantattn.batch import PackedBatch
from quantattn.nn.config import EncoderConfig
from quantattn.nn.encoder import Encoder
from quantattn.nn.heads import DecisionHead, HeadConfig, Pooling, make_head
from quantattn.nn.invariant import batch_invariant


@dataclass(frozen=True)
class Artefact:
    """What stood beside the weights of a model that was loaded from a folder.

    Attributes:
        vocabulary_json: the tokenizer's own JSON.
        card: the model card, Markdown.
        extra: plain values that the run stored with the model (settings of its data, for instance).
        library: version of the library that wrote the folder.
        sha: SHA-256 of the manifest, which holds those of all other files: it names the model.
    """

    vocabulary_json: str
    card: str
    extra: Mapping[str, object]
    library: str
    sha: str


class Model(nn.Module):
    """An encoder with named heads.

    Args:
        encoder: the encoder.
        heads: name → configuration of the head; none gives a model that scores with embeddings.

    Attributes:
        artefact: what came with the weights; None for a model that was not loaded.

    Raises:
        ValueError: a head's name that cannot be used, or a head that does not fit the encoder.
    """

    artefact: Artefact | None = None

    def __init__(self, encoder: Encoder, heads: Mapping[str, HeadConfig] | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict()
        for name, config in (heads or {}).items():
            if not name.isidentifier() or hasattr(self.heads, name):
                raise ValueError(f"a head's name must be an identifier and free, got {name!r}")
            self.heads[name] = make_head(encoder.config, config)

    @property
    def head_configs(self) -> dict[str, HeadConfig]:
        """Name → configuration of each head, in the order in which they were given."""
        return {name: head.config for name, head in self.heads.items()}  # type: ignore[misc]

    def decision_heads(self) -> dict[str, DecisionHead]:
        """The heads that say something about each decision."""
        return {name: head for name, head in self.heads.items() if isinstance(head, DecisionHead)}

    def forward(self, batch: PackedBatch) -> dict[str, Tensor]:
        """Name → output of every decision head: (Q, K) logits, (Q,) standardised values, and the like.

        Raises:
            ValueError: the batch lacks a field, or a decision could see its own future (on a GPU the device stops
                the run instead; see `check_decisions`).
        """
        heads = self.decision_heads()
        if all(head.pooling.kind == "last" for head in heads.values()):
            decided = self._at_decisions(batch)
            return {name: head(decided) for name, head in heads.items()}
        _require_no_leak(batch, self.encoder.config)
        hidden = self.encoder(batch)
        return {name: head(head.pooling(hidden, batch)) for name, head in heads.items()}

    def measured(self, objective: Callable[..., Any], batch: PackedBatch, step: int) -> Any:
        """`objective(self, batch, step=step)`: what wraps the model's methods, as FSDP does, sees one call."""
        return objective(self, batch, step=step)

    @torch.no_grad()
    def score(
        self, batch: PackedBatch, *, deterministic: bool | Literal["batch"] = True, states: Tensor | None = None
    ) -> dict[str, Tensor]:
        """What the model says about each decision, rows in the order of `batch.keys`.

        A head over classes gives `prob` (Q, K) float32, one over values `value` (Q,) float32 in the target's unit, and
        beside it `deviation` or `quantile_<level>` (Q,) where it has them; with several such heads the names are
        `<head>_prob`, `<head>_value`. A model without them gives
        `embedding` (Q, C) float32, the hidden state at the decision. Dropout is off meanwhile, and every part of the
        model is in the mode in which it was afterwards.

        With `deterministic="batch"` a decision's scores have the same bits whatever else is in the batch
        (`batch_invariant`). True and False run the same code, which repeats to the bit for the same batch.

        Where the states of the decisions are known already, as those of a stream are, `states` (Q, C) are taken for
        them, and the batch is not looked at.

        Raises:
            ValueError: as calling the model does, another value of `deterministic`, or `states` for a head that reads
                more than the last of them.
        """
        heads = self.decision_heads()
        with _evaluating(self), batch_invariant(self, _by_batch(deterministic)):
            if not heads:
                return {"embedding": (self._at_decisions(batch) if states is None else states).float()}
            if states is not None:
                self.require_last()
            outputs = self(batch) if states is None else {name: head(states) for name, head in heads.items()}
            scores = {name: head.scores(outputs[name]) for name, head in heads.items()}
        if len(scores) == 1:
            return next(iter(scores.values()))
        return {f"{name}_{what}": value for name, found in scores.items() for what, value in found.items()}

    def require_last(self) -> None:
        """Raise ValueError unless every decision head reads the state at the decision and no other."""
        for name, head in self.decision_heads().items():
            if head.pooling.kind != "last":
                raise ValueError(
                    f"head {name!r} pools by {head.pooling.kind!r} over all states up to a decision, and of a stream "
                    "that goes on only the newest are there; pooling=last is needed"
                )

    @torch.no_grad()
    def embed(
        self,
        batch: PackedBatch,
        *,
        deterministic: bool | Literal["batch"] = True,
        pooling: Literal["last", "mean"] = "last",
    ) -> Tensor:
        """(Q, C) float32, one vector a decision, rows in the order of `batch.keys`; no gradient.

        With `pooling="last"` the hidden state at the decision; with "mean" the mean of those of its sequence, under a
        causal encoder up to the decision. `deterministic` as in `score`.

        Raises:
            ValueError: as calling the model does, or another pooling: one that is learned belongs to a head.
        """
        if pooling not in ("last", "mean"):
            raise ValueError(f"pooling of embeddings must be last or mean, got {pooling!r}")
        by_batch = _by_batch(deterministic)
        with _evaluating(self), batch_invariant(self, by_batch):
            if pooling == "last":
                return self._at_decisions(batch).float()
            _require_no_leak(batch, self.encoder.config)
            pool = Pooling(self.encoder.config, pooling)
            pool.batch_invariant = by_batch
            return pool(self.encoder(batch), batch).float()  # type: ignore[no-any-return]

    def _at_decisions(self, batch: PackedBatch) -> Tensor:
        _require_no_leak(batch, self.encoder.config)
        return self.encoder(batch, at_decisions=True)


def _by_batch(deterministic: bool | Literal["batch"]) -> bool:
    if not isinstance(deterministic, bool) and deterministic != "batch":
        raise ValueError(f'deterministic must be True, False or "batch", got {deterministic!r}')
    return deterministic == "batch"


def check_decisions(batch: PackedBatch, config: EncoderConfig) -> None:
    """Raise ValueError if a decision's hidden state would depend on tokens after it, or if decisions do not ascend.

    Under a bidirectional encoder every token sees its whole sequence, so a decision must be the last row of its own.
    Decisions out of order would be answered by the wrong sequences.
    It reads tensor values: meant for batches on the CPU, before they are moved.
    """
    if config.causal or not batch.positions.numel():
        return
    if bool((batch.positions.diff() < 0).any()):
        raise ValueError(f"positions of decisions must ascend, got {batch.positions.tolist()[:8]} …")
    behind = _tokens_behind(batch)
    if bool(behind.any()):
        first = int(behind.nonzero()[0])
        raise ValueError(
            f"decision {int(batch.keys[first])} has {int(behind[first])} tokens of its sequence after it, which a "
            "bidirectional encoder would let it see; end sequences at their decision or make the encoder causal"
        )


def _tokens_behind(batch: PackedBatch) -> Tensor:
    """(Q,) int64, tokens of its own sequence that come after each decision."""
    sequence = torch.searchsorted(batch.cu_seqlens[1:].long(), batch.positions, right=True)
    return batch.cu_seqlens.long()[sequence + 1] - 1 - batch.positions


def _require_no_leak(batch: PackedBatch, config: EncoderConfig) -> None:
    if batch.positions.device.type == "cpu":
        check_decisions(batch, config)
    elif not config.causal and batch.positions.numel():
        # The host must not wait for the device here; the device stops the run by itself, with less to say.
        sound = (_tokens_behind(batch) == 0).all() & (batch.positions.diff() >= 0).all()
        torch._assert_async(sound, "a decision has tokens of its sequence after it, or decisions do not ascend")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the time of the block; then each part is put back into the mode in which it was."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
