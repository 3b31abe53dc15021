"""The table of throughput: its rows, and what they amount to, over all of the time and minute by minute."""

from __future__ import annotations

import csv
import datetime as dt
import io
import itertools
import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

QUANTILES = (0.5, 0.9, 0.99)
WINDOWS, SHORTEST = 30, 60
"""The most stretches that a run is told in, and the shortest of them in seconds."""


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
        beside_mib: memory of the GPU that this run's tensors and their reserve do not hold; NaN on a CPU. It grows when
            another process begins to use the GPU.
        busy: share of the GPU's time in which anything ran on it, whoever's, by NVIDIA's library; NaN where it is not
            known.
        ended: when the row was written, seconds since 1970.
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
    beside_mib: float
    busy: float
    ended: float


NAMES = [field.name for field in fields(Row)]


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


def lines(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as they stand in the file."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def summary(rows: Sequence[Row], peak_tflops: float | None, devices: int = 1) -> dict[str, Any]:
    """Figures of a table, plain values; seconds, and shares in [0, 1] that are null where nothing was measured.

    The first step of every start compiles and waits for the first batch, so shares of step time, quantiles and
    `steady_tokens_per_second` are over the other steps; `tokens_per_second` is over all of the time. `windows` tells
    the same of every stretch of a minute or more, so that one in which something else ran beside can be told apart.
    """
    steps = [row for row in rows if row.tokens]
    starts = {row.start: row for row in reversed(steps)}
    first = {(row.start, row.step) for row in starts.values()}
    steady = [row for row in steps if (row.start, row.step) not in first]
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
        "first_steps_seconds": [starts[start].seconds for start in sorted(starts)],
        "validation_share": _share(math.fsum(row.validating for row in rows), whole),
        "checkpoint_share": _share(math.fsum(row.saving for row in rows), whole),
        "graphs": [max(row.graphs for row in rows if row.start == start) for start in sorted({r.start for r in rows})],
        "last_new_graph_at_step": max(grown, default=None),
        "peak_mib": max((row.peak_mib for row in rows), default=None),
        "windows": [_window(part, first, peak_tflops, devices) for part in windows(rows)],
    }


def windows(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of every stretch of so many seconds of the run; a row belongs to that in which it ends.

    The length is the fewest whole minutes of which the run has 30 at most.
    """
    at = list(itertools.accumulate(row.seconds + row.validating + row.saving for row in rows))
    if not at:
        return []
    length = SHORTEST * max(math.ceil(at[-1] / (SHORTEST * WINDOWS)), 1)
    parts: dict[int, list[Row]] = {}
    for row, end in zip(rows, at, strict=True):
        parts.setdefault(max(math.ceil(end / length) - 1, 0), []).append(row)
    return list(parts.values())


def _window(rows: Sequence[Row], first: Set[tuple[int, int]], peak: float | None, devices: int) -> dict[str, Any]:
    steady = [row for row in rows if row.tokens and (row.start, row.step) not in first]
    times, known = sorted(row.seconds for row in steady), [row.busy for row in rows if not math.isnan(row.busy)]
    spent, whole = math.fsum(times), math.fsum(row.seconds + row.validating + row.saving for row in rows)
    rate = _share(math.fsum(row.tflop for row in steady), spent * devices)
    beside = [row.beside_mib for row in rows if not math.isnan(row.beside_mib)]
    return {
        "until": dt.datetime.fromtimestamp(rows[-1].ended, dt.UTC).isoformat(timespec="seconds"),
        "start": rows[-1].start,
        "seconds": whole,
        "steps": len([row for row in rows if row.tokens]),
        "tokens_per_second": _share(sum(row.tokens for row in steady), spent),
        "step_seconds": {f"p{100 * q:g}": quantile(times, q) for q in (0.5, 0.95)},
        "loader_share_of_steps": _share(math.fsum(row.waited for row in steady), spent),
        "validation_share": _share(math.fsum(row.validating for row in rows), whole),
        "checkpoint_share": _share(math.fsum(row.saving for row in rows), whole),
        "tflops": rate,
        "utilisation": None if rate is None or peak is None else rate / peak,
        "graphs": rows[-1].graphs,
        "peak_mib": rows[-1].peak_mib,
        "beside_mib": max(beside, default=None),
        "busy": _share(math.fsum(known), len(known)),
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """The smallest value that a share q of all are at most."""
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)] if ordered else None


def sentences(found: dict[str, Any]) -> list[str]:
    """A summary as it is printed."""

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
        *_table(found["windows"]),
    ]


def _table(found: Sequence[dict[str, Any]]) -> list[str]:
    timed = ("until", "steps", "tokens/s", "p50", "p95, s", "loader", "besides")
    heads = (*timed, "TFLOP/s", "of peak", "busy", "graphs", "MiB", "other MiB")
    rows = [
        (
            window["until"][11:19],
            str(window["steps"]),
            said(window["tokens_per_second"], ",.0f"),
            *(said(each, ".4g") for each in window["step_seconds"].values()),
            said(window["loader_share_of_steps"], ".2%"),
            said(window["validation_share"] + window["checkpoint_share"], ".1%") if window["seconds"] else "–",
            said(window["tflops"], ",.3g"),
            said(window["utilisation"], ".1%"),
            said(window["busy"], ".0%"),
            str(window["graphs"]),
            said(window["peak_mib"], ",.0f"),
            said(window["beside_mib"], ",.0f"),
        )
        for window in found
    ]
    wide = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return ["  " + "  ".join(map(str.rjust, row, wide)) for row in (heads, *rows)]


def said(value: float | None, form: str) -> str:
    """A figure as it is printed."""
    return "–" if value is None else format(value, form)
