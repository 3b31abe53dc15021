"""Where the time of a run goes, step by step: a table that a run which goes on goes on writing."""

from __future__ import annotations

import csv
import io
import itertools
import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from quantattn.learn.checkpoint import Checkpoints
from quantattn.learn.files import write_json, write_text
from quantattn.nn import EncoderConfig

PEAKS = {"H200": 989.5, "H100 80GB HBM3": 989.5, "A100": 312.0}
"""Part of a GPU's name → TFLOP/s of its dense 16-bit products by its data sheet."""
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Row:
    """An optimizer step, or with no tokens what came after the last one.

    Attributes:
        step: optimizer steps done.
        start: how often the run had gone on before.
        seconds: since the row before, without the two below.
        waited: of them, for the loader.
        tokens: of all processes.
        tflop: 10¹² operations of the model on them, see `operations`.
        validating: seconds since the row before in validations.
        saving: seconds since the row before in which the loop took copies of its state and waited for the disk.
        graphs: that torch has compiled in this process so far.
        peak_mib: most memory so far, of the GPU's tensors or else of the process.
    """

    step: int
    start: int
    seconds: float
    waited: float
    tokens: int
    tflop: float
    validating: float
    saving: float
    graphs: int
    peak_mib: float


NAMES = [field.name for field in fields(Row)]


