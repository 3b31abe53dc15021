"""Encoders beside each other: a training step and inference; tokens a second, utilisation and peak memory.

All peers get the same tokens, equal widths, depths and numbers of parameters, and the same attention pattern: "local"
is ModernBERT's (one layer in `global_every` sees everything, the others a window), "full" sees everything everywhere.
Before it is timed a peer trains for some steps on one batch: what it computes must be finite and its loss must fall.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from quantattn.cli.benchmarks.encoder_peers import PEERS, Task
from quantattn.cli.benchmarks.encoder_plan import (
    CHECKPOINTED,
    DENSE_PEAK,
    NO_MEMORY,
    NOT_BEGUN,
    OURS,
    Case,
    EncoderRow,
    Plan,
    flops,
)
from quantattn.cli.benchmarks.timing import Timing, peak_mib, time_interleaved
from quantattn.nn.config import MASKED

MASKED_SHARE = 0.3
LEARNING_RATE = 3e-4
MIB = 1 << 20

Say = Callable[[str], None]


class Steps:
    """A peer on the device, with its tokens and its optimizer, and the two calls that are timed."""

    def __init__(self, name: str, task: Task, precision: str, seed: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.task = task
        torch.manual_seed(seed)
        model = PEERS[name](task).to(self.device)
        self.mixed = precision == "bf16-mixed"
        self.model: nn.Module = model.bfloat16() if precision == "bf16-true" else model
        self.parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.tokens, self.targets = draw(task, self.device, seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, fused=True)
        self.losses: list[Tensor] = []

    def train(self) -> None:
        """Forward, backward and AdamW."""
        self.model.train()
        with self._autocast():
            logits = self.model(self.tokens)
            loss = functional.cross_entropy(logits.float(), self.targets)
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())

    @torch.no_grad()
    def infer(self) -> Tensor:
        """(B · N, V) logits."""
        self.model.eval()
        with self._autocast():
            logits: Tensor = self.model(self.tokens)
        return logits

    def resident(self) -> int:
        """Bytes that stay between steps: parameters, buffers and what the optimizer keeps."""
        kept = [*self.model.parameters(), *self.model.buffers()]
        kept += [x for state in self.optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        return sum(x.numel() * x.element_size() for x in kept)

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16) if self.mixed else nullcontext()


def draw(task: Task, device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens (B, N), some of them hidden, and the codes (B · N,) that stood there; codes are rarer the larger."""
    rng = torch.Generator().manual_seed(seed)
    weights = 1.0 / torch.arange(1, task.vocabulary - MASKED, dtype=torch.float64)
    size = task.batch * task.n
    truth = torch.multinomial(weights, size, replacement=True, generator=rng) + MASKED + 1
    hidden = torch.rand(size, generator=rng) < MASKED_SHARE
    tokens = truth.masked_fill(hidden, MASKED).view(task.batch, task.n)
    return tokens.to(device), truth.to(device)


def benchmark(cases: Sequence[Case], plan: Plan, say: Say) -> Iterator[EncoderRow]:
    """One row a case and peer, measured or with the reason why not, as soon as it is known."""
    ends = math.inf if plan.limit_s is None else perf_counter() + plan.limit_s
    for case in cases:
        if case.stage == "longest":
            yield from _longest(case, plan, ends)
            continue
        made: dict[str, Steps] = {}
        rows: dict[str, EncoderRow] = {}
        for name in plan.peers[case.pattern]:
            if perf_counter() > ends:
                yield plan.row(case, name, note=f"{NOT_BEGUN}: the limit of {plan.limit_s:g} s was reached")
                continue
            found = _admit(name, case, plan)
            if isinstance(found, str):
                yield plan.row(case, name, note=found)
            else:
                made[name], rows[name] = found
        yield from _measured(case, plan, made, rows, say)
        made.clear()
        free()


def _admit(name: str, case: Case, plan: Plan) -> tuple[Steps, EncoderRow] | str:
    """The peer after its first steps, with its row so far; or why it is not timed."""
    try:
        steps = Steps(name, plan.task(case), plan.precision, plan.seed)
        for _ in range(max(2, plan.warmup)):
            steps.train() if case.stage == "training" else steps.infer()
        return _gate(steps, case, plan, name)
    except Exception as reason:  # whatever a peer's code raises, its row says it
        sentence = in_words(reason)
    free()  # outside of the except clause, whose exception holds the frames and their tensors
    return sentence


def _gate(steps: Steps, case: Case, plan: Plan, name: str) -> tuple[Steps, EncoderRow] | str:
    """Finite results; in training a loss that fell, in inference logits that differ from token to token."""
    row = plan.row(case, name, parameters=steps.parameters)
    if case.stage == "inference":
        logits = steps.infer().float()
        if not bool(torch.isfinite(logits).all()) or float(logits.std(dim=0).max()) == 0.0:
            return "not timed: its logits are not finite, or equal for every token"
        return steps, row
    first, last = float(steps.losses[0]), float(steps.losses[-1])
    if not all(math.isfinite(float(loss)) for loss in steps.losses) or last >= first:
        return f"not timed: its loss went from {first:.4f} to {last:.4f} in {len(steps.losses)} steps"
    return steps, replace(row, loss_first=round(first, 4), loss_last=round(last, 4))


