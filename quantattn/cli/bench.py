"""`quantattn bench`: a benchmark named by `bench=`, a table on the terminal, a csv file with what it rests on."""

from __future__ import annotations

import csv
import functools
import importlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from quantattn.attention import Mask
from quantattn.cli.benchmarks import attention, shapes
from quantattn.cli.benchmarks.peers import PEERS
from quantattn.cli.benchmarks.results import results_file, write_rows
from quantattn.cli.config import plain
from quantattn.cli.errors import DONE, FAILED, UsageError, nearest
from quantattn.learn.files import write_text

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
BENCHMARKS = ("attention", "documents", "encoder", "generations", "loader", "memory", "read", "tokens", "tune")
PICTURES = {
    "attention": ("quantattn.evaluate.speeds", "draw_speeds"),
    "documents": ("quantattn.evaluate.documents", "draw_documents"),
    "generations": ("quantattn.evaluate.generations", "draw_generations"),
}
"""Benchmark → what draws its rows."""
COUNTS = {
    "loader": ("tokens", "budget", "rounds", "turns"),
    "read": ("rows", "day", "few", "stocks", "threads", "turns"),
    "events": ("rows", "entities", "horizon", "threads", "rounds", "turns"),
}
"""Section → settings of it that count something."""
STEEPEST_SLOPE = 1.1
"""Log-log slope of peak memory over length that still counts as linear."""


def measure(config: DictConfig) -> int:
    """Run the benchmark that the configuration names."""
    settings: dict[str, Any] = plain(config)
    name, dtype = settings["bench"], settings["dtype"]
    if name not in BENCHMARKS:
        raise UsageError(f"bench={name}: there is no such benchmark{nearest(str(name), BENCHMARKS)}")
    if dtype not in DTYPES:
        raise UsageError(f"dtype={dtype}: expected one of {', '.join(DTYPES)}")
    _require_counts(settings)
    cases = shapes.read(settings)
    if settings["draw"] is not None:
        return _draw_again(name, Path(settings["draw"]), Console())
    if name == "generations":
        return _generations(settings, Console())
    if name == "encoder":
        return _encoder(settings, Console())
    if name == "documents":
        return _documents(settings, Console())
    if name == "loader":
        return _loader(settings, Console())
    if name == "read":
        return _read(settings, Console())
    if name == "tokens":
        return _tokens(settings, Console())
    if name == "attention":
        return _attention(cases, settings, Console())
    if not torch.cuda.is_available():
        raise ValueError("timings count only on a GPU, and torch sees no CUDA device here")
    console = Console()
    if name == "memory":
        m = settings["memory"]
        rows, slope = attention.memory(m["lengths"], m["head_size"], m["heads"], DTYPES[dtype], console.print)
        console.print(f"log-log slope of peak memory over length: {slope:.3f} (at most {STEEPEST_SLOPE})")
        _keep(rows, settings, console)
        return DONE if slope <= STEEPEST_SLOPE else FAILED
    return _tune([case.shape for case in cases], settings, console)


def _attention(cases: Sequence[shapes.Case], settings: dict[str, Any], console: Console) -> int:
    on_gpu = torch.cuda.is_available()
    if not on_gpu and isinstance(settings["shapes"], str):
        raise ValueError(
            "timings count only on a GPU, and torch sees no CUDA device here; what runs on a CPU runs for shapes of "
            "your own, as in shapes=[[16,256,causal]]"
        )
    say = functools.partial(console.print, soft_wrap=True)
    dtype, device = DTYPES[settings["dtype"]], torch.cuda.get_device_name() if on_gpu else "cpu"
    ends = math.inf if settings["limit_s"] is None else perf_counter() + settings["limit_s"]
    if settings["ahead"]:
        attention.compile_ahead(cases, dtype, settings["ahead"], say)
    rows: list[attention.AttentionRow] = []
    for row in attention.benchmark(
        cases, dtype, **{name: settings[name] for name in ("rounds", "warmup", "seed")}, say=say, ends=ends
    ):
        rows.append(row)
        say(attention.sentence(row))
        # After each, so that a run that is stopped has left what it measured.
        path = write_rows(
            rows, Path(settings["results"]), "attention", device, key=attention.KEY, complete=attention.completed
        )
    if not rows:
        raise ValueError("nothing could be begun; the reasons stand above")
    table = table_of(rows)
    if not console.is_terminal:  # a file has lines as long as they must be
        console.width = max(console.width, Measurement.get(console, console.options.update(width=1000), table).maximum)
    console.print(table)
    say(f"written: {path}")
    if importlib.util.find_spec("matplotlib") is None:
        say(f"no picture, matplotlib is not installed; where it is, draw={path} draws one")
    elif any(row.ms > 0 for row in rows):
        _draw("attention", path, console)
    return FAILED if any(row.failed for row in rows) else DONE


def _tune(asked: Sequence[shapes.Shape], settings: dict[str, Any], console: Console) -> int:
    from quantattn.cli.benchmarks import tune, tune_hopper  # bring triton

    for shape in asked:
        if shape.lengths or shape.queries:
            raise UsageError(f"bench=tune takes dense shapes with as many queries as keys, got {shape}")
    tables = {"portable": tune.run, "hopper": tune_hopper.run}
    table, dtype = settings["tune"]["table"], DTYPES[settings["dtype"]]
    if table not in tables:
        raise UsageError(f"tune.table is one of {', '.join(tables)}, got {table}")
    return tables[table](asked, dtype, settings, functools.partial(console.print, soft_wrap=True))