class Throughput(Callback):
    """Writes `throughput.csv`, a `Row` a step, and at the end `throughput.json`, their `summary`, and prints it.

    Of several processes the first alone does, and takes the others to have batches like its own. A run that goes on
    drops the rows beyond its checkpoint: it is about to make these steps again.

    Args:
        folder: the run folder.
        peak_tflops: of one device, for the utilisation; None is that of `PEAKS` in 16 bits, if there is one.
        clock: seconds, of any origin.
    """

    def __init__(
        self, folder: str, peak_tflops: float | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if peak_tflops is not None and not 0 < peak_tflops < math.inf:
            raise ValueError(f"peak_tflops must be positive, got {peak_tflops}")
        self.folder, self.peak_tflops, self.clock = Path(folder), peak_tflops, clock
        self.path = self.folder / "throughput.csv"
        self._start, self._step = 0, 0
        self._at, self._waited, self._saved = 0.0, 0.0, 0.0
        self._paused, self._validating, self._tokens, self._tflop = 0.0, 0.0, 0, 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin, or go on below the rows that are there."""
        if not trainer.is_global_zero:
            return
        rows = [row for row in read_rows(self.path) if row.step <= trainer.global_step] if trainer.global_step else []
        self._start, self._step = rows[-1].start + 1 if rows else 0, trainer.global_step
        write_text(self.path, _lines([NAMES, *map(astuple, rows)]))
        self._waited, self._saved, self._tokens, self._tflop, self._validating = 0.0, saving(trainer), 0, 0.0, 0.0
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.reset_peak_memory_stats()
        self._at = self.clock()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch, and write the row of a step that is done."""
        if not trainer.is_global_zero:
            return
        model: Any = pl_module.model
        skipped = 1 if model.decision_heads() else 0
        done = operations(model.encoder.config, model.encoder.blocks[0], batch.cu_seqlens.diff().tolist(), skipped)
        ranks: Any = pl_module.ranks
        self._tokens += batch.n_tokens * ranks
        self._tflop += done * ranks / 1e12
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            self._write(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Another clock runs."""
        self._paused = self.clock()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The first one goes on."""
        self._validating += self.clock() - self._paused

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sum up."""
        self._end(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Sum up what a run has done that fails or is told to stop."""
        self._end(trainer, pl_module)

    def _write(self, trainer: Trainer) -> None:
        now, loader, saved = self.clock(), getattr(trainer.train_dataloader, "waited", 0.0), saving(trainer)
        pauses = self._validating + saved - self._saved
        row = Row(
            step=self._step,
            start=self._start,
            seconds=now - self._at - pauses,
            waited=loader - self._waited,
            tokens=self._tokens,
            tflop=self._tflop,
            validating=self._validating,
            saving=saved - self._saved,
            graphs=graphs(),
            peak_mib=peak_mib(),
        )
        try:
            with self.path.open("ab") as file:
                file.write(_lines([astuple(row)]).encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._at, self._waited, self._saved = now, loader, saved
        self._validating, self._tokens, self._tflop = 0.0, 0, 0.0

    def _end(self, trainer: Trainer, module: LightningModule) -> None:
        if not trainer.is_global_zero or not self.path.is_file():
            return
        self._tokens, self._tflop = 0, 0.0  # of a step that was not ended
        self._write(trainer)
        found = summary(read_rows(self.path), self._peak(trainer, module), trainer.world_size)
        write_json(self.folder / "throughput.json", found)
        print("\n".join(sentences(found)), flush=True)

    def _peak(self, trainer: Trainer, module: LightningModule) -> float | None:
        if self.peak_tflops is not None or module.device.type != "cuda" or "16" not in str(trainer.precision):
            return self.peak_tflops
        name = torch.cuda.get_device_name(module.device)
        return next((peak for part, peak in PEAKS.items() if part in name), None)


def operations(config: EncoderConfig, block: torch.nn.Module, lengths: Sequence[int], skipped: int = 0) -> float:
    """Floating-point operations of the blocks in forward and backward over sequences of these lengths.

    6 · P · tokens + 12 · C · pairs a block: P are the matrices of a block, pairs the (query, key) pairs that it shows.
    Embedding, heads, the optimizer and what is computed twice do not count.

    Args:
        config: of the encoder.
        block: one of its blocks, all of which have the same shapes.
        lengths: tokens of each sequence.
        skipped: blocks at the end that are left out, because they are computed for decisions alone.
    """
    matrices = sum(p.numel() for p in block.parameters() if p.ndim == 2)
    total, tokens = 0.0, sum(lengths)
    for layer in range(config.n_layers - skipped):
        window = config.local_window if config.is_local(layer) else None
        total += 6.0 * matrices * tokens + 12.0 * config.width * sum(pairs(n, window, config.causal) for n in lengths)
    return total


def pairs(n: int, window: int | None, causal: bool) -> int:
    """How many (query, key) pairs of n tokens are within `window` on each side, or on the left alone."""
    reach = n - 1 if window is None else min(window, n - 1)
    left = n * (reach + 1) - reach * (reach + 1) // 2
    return left if causal else 2 * left - n


def saving(trainer: Trainer) -> float:
    """Seconds that the callbacks which write checkpoints have taken so far."""
    return sum(each.writer.seconds for each in trainer.checkpoint_callbacks if isinstance(each, Checkpoints))


def graphs() -> int:
    """Graphs that torch has compiled in this process."""
    compiler: Any = sys.modules.get("torch._dynamo.utils")
    return int(compiler.counters["stats"]["unique_graphs"]) if compiler else 0


def peak_mib() -> float:
    """Most memory in MiB: of tensors on the GPU, or of the process where there is none."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return float(torch.cuda.max_memory_allocated() / 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def read_rows(path: Path) -> list[Row]:
    """The rows of a table, if it is there; a last line cut short by a kill is left out.

    Raises:
        ValueError: it is another table.
    """
    raw = path.read_bytes() if path.is_file() else b""
    lines = list(csv.reader(io.StringIO(raw[: raw.rfind(b"\n") + 1].decode("utf-8", "replace"), newline="")))
    try:
        if lines and lines[0] != NAMES:
            raise ValueError(f"its first line is {lines[0]}")
        return [_row(line) for line in lines[1:]]
    except ValueError as error:
        raise ValueError(f"{path} is no table of throughput: {error}") from None


def _row(line: Sequence[str]) -> Row:
    found: dict[str, Any] = {
        field.name: int(value) if field.type == "int" else float(value)
        for field, value in zip(fields(Row), line, strict=True)
    }
    return Row(**found)


def _lines(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def summary(rows: Sequence[Row], peak_tflops: float | None, devices: int = 1) -> dict[str, Any]:
    """Figures of a table, plain values; seconds, and shares in [0, 1] that are null where nothing was measured.

    The first step of every start compiles and waits for the first batch, so shares of step time, quantiles and
    `steady_tokens_per_second` are over the other steps; `tokens_per_second` is over all of the time.
    """
    steps = [row for row in rows if row.tokens]
    first = {min(i for i, row in enumerate(steps) if row.start == start) for start in {row.start for row in steps}}
    steady = [row for i, row in enumerate(steps) if i not in first]
    spent = math.fsum(row.seconds for row in steady)
    whole = math.fsum(row.seconds + row.validating + row.saving for row in rows)
    grown = [row.step for a, row in itertools.pairwise(rows) if row.start == a.start and row.graphs > a.graphs]
    times = sorted(row.seconds for row in steady)
    used = math.fsum(row.tflop for row in steady)
    return {
        "steps": len(steps),
        "starts": len({row.start for row in rows}),
        "tokens": sum(row.tokens for row in steps),
        "seconds": whole,
        "tokens_per_second": _share(sum(row.tokens for row in steps), whole),
        "steady_tokens_per_second": _share(sum(row.tokens for row in steady), spent),
        "peak_tflops": peak_tflops,
        "utilisation": None if peak_tflops is None else _share(used, spent * peak_tflops * devices),
        "loader_share_of_steps": _share(math.fsum(row.waited for row in steady), spent),
        "step_seconds": {f"p{100 * q:g}": quantile(times, q) for q in QUANTILES}
        | {"longest": max(times, default=None)},
        "first_steps_seconds": [steps[i].seconds for i in sorted(first)],
        "validation_share": _share(math.fsum(row.validating for row in rows), whole),
        "checkpoint_share": _share(math.fsum(row.saving for row in rows), whole),
        "graphs": [max(row.graphs for row in rows if row.start == start) for start in sorted({r.start for r in rows})],
        "last_new_graph_at_step": max(grown, default=None),
        "peak_mib": max((row.peak_mib for row in rows), default=None),
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """The smallest value that a share q of all are at most."""
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)] if ordered else None


def sentences(found: dict[str, Any]) -> list[str]:
    """A summary as it is printed."""

    def said(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    again = found["starts"] - 1
    starts = "" if again < 1 else f", gone on with {'once' if again == 1 else f'{again} times'}"
    times = "  ".join(f"{name} {said(value, '.4g')}" for name, value in found["step_seconds"].items())
    first = ", ".join(f"{each:.3g}" for each in found["first_steps_seconds"])
    graphs = ", ".join(map(str, found["graphs"]))
    last = found["last_new_graph_at_step"]
    return [
        f"throughput  {found['steps']:,} steps, {found['tokens']:,} tokens in {found['seconds']:,.0f} s{starts}",
        f"  tokens/s     {said(found['steady_tokens_per_second'], ',.0f')} in steps, "
        f"{said(found['tokens_per_second'], ',.0f')} over all of the time",
        f"  utilisation  {said(found['utilisation'], '.1%')} of {said(found['peak_tflops'], 'g')} TFLOP/s a device",
        f"  loader       {said(found['loader_share_of_steps'], '.2%')} of step time",
        f"  step, s      {times}; first {first or '–'}",
        f"  besides      validation {said(found['validation_share'], '.2%')}, checkpoints "
        f"{said(found['checkpoint_share'], '.2%')} of all of the time",
        f"  graphs       {graphs} compiled" + ("" if last is None else f", the last one at step {last}"),
        f"  memory       {said(found['peak_mib'], ',.0f')} MiB at most",
    ]