def _measured(
    case: Case, plan: Plan, made: Mapping[str, Steps], rows: Mapping[str, EncoderRow], say: Say
) -> Iterator[EncoderRow]:
    calls = {name: steps.train if case.stage == "training" else steps.infer for name, steps in made.items()}
    if not calls:
        return
    try:
        times = time_interleaved(calls, rounds=plan.rounds, warmup=0)
    except torch.OutOfMemoryError:
        times = {}
    if not times:
        say(f"{case.pattern}, N {case.n}, {case.stage}: not enough memory for all at once; timed one after the other")
        for name, call in calls.items():
            free()
            times |= time_interleaved({name: call}, rounds=plan.rounds, warmup=0)
    task = plan.task(case)
    needed = flops(task.config, task.n, task.batch, case.stage == "training")
    for name, timing in times.items():
        peak = made[name].resident() / MIB + peak_mib(calls[name]) if made[name].device.type == "cuda" else math.nan
        yield timed_row(rows[name], timing, task.n * task.batch, needed, peak)


def timed_row(row: EncoderRow, timing: Timing, tokens: int, needed: float, peak: float) -> EncoderRow:
    """The row with what was measured; `needed` are the model's operations in a step."""
    return replace(
        row,
        ms=round(timing.median, 3),
        ms_low=round(timing.low, 3),
        ms_high=round(timing.high, 3),
        tokens_per_s=round(1e3 * tokens / timing.median),
        mfu=round(needed / timing.median / 1e9 / DENSE_PEAK, 4) if torch.cuda.is_available() else math.nan,
        peak_mib=round(peak, 1),
    )


def _longest(case: Case, plan: Plan, ends: float) -> Iterator[EncoderRow]:
    """One row a length, doubled until memory ends: a training step of one sequence, with checkpointing.

    The first length is timed at its second step; a longer one at its first, which compiles nothing new. A length is not
    begun whose step, at four times the last one's, would pass the limit.
    """
    last, warm = 0.0, False
    while True:
        row = plan.row(case, CHECKPOINTED, batch=1)
        if perf_counter() + 4.0 * last > ends:
            yield replace(row, note=f"{NOT_BEGUN}: it would pass the limit of {plan.limit_s:g} s")
            return
        found = _one_step(replace(plan.task(case), batch=1), plan, warm)
        if isinstance(found, str):
            yield replace(row, note=found)
            return
        timing, peak, parameters, loss = found
        last, warm = timing.median / 1e3, True
        row = replace(row, parameters=parameters, loss_first=loss, loss_last=loss)
        yield timed_row(row, timing, case.n, flops(plan.task(case).config, case.n, 1, True), peak)
        case = replace(case, n=2 * case.n)


def _one_step(task: Task, plan: Plan, warm: bool) -> tuple[Timing, float, int, float] | str:
    """Time, peak memory in MiB, parameters and loss of one training step; or why there is none."""
    try:
        steps = Steps(CHECKPOINTED, task, plan.precision, plan.seed)
        on_gpu = steps.device.type == "cuda"
        if not warm:
            steps.train()
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = perf_counter()
        steps.train()
        loss = float(steps.losses[-1])  # waits for the device
        taken = 1e3 * (perf_counter() - began)
        peak = torch.cuda.max_memory_allocated() / MIB if on_gpu else math.nan
        if not math.isfinite(loss):
            return f"its loss became {loss}"
        return Timing(taken, taken, taken, 1), peak, steps.parameters, round(loss, 4)
    except Exception as reason:  # most often memory that ends, which the row says
        sentence = in_words(reason)
    free()
    return sentence


def profile(case: Case, plan: Plan) -> str:
    """Two steps of ours under torch.profiler: a table of the kernels that take the most time."""
    steps = Steps(OURS, plan.task(case), plan.precision, plan.seed)
    call = steps.train if case.stage == "training" else steps.infer
    for _ in range(max(2, plan.warmup)):
        call()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if steps.device.type == "cuda":
        torch.cuda.synchronize()
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as seen:
        call()
        call()
        if steps.device.type == "cuda":
            torch.cuda.synchronize()
    by = "self_device_time_total" if steps.device.type == "cuda" else "self_cpu_time_total"
    table = seen.key_averages().table(sort_by=by, row_limit=60, max_name_column_width=110)
    return f"two steps: {case.pattern}, N {case.n}, {case.stage}\n{table}\n"


def in_words(reason: BaseException) -> str:
    """The first line of an error; of one that says "out of memory. Tried to …. GPU …", what was tried."""
    lines = str(reason).strip().splitlines() or [type(reason).__name__]
    text = lines[0]
    if isinstance(reason, torch.OutOfMemoryError):
        return f"{NO_MEMORY}: {[*text.split('. '), text][1]}"
    return f"{type(reason).__name__}: {text}" if not isinstance(reason, ValueError) else text


def free() -> None:
    """Give memory of models that are gone back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
