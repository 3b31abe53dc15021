"""What a benchmark of long documents measures, and the rows that come of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quantattn.cli.benchmarks.documents_peers import FAMILIES, PEERS, calls, pieces
from quantattn.cli.benchmarks.encoder_peers import COMPILED, FIELD, Compiled
from quantattn.cli.benchmarks.encoder_plan import NO_MEMORY, NOT_BEGUN, OURS, PRECISIONS
from quantattn.cli.benchmarks.shapes import log_normal_lengths
from quantattn.cli.errors import UsageError, nearest
from quantattn.nn import EncoderConfig

PASSES = ("inference", "training")
KEY = ("impl", "precision", "documents", "tokens", "call", "layers", "pass")
"""Columns that name a row: measured again, it takes the place of the old one."""


@dataclass(frozen=True)
class DocumentsRow:
    """One encoder and pass; NaN where it was not measured, and then `note` says why.

    Attributes:
        impl: a name of `PEERS`.
        sees: whole documents or windows, packed or padded.
        pattern: which keys of its row a token attends to.
        precision: bf16-true, bf16-mixed or 32-true.
        documents: how many.
        shortest: tokens of the shortest.
        longest: of the longest one.
        tokens: of all, which tokens_per_s counts.
        places: tokens and padding that were computed.
        call: places of a call at most; a longer row is a call of its own.
        layers: blocks.
        parameters: trainable scalars of the encoder.
        stage: inference or training; the column is called `pass`.
        ms: median milliseconds for all documents.
        ms_low: the fastest round.
        ms_high: the slowest.
        rounds: how many were timed.
        tokens_per_s: `tokens` over the median time.
        peak_mib: parameters, optimizer state and the peak of a round, MiB.
        note: why it was not measured.
    """

    impl: str
    sees: str
    pattern: str
    precision: str
    documents: int
    shortest: int
    longest: int
    tokens: int
    places: int
    call: int
    layers: int
    parameters: int = 0
    stage: str = "inference"
    ms: float = math.nan
    ms_low: float = math.nan
    ms_high: float = math.nan
    rounds: int = 0
    tokens_per_s: float = math.nan
    peak_mib: float = math.nan
    note: str = ""

    @property
    def begun(self) -> bool:
        """Whether there was time for it."""
        return not self.note.startswith(NOT_BEGUN)

    @property
    def failed(self) -> bool:
        """Whether ours was not measured, and neither memory nor time was short."""
        return self.impl.startswith(OURS) and bool(self.note) and not self.note.startswith(NO_MEMORY) and self.begun


@dataclass(frozen=True)
class Plan:
    """What is measured; `config` is the shape, `windows` maps a family to the tokens of its windows."""

    config: EncoderConfig
    lengths: tuple[int, ...]
    peers: Sequence[str]
    passes: Sequence[str]
    windows: Mapping[str, int]
    call: int
    precision: str
    compile: Compiled
    rounds: int
    seed: int
    limit_s: float | None

    def window(self, name: str) -> int | None:
        """Tokens of the windows that a peer reads; None when it reads documents whole."""
        family = PEERS[name].window
        return None if family is None else self.windows[family]

    def row(self, name: str, stage: str, **found: Any) -> DocumentsRow:
        """A row of the peer, not yet measured."""
        peer, window = PEERS[name], self.window(name)
        made = calls(pieces(self.lengths, window), self.call, window if peer.padded else None)
        widths = [window or max(row.stop - row.start for row in call) for call in made]
        places = sum(len(call) * width for call, width in zip(made, widths, strict=True))
        rows = "whole documents" if window is None else f"windows of {window}"
        start = DocumentsRow(
            impl=name,
            sees=f"{rows}, {'padded' if peer.padded else 'packed'}",
            pattern=peer.pattern,
            precision=self.precision,
            documents=len(self.lengths),
            shortest=min(self.lengths),
            longest=max(self.lengths),
            tokens=sum(self.lengths),
            places=places if peer.padded else sum(self.lengths),
            call=self.call,
            layers=self.config.n_layers,
            stage=stage,
        )
        return replace(start, **found)


def read(asked: Mapping[str, Any], seed: int) -> Plan:
    """The plan from the settings under `documents`.

    Raises:
        UsageError: a value that is none of those that there are.
    """
    for name, known in (("precision", PRECISIONS), ("compile", COMPILED)):
        if asked[name] not in known:
            raise UsageError(f"documents.{name}={asked[name]}: expected one of {', '.join(known)}")
    for name, there in (("peers", tuple(PEERS)), ("passes", PASSES)):
        for each in asked[name]:
            if each not in there:
                raise UsageError(f"documents.{name}: there is no {each!r}{nearest(str(each), there)}")
    for name in ("rounds", "call"):
        _require_count(f"documents.{name}", asked[name])
    for family in FAMILIES:
        _require_count(f"documents.windows.{family}", asked["windows"][family])
    drawn = asked["lengths"]
    if not 0 < drawn["shortest"] <= min(drawn["longest"], drawn["tokens"]):
        raise UsageError(f"documents.lengths: expected 0 < shortest ≤ longest and tokens, got {dict(drawn)}")
    layers = {} if asked["n_layers"] is None else {"n_layers": asked["n_layers"]}
    return Plan(
        config=EncoderConfig.of_size(asked["size"], codes={FIELD: asked["vocabulary"]}, **layers),
        lengths=log_normal_lengths(**drawn),
        seed=seed,
        **{n: asked[n] for n in ("peers", "passes", "windows", "call", "precision", "compile", "rounds", "limit_s")},
    )


def _require_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} must be a whole number of at least 1, got {value!r}")


def sentence(row: DocumentsRow) -> str:
    """What is printed as soon as a row is known."""
    what = f"{row.impl:21} {row.sees:26} {row.stage}"
    if row.note:
        return f"{what}: {row.note}"
    peak = "" if math.isnan(row.peak_mib) else f", peak {row.peak_mib / 1024:.1f} GiB"
    padding = 1 - row.tokens / row.places
    return f"{what}: {row.ms / 1e3:.2f} s, {row.tokens_per_s:,.0f} tokens/s{peak}, {padding:.1%} padding"