def _encoder(settings: dict[str, Any], console: Console) -> int:
    from quantattn.cli.benchmarks import encoder, encoder_plan

    _make_room()
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


def _documents(settings: dict[str, Any], console: Console) -> int:
    from quantattn.cli.benchmarks import documents, documents_plan

    _make_room()
    plan = documents_plan.read(settings["documents"], settings["seed"])
    say = functools.partial(console.print, soft_wrap=True)
    say(f"{len(plan.lengths)} documents of {min(plan.lengths):,} to {max(plan.lengths):,} tokens")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    rows = []
    for row in documents.benchmark(plan, say):
        say(documents_plan.sentence(row))
        if row.begun:
            rows.append(row)
            path = write_rows(rows, Path(settings["results"]), "documents", device, key=documents_plan.KEY)
    if not rows:
        raise ValueError("nothing could be begun; the reasons stand above")
    say(f"written: {path}")
    if any(row.ms > 0 for row in rows):
        _draw("documents", path, console)
    return FAILED if any(row.failed for row in rows) else DONE


def _make_room() -> None:
    """Let models of many sizes share a device and compiled code."""
    # Segments that grow keep memory whole. Read at CUDA's first use.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    # Code that is compiled runs uncompiled from its ninth version on.
    torch._dynamo.config.recompile_limit = 256


def _require_counts(settings: dict[str, Any]) -> None:
    for section, names in COUNTS.items():
        for name in names:
            value = settings[section][name]
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{section}.{name} must be a whole number of at least 1, got {value!r}")


def _loader(settings: dict[str, Any], console: Console) -> int:
    from quantattn.cli.benchmarks import loader

    def tell(row: loader.LoaderRow) -> str:
        return (
            f"{row.impl}: {row.ms:.2f} ms a batch, {row.sequences_per_s:,} sequences/s, {row.tokens_per_s:,} tokens/s, "
            f"{row.padding:.0%} padding, peak {row.peak_mib:,.0f} MiB, {row.times:.1f} × padded"
        )

    return _on_the_host("loader", loader.benchmark(settings["loader"], console.print), tell, settings, console)


def _tokens(settings: dict[str, Any], console: Console) -> int:
    from quantattn.cli.benchmarks import tokens

    def tell(row: tokens.TokensRow) -> str:
        return (
            f"{row.impl}: {row.events_per_s:,} events/s, {row.ns:.0f} ns each (features {row.features_ns:.0f}, labels "
            f"{row.labels_ns:.0f}, tokens {row.tokens_ns:.0f}), {row.times:.1f} × pandas; by the clock "
            f"{row.wall_ns:.0f} ns (features {row.features_wall_ns:.0f}, labels {row.labels_wall_ns:.0f}, tokens "
            f"{row.tokens_wall_ns:.0f}), {row.wall_times:.1f} × pandas; peak {row.peak_mib:,.0f} MiB"
        )

    return _on_the_host("tokens", tokens.benchmark(settings["events"], console.print), tell, settings, console)


def _read(settings: dict[str, Any], console: Console) -> int:
    from quantattn.cli.benchmarks import read

    def tell(row: read.ReadRow) -> str:
        return (
            f"{row.work}, {row.impl}: {row.rows_per_s:,} rows/s of {row.rows:,}, {row.ns:,.0f} ns each, "
            f"{row.times:.2f} × quantattn's time; by the clock {row.wall_ns:,.0f} ns, {row.wall_times:.2f} ×; peak "
            f"{row.peak_mib:,.0f} MiB, sha256 {row.sha256[:8] or '–'}"
        )

    say = functools.partial(console.print, soft_wrap=True)
    return _on_the_host("read", read.benchmark(settings["read"], say), tell, settings, console)


def _on_the_host(
    name: str, rows: Iterable[Any], tell: Callable[[Any], str], settings: dict[str, Any], console: Console
) -> int:
    """Rows of the host's memory and processor, whatever else it has."""
    kept = []
    for row in rows:
        kept.append(row)
        console.print(tell(row), soft_wrap=True)
    console.print(f"written: {write_rows(kept, Path(settings['results']), name, 'cpu')}")
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
    lines = [
        shapes.Shape(asked["head_size"], n, asked["batch"], asked["heads"], asked["heads"], masks[mask])
        for mask in asked["masks"]
        for n in asked["lengths"]
    ]
    rows = []
    for row in generations.benchmark(lines, dtype, rounds=asked["rounds"], seed=settings["seed"], say=console.print):
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


def table_of(rows: Sequence[attention.AttentionRow]) -> Table:
    """TFLOP/s forward / backward: a line a shape, a column an implementation."""
    measured = {row.impl for row in rows}
    names = [name for name in PEERS if name in measured]
    found = {(row.D, row.N, row.mask, row.kind, row.impl, row.stage): row.tflops for row in rows}
    table = Table("D", "N", "mask", "kind", *names, title="TFLOP/s, forward / backward")
    for shape in dict.fromkeys(key[:4] for key in found):
        cells = []
        for name in names:
            both = [found.get((*shape, name, stage), math.nan) for stage in ("forward", "backward")]
            cells.append(" / ".join("–" if math.isnan(value) else f"{value:.0f}" for value in both))
        table.add_row(*map(str, shape), *cells)
    return table


def _keep(rows: Sequence[Any], settings: dict[str, Any], console: Console) -> Path:
    path = write_rows(rows, Path(settings["results"]), settings["bench"], torch.cuda.get_device_name())
    console.print(f"written: {path}")
    return path
