"""What an encoder benchmark measures: its cases, the work in a step by formula, and the rows that come of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from quantattn.cli.benchmarks.encoder_peers import (
    COMPILED,
    FIELD,
    GLOBAL_BASE,
    LOCAL_BASE,
    PEERS,
    Compiled,
    Task,
)
from quantattn.cli.errors import UsageError, nearest
from quantattn.nn import EncoderConfig

Stage = Literal["training", "inference", "longest"]

DENSE_PEAK = 989.5
"""TFLOP/s of dense bf16 products of an H100 or H200 by their data sheet; utilisation is a share of it."""
OURS, CHECKPOINTED = "quantattn", "quantattn_checkpointed"
PATTERNS = ("local", "full")
NO_MEMORY, NOT_BEGUN = "out of memory", "not begun"
"""How a note begins where a machine or a limit is the reason."""
PRECISIONS = ("bf16-mixed", "bf16-true", "32-true")
KEY = ("impl", "pattern", "precision", "compile", "N", "batch", "pass")
"""Columns that name a row: measured again, it takes the place of the old one."""


@dataclass(frozen=True)
class Case:
    """One comparison: a pattern, a length and a pass; for the pass "longest" the length is the first one."""

    pattern: str
    n: int
    stage: Stage


@dataclass(frozen=True)
class EncoderRow:
    """One case and implementation; NaN where it was not measured, and then `note` says why.

    Attributes:
        impl: a name of `PEERS`.
        pattern: local or full.
        precision: bf16-mixed (float32 parameters under autocast), bf16-true or 32-true.
        compile: what of it is compiled: model, blocks or none.
        N: tokens of a sequence.
        batch: sequences.
        parameters: trainable scalars, embedding and head included.
        stage: training (forward, backward, AdamW), inference or longest; the column is called `pass`.
        ms: median milliseconds of a step.
        ms_low: 10th percentile.
        ms_high: 90th percentile.
        tokens_per_s: tokens of a step over its median time.
        mfu: model-flop utilisation, of `DENSE_PEAK`; see `flops`.
        peak_mib: parameters, optimizer state and the peak of a step together, MiB.
        loss_first: of the first training step, nats.
        loss_last: of the last one.
        note: why it was not measured.
    """

    impl: str
    pattern: str
    precision: str
    compile: str
    N: int
    batch: int
    parameters: int = 0
    stage: str = "training"
    ms: float = math.nan
    ms_low: float = math.nan
    ms_high: float = math.nan
    tokens_per_s: float = math.nan
    mfu: float = math.nan
    peak_mib: float = math.nan
    loss_first: float = math.nan
    loss_last: float = math.nan
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
    """How cases are measured; `config` has the local pattern, and the full one is the same without windows."""

    config: EncoderConfig
    peers: Mapping[str, Sequence[str]]
    tokens: int
    precision: str
    compile: Compiled
    rounds: int
    warmup: int
    seed: int
    limit_s: float | None

    def task(self, case: Case) -> Task:
        """The task of a case: as many sequences as make `tokens`, at least one."""
        config = self.config if case.pattern == "local" else self.config.with_changes(local_window=None)
        return Task(config, case.n, max(1, self.tokens // case.n), self.compile)

    def row(self, case: Case, name: str, **found: Any) -> EncoderRow:
        """A row of the case."""
        batch = self.task(case).batch
        start = EncoderRow(name, case.pattern, self.precision, self.compile, case.n, batch, stage=case.stage)
        return replace(start, **found)


def flops(config: EncoderConfig, n: int, batch: int, training: bool) -> float:
    """Model floating-point operations of one step.

    6 · P · tokens + 12 · C · pairs for training (forward, and twice as much for backward), a third of it for inference.
    P are the parameters of the blocks and of the head over the vocabulary, since a look-up multiplies nothing; pairs
    are the (query, key) pairs that the pattern shows, summed over layers and sequences. What is recomputed does not
    count.
    """
    parameters = config.n_parameters  # the embedding's table has the size of the head
    pairs = sum(_pairs(n, config.local_window if config.is_local(i) else None) for i in range(config.n_layers))
    forward = 2.0 * parameters * n * batch + 4.0 * config.width * pairs * batch
    return 3.0 * forward if training else forward


def _pairs(n: int, window: int | None) -> int:
    """Σ_i |{j: |i − j| ≤ window}| over i, j in [0, n)."""
    reach = n - 1 if window is None else min(window, n - 1)
    return n * (2 * reach + 1) - reach * (reach + 1)


def read(asked: Mapping[str, Any], seed: int) -> tuple[Plan, list[Case]]:
    """The plan and its cases from the settings under `encoder`.

    Raises:
        UsageError: a value that is none of those that there are.
    """
    for name, known in (("precision", PRECISIONS), ("compile", COMPILED)):
        if asked[name] not in known:
            raise UsageError(f"encoder.{name}={asked[name]}: expected one of {', '.join(known)}")
    for pattern, names in asked["peers"].items():
        for peer in names:
            if peer not in PEERS:
                raise UsageError(f"encoder.peers.{pattern}: there is no {peer!r}{nearest(str(peer), PEERS)}")
    config = EncoderConfig.of_size(
        asked["size"], codes={FIELD: asked["vocabulary"]}, local_window=asked["window"],
        global_every=asked["global_every"], rotary_base=GLOBAL_BASE, local_rotary_base=LOCAL_BASE,
    )  # fmt: skip
    plan = Plan(
        config=config,
        peers=asked["peers"],
        **{name: asked[name] for name in ("tokens", "precision", "compile", "rounds", "warmup", "limit_s")},
        seed=seed,
    )
    cases = [_case(entry) for entry in asked["cases"]]
    return plan, [case for case in cases if case.stage == "longest" or not asked["longest"]]


def _case(entry: Any) -> Case:
    match entry:
        case [str(pattern), int(n), ("training" | "inference" | "longest") as stage] if pattern in PATTERNS and n > 0:
            return Case(pattern, n, stage)
    raise UsageError(f"encoder.cases: expected [local | full, tokens, training | inference | longest], got {entry}")


def sentence(row: EncoderRow) -> str:
    """What is printed as soon as a row is known."""
    what = f"{row.impl:24} {row.pattern:5} N {row.N:6} × {row.batch:2} {row.stage}"
    if row.note:
        return f"{what}: {row.note}"
    on_gpu = f"utilisation {100 * row.mfu:.1f} %, peak {row.peak_mib / 1024:.1f} GiB, " if row.mfu > 0 else ""
    return f"{what}: {row.ms:.1f} ms, {row.tokens_per_s:,.0f} tokens/s, {on_gpu}{row.parameters:,} parameters"
