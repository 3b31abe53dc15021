"""`quantattn bench`: a benchmark named by `bench=`, a table on the terminal, a csv file with what it rests on."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import os
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
from quantattn.cli.benchmarks.results import Row, results_file, write_rows
from quantattn.cli.config import plain, run_application
from quantattn.cli.errors import DONE, FAILED, UsageError, nearest
from quantattn.learn.files import write_text

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
BENCHMARKS = ("attention", "encoder", "generations", "loader", "memory", "tune")
PICTURES = {
    "attention": ("quantattn.evaluate.speeds", "draw_speeds"),
    "generations": ("quantattn.evaluate.generations", "draw_generations"),
}
"""Benchmark → what draws its rows."""
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
    if settings["draw"] is not None:
        return _draw_again(name, Path(settings["draw"]), Console())
    if name == "generations":
        return _generations(settings, Console())
    if name == "encoder":
        return _encoder(settings, Console())
    if name == "loader":
        return _loader(settings, Console())
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
    _draw(name, _keep(rows, settings, console), console)
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


def _encoder(settings: dict[str, Any], console: Console) -> int:
    from quantattn.cli.benchmarks import encoder, encoder_plan

    # Models of many sizes share the device; segments that grow keep its memory whole. Read at CUDA's first use.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    # They also share the code that is compiled, which runs uncompiled from its ninth version on.
    torch._dynamo.config.recompile_limit = 256
    asked, folder = settings["encoder"], Path(settings["results"])
    plan, cases = encoder_plan.read(asked, settings["seed"])
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    if asked["profile"]:
        path = results_file(folder, "encoder-profile", device, "txt")
        write_text(path, encoder.profile(cases[0], plan))
        console.print(f"written: {path}")
        return DONE
    rows = []
    for row in encoder.benchmark(cases, plan, console.print):
        console.print(encoder_plan.sentence(row), soft_wrap=True)
        if row.begun:
            rows.append(row)
            path = write_rows(rows, folder, "encoder", device, key=encoder_plan.KEY)
    if not rows:
        raise ValueError("nothing could be begun; the reasons stand above")
    console.print(f"written: {path}")
    return FAILED if any(row.failed for row in rows) else DONE


def _loader(settings: dict[str, Any], console: Console) -> int:
    from quantattn.cli.benchmarks import loader

    rows = []
    for row in loader.benchmark(settings["loader"], console.print):
        rows.append(row)
        console.print(
            f"{row.impl}: {row.ms:.2f} ms a batch, {row.sequences_per_s:,} sequences/s, {row.tokens_per_s:,} tokens/s, "
            f"{row.padding:.0%} padding, peak {row.peak_mib:,.0f} MiB, {row.times:.1f} × padded",
            soft_wrap=True,
        )
    # The host's memory and processor are measured, whatever else it has.
    console.print(f"written: {write_rows(rows, Path(settings['results']), 'loader', 'cpu')}")
    return DONE


def _generations(settings: dict[str, Any], console: Console) -> int:
    asked, dtype = settings["generations"], DTYPES[settings["dtype"]]
    wrong = [mask for mask in asked["masks"] if mask not in ("full", "causal")]
    if wrong:
        raise UsageError(f"generations.masks: expected full or causal, got {wrong[0]!r}")
    if importlib.util.find_spec("triton") is None:
        raise ValueError("bench=generations needs triton, which is not installed")
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, which the next line does
        asked, dtype = asked | asked["interpreted"], torch.float16
        console.print(
            "no CUDA device: float16 in Triton's interpreter; bytes and errors count, times would not", soft_wrap=True
        )
    from quantattn.cli.benchmarks import generations

    masks = {"full": Mask(), "causal": Mask(causal=True)}
    shapes = [
        attention.Shape(asked["head_size"], n, asked["batch"], asked["heads"], asked["heads"], masks[mask])
        for mask in asked["masks"]
        for n in asked["lengths"]
    ]
    rows = []
    for row in generations.benchmark(shapes, dtype, rounds=asked["rounds"], seed=settings["seed"], say=console.print):
        rows.append(row)
        took = f"{row.ms:.3f} ms, peak {size(row.peak_mib)}, " if on_gpu else ""
        console.print(
            f"{row.impl:8} N {row.N:5} {row.mask:6}: {took}by the formulas {size(row.written_mib)} written, "
            f"{size(row.read_mib)} read, {size(row.expected_peak_mib)} allocated",
            soft_wrap=True,
        )
    if not rows:
        raise ValueError("no generation could be measured; the reasons stand above")
    device = torch.cuda.get_device_name() if on_gpu else "cpu"
    path = write_rows(rows, Path(settings["results"]), "generations", device)
    console.print(f"written: {path}")
    _draw("generations", path, console)
    return DONE


def size(mib: float) -> str:
    """Bytes, given in MiB, in the unit that suits them."""
    return f"{mib / 1024:,.1f} GiB" if mib >= 1024 else f"{mib:,.1f} MiB" if mib >= 1 else f"{mib * 1024:,.1f} KiB"


def _draw_again(name: str, path: Path, console: Console) -> int:
    if name not in PICTURES:
        raise UsageError(f"draw={path}: bench={name} draws no picture; {' and '.join(PICTURES)} do")
    if not path.is_file():
        raise UsageError(f"draw={path}: there is no such file")
    _draw(name, path, console)
    return DONE


def _draw(name: str, path: Path, console: Console) -> None:
    """The picture of a csv, beside it."""
    module, function = PICTURES[name]
    draw = getattr(importlib.import_module(module), function)  # brings matplotlib
    with path.open(newline="") as file:
        picture = draw(list(csv.DictReader(file)))
    write_text(path.with_suffix(".svg"), picture)
    console.print(f"written: {path.with_suffix('.svg')}")


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


def _keep(rows: Sequence[Row], settings: dict[str, Any], console: Console) -> Path:
    path = write_rows(rows, Path(settings["results"]), settings["bench"], torch.cuda.get_device_name())
    console.print(f"written: {path}")
    return path
