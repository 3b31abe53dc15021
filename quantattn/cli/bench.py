"""`quantattn bench`: a benchmark named by `bench=`, a table on the terminal, a csv file with what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from quantattn.attention import Mask
from quantattn.cli.benchmarks import attention
from quantattn.cli.benchmarks.peers import PEERS
from quantattn.cli.benchmarks.results import Row, write_rows
from quantattn.cli.config import plain, run_application
from quantattn.cli.errors import DONE, FAILED, UsageError, nearest

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
BENCHMARKS = ("attention", "memory", "tune")
STEEPEST_SLOPE = 1.1
"""Log-log slope of peak memory over length that still counts as linear."""


def run(arguments: list[str]) -> int:
    """Compose conf/bench.yaml with the arguments and measure."""
    return run_application("bench", arguments, measure)


def measure(config: DictConfig) -> int:
    """Run the benchmark that the configuration names."""
    settings: dict[str, Any] = plain(config)
    name, dtype = settings["bench"], settings["dtype"]
    if name not in BENCHMARKS:
        raise UsageError(f"bench={name}: there is no such benchmark{nearest(str(name), BENCHMARKS)}")
    if dtype not in DTYPES:
        raise UsageError(f"dtype={dtype}: expected one of {', '.join(DTYPES)}")
    unknown = [peer for peer in settings["peers"] if peer not in PEERS]
    if unknown:
        raise UsageError(f"peers: there is no {unknown[0]!r}{nearest(unknown[0], PEERS)}")
    shapes = [_shape(entry, settings) for entry in settings["shapes"]]
    if not torch.cuda.is_available():
        raise ValueError("timings count only on a GPU, and torch sees no CUDA device here")
    console = Console()
    if name == "memory":
        m = settings["memory"]
        rows, slope = attention.memory(m["lengths"], m["head_size"], m["heads"], DTYPES[dtype], console.print)
        console.print(f"log-log slope of peak memory over length: {slope:.3f} (at most {STEEPEST_SLOPE})")
        _keep(rows, settings, console)
        return DONE if slope <= STEEPEST_SLOPE else FAILED
    if name == "tune":
        return _tune(shapes, settings, console)
    rows = []
    for row in attention.benchmark(
        shapes, settings["peers"], DTYPES[dtype],
        rounds=settings["rounds"], warmup=settings["warmup"], seed=settings["seed"], say=console.print,
    ):  # fmt: skip
        rows.append(row)
        console.print(
            f"{row.impl:12} D {row.D} N {row.N} {row.mask} {row.stage}: {row.ms:.3f} ms, {row.tflops} TFLOP/s"
        )
    console.print(table_of(rows))
    _keep(rows, settings, console)
    return DONE


def _tune(shapes: Sequence[attention.Shape], settings: dict[str, Any], console: Console) -> int:
    from quantattn.cli.benchmarks import tune  # brings triton

    configs = tune.candidates(settings["tune"])
    console.print(f"{len(configs)} candidates for each of {len(tune.PASSES)} kernels and {len(shapes)} shapes")
    tune.compile_ahead(shapes, configs, DTYPES[settings["dtype"]])
    for found in tune.tune(shapes, configs, DTYPES[settings["dtype"]], rounds=settings["rounds"], say=console.print):
        console.print(
            f"{found.kernel:4} D {found.d} N {found.n} {found.mask}: {found.config} {found.ms:.3f} ms, "
            f"{found.tflops:.0f} TFLOP/s of its own products"
        )
    return DONE


def _shape(entry: Any, settings: dict[str, Any]) -> attention.Shape:
    try:
        d, n, mask = entry
        named = {"full": Mask(), "causal": Mask(causal=True)}
        seen = named[mask] if isinstance(mask, str) else Mask(window=tuple(mask))
        heads = settings["width"] // d
        return attention.Shape(d, n, max(1, settings["tokens"] // n), heads, heads, seen)
    except (TypeError, KeyError, ValueError):
        raise UsageError(f"shapes: expected [head size, tokens, full | causal | [left, right]], got {entry}") from None


def table_of(rows: Sequence[Row]) -> Table:
    """TFLOP/s forward / backward: a line a shape, a column an implementation."""
    names = list(dict.fromkeys(row.impl for row in rows))
    shapes = list(dict.fromkeys((row.D, row.N, row.mask) for row in rows))
    table = Table("D", "N", "mask", *names, title="TFLOP/s, forward / backward")
    for shape in shapes:
        found = {(row.impl, row.stage): row for row in rows if (row.D, row.N, row.mask) == shape}
        cells = [
            f"{found[name, 'forward'].tflops:.0f} / {found[name, 'backward'].tflops:.0f}"
            if (name, "forward") in found
            else "–"
            for name in names
        ]
        table.add_row(*map(str, shape), *cells)
    return table


def _keep(rows: Sequence[Row], settings: dict[str, Any], console: Console) -> None:
    path = write_rows(rows, Path(settings["results"]), settings["bench"], torch.cuda.get_device_name())
    console.print(f"written: {path}")
