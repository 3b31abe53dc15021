"""The parts of a certificate as tables, worded for a reader who knows nothing of kernels: one row a statement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Summary:
    """One statement about every implementation that was asked.

    Attributes:
        said: the statement, the feature or the problem.
        holds: implementations of which it holds.
        fails: implementations of which it does not, with the dtype.
        refused: implementations that do not offer it.
        dtypes: of the inputs.
        cases: problems or comparisons in all.
        seeds: of the draws, "" where nothing was drawn.
        measured: what the column of the section shows, and what it is sorted by.
        verdict: in a word of the section.
        note: of the first finding that has one, with its implementation.
    """

    said: str
    holds: tuple[str, ...]
    fails: tuple[str, ...]
    refused: tuple[str, ...]
    dtypes: tuple[str, ...]
    cases: int
    seeds: str
    measured: tuple[str, str]
    verdict: str
    note: str


@dataclass(frozen=True)
class Section:
    """How the table of one part of a certificate is worded.

    Attributes:
        title: heading.
        note: what it is about, for somebody who knows nothing of kernels.
        said: heading of the column of statements.
        measured: heading of the column of what was measured.
        passed: the verdict of what is as it has to be.
        failed: the verdict of what is not.
        by: whether there is a column of implementations.
    """

    title: str
    note: str
    said: str
    measured: str
    passed: str
    failed: str = "FAILED"
    by: bool = True


_SHARE = "Largest difference, as a share of what is allowed"

SECTIONS = {
    "theorem": Section(
        "What holds of it",
        "What softmax attention obeys, whoever computes it. Where a statement is about bits, none may differ.",
        "Statement",
        _SHARE,
        "holds",
    ),
    "feature": Section(
        "What it can do",
        "Each feature in a problem of its own, forward and backward, against float64.",
        "Feature",
        _SHARE,
        "right",
    ),
    "repeat": Section(
        "The same bits again",
        "The same call many times, and the same sequence in batches of several sizes, also in the mode that promises "
        "the same bits in any batch (deterministic='batch'). Not one bit may differ.",
        "What was done again",
        "Differences",
        "the same bits",
    ),
    "memory": Section(
        "Memory",
        "The power of the length with which peak memory grows: 1 is a straight line, 2 a matrix of every pair. The "
        "control forms that matrix on purpose, to show that the measurement would see it.",
        "Lengths",
        "Power",
        "a straight line",
    ),
    "fuzz": Section(
        "Problems of any sort",
        "Problems drawn at random, forward and backward, each of them held to its error budget. One that left it would "
        "be named here, by the seed that draws it again.",
        "Drawn",
        "Outside the budget",
        "all within",
    ),
    "planted": Section(
        "Wrong on purpose",
        "A check that cannot fail proves nothing. So attention was computed wrongly on purpose, and each mistake has "
        "to be caught by the check that is named beside it: the budget (about twice what standard attention itself "
        "loses), the bound (computed from the inputs before anything runs), or a statement from above.",
        "Mistake, and what has to notice it",
        "How far off its results are",
        "caught",
        "NOT CAUGHT",
        by=False,
    ),
}
"""What a case begins with → the wording of its table."""


def summaries(findings: Sequence[Mapping[str, Any]], part: str) -> list[Summary]:
    """The findings of one part of the certificate, one row a statement, in the order in which they first occur."""
    by: dict[str, list[Mapping[str, Any]]] = {}
    for finding in findings:
        name, _, said = finding["case"].partition(": ")
        if name == part:
            by.setdefault(said.removesuffix(", again"), []).append(finding)
    found = []
    for said, members in by.items():
        ran = [f for f in members if f["verdict"] != "not offered"]
        fails = dict.fromkeys(f"{f['backend']} ({f['dtype']})" for f in ran if f["verdict"] == "fail")
        failing = {f["backend"] for f in ran if f["verdict"] == "fail"}
        seeds = sorted({seed for f in ran for seed in f.get("seeds") or ()})
        told = next((f for f in ran if f["note"]), None)
        found.append(
            Summary(
                said,
                tuple(dict.fromkeys(f["backend"] for f in ran if f["backend"] not in failing)),
                tuple(fails),
                tuple(dict.fromkeys(f["backend"] for f in members if f["verdict"] == "not offered")),
                tuple(dict.fromkeys(f["dtype"] for f in ran)),
                sum(int(f.get("cases", 1)) for f in ran),
                " to ".join(dict.fromkeys(map(str, (seeds[0], seeds[-1])))) if seeds else "",
                _measured(part, ran),
                _verdict(part, ran),
                ""
                if told is None
                else told["note"]
                if told["backend"] == "control"
                else f"{told['backend']}: {told['note']}",
            )
        )
    return found


def _measured(part: str, ran: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """What the column of a part's table shows for these findings, and what it is sorted by."""
    if not ran:
        return "–", ""
    worst = max(float(f["worst"]) for f in ran)
    if part == "fuzz":
        return (f"{worst:,.0f}" if worst else "none"), repr(sum(float(f["worst"]) for f in ran))
    if part in ("memory", "planted"):
        return ("no number at all", "inf") if math.isinf(worst) else number(worst)
    shares = [float(f["worst"]) / float(f["allowed"]) for f in ran if float(f["allowed"]) > 0]
    if shares:
        return f"{max(shares):.0%}" if math.isfinite(max(shares)) else "no number at all", repr(max(shares))
    return (f"up to {worst:.2g}, where none may be" if worst else "none, not one bit"), repr(worst)


def _verdict(part: str, ran: Sequence[Mapping[str, Any]]) -> str:
    """In a word of the section, so that a mistake that was caught does not read as one that holds."""
    if not ran:
        return "not offered"
    if any(f["verdict"] == "fail" for f in ran):
        return SECTIONS[part].failed
    if part == "memory" and all(f["backend"] == "control" for f in ran):
        return "the matrix, as expected"
    return SECTIONS[part].passed


def number(value: float | str | None) -> tuple[str, str]:
    """A number as shown and as sorted by; what is not finite sorts last."""
    if value is None:
        return "–", ""
    number = float(value)
    return (f"{number:.3g}", repr(number)) if math.isfinite(number) else (str(number), "")
