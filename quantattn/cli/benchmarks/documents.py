"""Long documents through encoders: whole and packed by ours, whole or in padded windows by those of transformers.

All have one width, depth and vocabulary. What is timed is the way of all documents to one vector each, the mean of the
hidden states of its tokens, or one optimizer step over all of them; tokens a second count the documents' own tokens,
each once, and no padding. Before it is timed a peer has to give vectors that are finite and differ.

Dimensions: N documents, T tokens of a call, C model width, V vocabulary.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from quantattn.cli.benchmarks.documents_peers import PEERS, feeds
from quantattn.cli.benchmarks.documents_plan import DocumentsRow, Plan
from quantattn.cli.benchmarks.encoder import LEARNING_RATE, MASKED_SHARE, MIB, Say, free, in_words
from quantattn.cli.benchmarks.encoder_peers import FIELD
from quantattn.cli.benchmarks.encoder_plan import NOT_BEGUN
from quantattn.nn.config import MASKED


class Reader:
    """A peer on the device with the documents as it reads them, and the two calls that are timed."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        window, config = plan.window(name), plan.config
        documents = draw(plan)
        self.count, self.total = len(documents), sum(plan.lengths)
        self.feeds = list(feeds(documents, window, PEERS[name].padded, plan.call, self.device))
        torch.manual_seed(plan.seed)
        encoder = PEERS[name].make(config, window or max(plan.lengths), plan.compile)
        self.parameters = sum(p.numel() for p in encoder.parameters() if p.requires_grad)
        head = nn.Linear(config.width, config.codes[FIELD], bias=False)
        model = nn.ModuleDict({"encoder": encoder, "head": head}).to(self.device)
        self.mixed = plan.precision == "bf16-mixed"
        self.model = model.bfloat16() if plan.precision == "bf16-true" else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, fused=True)
        self.losses: list[float] = []

    @torch.no_grad()
    def infer(self) -> Tensor:
        """(N, C) float32, the mean of each document's hidden states."""
        self.model.eval()
        sums: Tensor | None = None
        counts = torch.zeros(self.count, device=self.device)
        for feed in self.feeds:
            with self._autocast():
                hidden = self.model["encoder"](feed).float()
            sums = hidden.new_zeros(self.count, hidden.shape[1]) if sums is None else sums
            sums.index_add_(0, feed.documents, hidden)
            counts += torch.bincount(feed.documents, minlength=self.count)
        assert sums is not None
        return sums / counts[:, None]

    def train(self) -> None:
        """Forward and backward of every call, hidden tokens being predicted, and one step of AdamW."""
        self.model.train()
        total = torch.zeros((), device=self.device)
        generator = torch.Generator(self.device).manual_seed(0)
        for feed in self.feeds:
            hide = torch.rand(feed.tokens.shape, generator=generator, device=self.device) < MASKED_SHARE
            hide = hide if feed.real is None else hide & feed.real
            truth = feed.tokens[hide]
            with self._autocast():
                hidden = self.model["encoder"](replace(feed, tokens=feed.tokens.masked_fill(hide, MASKED)))
                rows = hide if feed.real is None else hide[feed.real]
                logits = self.model["head"](hidden[rows])
                loss = functional.cross_entropy(logits.float(), truth, reduction="sum") / (MASKED_SHARE * self.total)
            torch.autograd.backward(loss)
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(float(total))

    def resident(self) -> int:
        """Bytes that stay between rounds: parameters, buffers and what the optimizer keeps."""
        kept = [*self.model.parameters(), *self.model.buffers()]
        kept += [x for state in self.optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        return sum(x.numel() * x.element_size() for x in kept)

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16) if self.mixed else nullcontext()


def draw(plan: Plan) -> list[Tensor]:
    """Documents (n_i,) int64 of codes that are rarer the larger; none of them is missing or masked."""
    rng = torch.Generator().manual_seed(plan.seed)
    weights = 1.0 / torch.arange(1, plan.config.codes[FIELD] - MASKED, dtype=torch.float64)
    return [torch.multinomial(weights, n, replacement=True, generator=rng) + MASKED + 1 for n in plan.lengths]


def benchmark(plan: Plan, say: Say) -> Iterator[DocumentsRow]:
    """One row a pass and peer, measured or with the reason why not."""
    ends = math.inf if plan.limit_s is None else perf_counter() + plan.limit_s
    for stage in plan.passes:
        made: dict[str, Reader] = {}
        for name in plan.peers:
            if perf_counter() > ends:
                yield plan.row(name, stage, note=f"{NOT_BEGUN}: the limit of {plan.limit_s:g} s was reached")
                continue
            began = perf_counter()
            found = _admit(name, plan, stage)
            if isinstance(found, str):
                yield plan.row(name, stage, note=found)
            else:
                made[name] = found
                say(f"{stage}, {name}: ready after {perf_counter() - began:.1f} s")
        yield from _measured(plan, stage, made, ends, say)
        made.clear()
        free()


def _admit(name: str, plan: Plan, stage: str) -> Reader | str:
    """The peer after its first round, which compiles what it compiles; or why it is not timed."""
    try:
        reader = Reader(name, plan)
        if stage == "training":
            reader.train()
            finite = math.isfinite(reader.losses[-1])
            return reader if finite else f"not timed: its loss became {reader.losses[-1]}"
        vectors = reader.infer()
        if bool(torch.isfinite(vectors).all()) and float(vectors.std(dim=0, correction=0).max()) > 0.0:
            return reader
        refusal = "not timed: its vectors are not finite, or equal for every document"
    except Exception as reason:  # whatever a peer's code raises, its row says it
        refusal = in_words(reason)
    free()  # outside of the except clause, whose exception holds the frames and their tensors
    return refusal


def _measured(plan: Plan, stage: str, made: Mapping[str, Reader], ends: float, say: Say) -> Iterator[DocumentsRow]:
    """Every peer once a round, in turn; at least one round, further ones while there is time."""
    taken: dict[str, list[float]] = {name: [] for name in made}
    peaks: dict[str, list[float]] = {name: [] for name in made}
    notes: dict[str, str] = {}
    for turn in range(plan.rounds):
        if turn and perf_counter() > ends:
            say(f"{stage}: {turn} of {plan.rounds} rounds, the limit of {plan.limit_s:g} s was reached")
            break
        for name, reader in made.items():
            if name in notes:
                continue
            try:
                ms, peak = _once(reader.train if stage == "training" else reader.infer)
                taken[name].append(ms)
                peaks[name].append(reader.resident() / MIB + peak)
            except torch.OutOfMemoryError as reason:
                notes[name] = in_words(reason)
        say(f"{stage}: round {turn + 1} of {plan.rounds}")
    for name, reader in made.items():
        row = plan.row(name, stage, parameters=reader.parameters)
        if name in notes:
            yield replace(row, note=notes[name])
            continue
        median = statistics.median(taken[name])
        yield replace(
            row,
            ms=round(median, 1),
            ms_low=round(min(taken[name]), 1),
            ms_high=round(max(taken[name]), 1),
            rounds=len(taken[name]),
            tokens_per_s=round(1e3 * reader.total / median),
            peak_mib=round(max(peaks[name]), 1),
        )


def _once(call: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of a long call, and its peak memory above what was there before, MiB."""
    on_gpu = torch.cuda.is_available()
    before = 0
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    began = perf_counter()
    call()
    if on_gpu:
        torch.cuda.synchronize()
    taken = 1e3 * (perf_counter() - began)
    return taken, (torch.cuda.max_memory_allocated() - before) / MIB if on_gpu else math.nan
