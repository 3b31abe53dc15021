"""Files to tables beside other readers: equal contents, time and peak memory, each in its own process."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from quantattn.cli.benchmarks.processes import apart, peak_since_here, resident
from quantattn.cli.benchmarks.read_inputs import dbn_file, itch_file, lobster_days
from quantattn.cli.benchmarks.read_peers import READERS

Say = Callable[[str], None]
Answer = tuple[float, float, float, Mapping[str, str]]


@dataclass(frozen=True)
class ReadRow:
    """One reader of one kind of file.

    Attributes:
        work: kind of the files.
        impl: the reader.
        threads: that polars and OpenMP were allowed; not all readers use more than one.
        rows: of the files that it read: messages or records.
        ns: nanoseconds of processor time a row, of its fastest process: by this time on one thread, else by the clock.
        wall_ns: by the clock on the wall, of that process.
        rows_per_s: of a core.
        peak_mib: peak resident memory above that of the imports, MiB. NaN where the system does not tell.
        times: this reader's processor time a row over that of quantattn.
        wall_times: the same by the clock.
        sha256: of what can be compared of all that it read; empty where it gives less than that.
    """

    work: str
    impl: str
    threads: int
    rows: int
    ns: float
    wall_ns: float
    rows_per_s: int
    peak_mib: float
    times: float
    wall_times: float
    sha256: str


def run(work: str, impl: str, path: str, site: str | None, answer: Any) -> None:
    """In a process of its own: seconds of processor and clock, MiB, and a hash a column; through the pipe `answer`."""
    if site is not None:
        sys.path.append(site)
    before = peak_since_here()
    reader = READERS[work][impl]
    reader.read(Path(path))  # brings the file, the imports and compiled code into memory
    began = process_time(), perf_counter()
    columns = reader.read(Path(path))
    taken = process_time() - began[0], perf_counter() - began[1]
    peak = resident("VmHWM") - before
    made = columns()
    hashes = {
        name: hashlib.sha256(made[name].astype("int64").tobytes()).hexdigest() for name in reader.digest if name in made
    }
    answer.send((*taken, peak, hashes))


def benchmark(asked: Mapping[str, Any], say: Say) -> Iterator[ReadRow]:
    """A row a reader, quantattn first; readers that are not installed and files that are not named are passed over.

    Raises:
        ValueError: two readers found different things in a file, or there is no such kind of file.
    """
    unknown = [work for work in asked["works"] if work not in READERS]
    if unknown:
        raise ValueError(f"read.works: there is no {unknown[0]!r}, expected some of {', '.join(READERS)}")
    with tempfile.TemporaryDirectory(prefix="quantattn-read-") as scratch:
        for work in asked["works"]:
            folder = Path(scratch) / work
            folder.mkdir()
            files = _files(work, asked, folder)
            if not files:
                say(f"{work}: read.{work} names no file, so none is read")
                continue
            yield from _rows(work, files, asked, say)


def _files(work: str, asked: Mapping[str, Any], folder: Path) -> dict[bool, tuple[Path, int]]:
    """Whether a reader sees few rows → its file and how many rows it has."""
    rows, few = asked["rows"], asked["few"]
    if work == "lobster":
        return {False: lobster_days(asked["lobster"], rows, folder / "days", asked["day"])}
    if work == "itch":
        sizes = {False: rows, True: few}
        return {small: (itch_file(n, asked["stocks"], folder / f"{n}.itch"), n) for small, n in sizes.items()}
    return {} if asked["dbn"] is None else {False: dbn_file(asked["dbn"], rows, folder / "x.mbo.dbn.zst")}


def _rows(work: str, files: Mapping[bool, tuple[Path, int]], asked: Mapping[str, Any], say: Say) -> Iterator[ReadRow]:
    found: dict[str, list[Answer]] = {}
    for impl, reader in READERS[work].items():
        lacking = [name for name in reader.needs if not _is_here(name, asked["site"])]
        if lacking:
            say(
                f"{work}: {impl} is not here (pip install --target read.site, see docs/sources/reading.md), passed over"
            )
        else:
            found[impl] = []
    expected = {}
    threads = asked["threads"]
    for small, (path, _) in files.items():
        ours: Answer = apart("quantattn", run, work, "quantattn", str(path), asked["site"], threads=threads)
        expected[small] = ours[3]
    for _ in range(asked["turns"]):  # in turn, so that what else the machine does meets all
        for impl, answers in found.items():
            path = files[READERS[work][impl].few][0]
            answers.append(apart(impl, run, work, impl, str(path), asked["site"], threads=threads))
    base: tuple[float, float] | None = None
    for impl, answers in found.items():
        rows = files[READERS[work][impl].few][1]
        hashes = answers[0][3]
        wrong = [name for name, each in hashes.items() if expected[READERS[work][impl].few].get(name) != each]
        if wrong:
            raise ValueError(f"{work}: {impl} and quantattn differ in {', '.join(wrong)}")
        busy, wall, *_ = min(answers, key=lambda answer: answer[0] if threads == 1 else answer[1])
        base = base or (busy / rows, wall / rows)
        yield ReadRow(
            work=work,
            impl=impl,
            threads=threads,
            rows=rows,
            ns=round(1e9 * busy / rows, 1),
            wall_ns=round(1e9 * wall / rows, 1),
            rows_per_s=round(rows / busy),
            peak_mib=round(max(answer[2] for answer in answers), 1),
            times=round(busy / rows / base[0], 2),
            wall_times=round(wall / rows / base[1], 2),
            sha256=hashlib.sha256("".join(hashes.values()).encode()).hexdigest() if hashes else "",
        )


def _is_here(package: str, site: str | None) -> bool:
    if site is not None and (Path(site) / package).exists():
        return True
    return importlib.util.find_spec(package) is not None
