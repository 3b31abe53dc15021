"""`quantattn validate`: is it an approximation? A table of how far every backend is from float64 truth.

`--full` checks theorems, features, error tables under an a-priori bound, repeats and memory as well; its table has one
row a part, and `--html` draws all of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from rich.table import Table

from quantattn.attention.certificate import Certificate, Finding
from quantattn.attention.choose import BACKENDS
from quantattn.attention.validate import check_request, validate
from quantattn.cli.errors import DONE, FAILED
from quantattn.cli.terminal import console
from quantattn.learn.files import write_text


def run(arguments: list[str]) -> int:
    """Validate as asked and print the certificate; 1 when a check failed."""
    parser = argparse.ArgumentParser("quantattn validate", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all parts: theorems, features, bounds, repeats, memory")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the certificate as JSON")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also draw the certificate as a page")
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="one of several; all when left out")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 …; the GPU when there is one")
    parser.add_argument("--workers", type=int, help="processes of --full at a time; the number of cores, at most 12")
    given = parser.parse_args(arguments)
    for path in (given.json, given.html):
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f"there is no folder {path.absolute().parent} to write {path.name} in")
    try:
        device = check_request(given.device or ("cuda" if torch.cuda.is_available() else "cpu"), given.workers)
    except ValueError as error:
        parser.error(str(error))
    certificate = validate(
        given.backend or BACKENDS, device=device, full=given.full, progress=_dots(), workers=given.workers
    )
    if sys.stderr.isatty():
        print(file=sys.stderr)
    out = console()
    out.print(table(certificate, by_part=given.full))
    for line in not_offered(certificate.findings):
        out.print(line)
    versions = ", ".join(f"{name} {version}" for name, version in certificate.versions.items())
    out.print(f"on {certificate.device}; {versions}")
    out.print(f"sha256 {certificate.sha}")
    out.print(certificate.statement())
    out.print(certificate.headline())
    if given.json is not None:
        write_text(given.json, certificate.to_json() + "\n")
    if given.html is not None:
        from quantattn.evaluate import write_certificate

        write_certificate(given.html, json.loads(certificate.to_json()))
    return DONE if certificate.ok else FAILED


def _dots() -> Callable[[Finding], None] | None:
    """Something that shows on a terminal that work goes on."""
    if not sys.stderr.isatty():
        return None
    return lambda finding: print("." if finding.verdict != "fail" else "F", end="", file=sys.stderr, flush=True)


def table(certificate: Certificate, *, by_part: bool = False) -> Table:
    """One row a backend, case (or part of the certificate) and dtype: the worst of its checks."""
    drawn = Table(title="Error against float64, beside standard attention in the same dtype", title_justify="left")
    for name in ("backend", "case", "dtype"):
        drawn.add_column(name)
    for name in ("checks", "worst error", "allowed", "of standard"):
        drawn.add_column(name, justify="right")
    drawn.add_column("verdict")
    for (backend, case, dtype), group in grouped(certificate.findings, by_part=by_part):
        worst = max(group, key=lambda f: (f.verdict == "fail", f.worst / f.allowed if f.allowed else f.worst))
        ratio = max((f.ratio for f in group if f.standard), default=None)
        failed = sum(f.verdict == "fail" for f in group)
        drawn.add_row(
            backend,
            case,
            dtype,
            str(len(group)),
            f"{worst.worst:.2g}",
            f"{worst.allowed:.2g}",
            "–" if ratio is None else f"{ratio:.2f}",
            f"[bold red]{failed} failed[/]" if failed else "pass",
        )
    return drawn


def grouped(
    findings: Iterable[Finding], *, by_part: bool = False
) -> Iterator[tuple[tuple[str, str, str], list[Finding]]]:
    """Findings that ran, by backend, case (or its part) and dtype, in the order in which they were made."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        if finding.verdict != "not offered":
            # Whether a second run gives the same bits is one more check of the same case.
            case = finding.case.removesuffix(", again")
            part, colon, _ = case.partition(": ")
            case = case if not by_part else part if colon else "laws"
            groups.setdefault((finding.backend, case, finding.dtype), []).append(finding)
    yield from groups.items()


def not_offered(findings: Iterable[Finding]) -> list[str]:
    """One line a backend and reason for what it does not take."""
    reasons: dict[tuple[str, str], int] = {}
    for finding in findings:
        if finding.verdict == "not offered":
            reasons[finding.backend, finding.note] = reasons.get((finding.backend, finding.note), 0) + 1
    return [f"not offered by {backend} ({number} checks): {note}" for (backend, note), number in reasons.items()]
