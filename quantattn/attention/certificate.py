"""The certificate: what was checked of which implementation, how far it was from the truth, and what follows."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Verdict = Literal["pass", "fail", "not offered"]


def verdict(ok: bool) -> Verdict:
    """The verdict of something that ran."""
    return "pass" if ok else "fail"


@dataclass(frozen=True)
class Finding:
    """One check of one implementation.

    Attributes:
        backend: what was checked: a backend's name, "state" for the algebra, "control" for mistakes made on purpose.
        case: the problem, the law of the algebra, or "theorem: …", "feature: …", "random: …", "bound: …" and so on.
        dtype: of the inputs.
        quantity: "forward", "gradients", "bits", or what else was compared.
        worst: largest absolute error against float64; for a control, how far the mistake is from the right answer.
        standard: largest error of standard attention in the same dtype, 0 where nothing of the kind applies.
        allowed: the largest error within the budget; for a control, the distance that makes it a visible mistake.
        verdict: pass, fail, or "not offered" where the backend says that it does not take such inputs.
        note: the reason of a verdict other than pass, or what a control shows.
        cases: how many problems were computed for it.
        seeds: first and last seed that they were drawn from; None for what is not drawn.
    """

    backend: str
    case: str
    dtype: str
    quantity: str
    worst: float
    standard: float
    allowed: float
    verdict: Verdict
    note: str = ""
    cases: int = 1
    seeds: tuple[int, int] | None = None

    @property
    def ratio(self) -> float:
        """Worst error over what standard attention loses; 0 when both are 0, infinite when only standard is."""
        return self.worst / self.standard if self.standard else (0.0 if self.worst == 0 else math.inf)


@dataclass(frozen=True)
class Errors:
    """How one result's errors against float64 are distributed, beside those of standard attention.

    Errors in units in the last place are divided by the distance of the neighbours of the true number in the result's
    dtype. A bound of 0 is none: it is stated for out and lse, of plain scores.

    Attributes:
        backend: whose result.
        dtype: of the inputs.
        d: head size.
        length: of the sequence.
        mask: who sees whom, in words.
        result: out, lse, dq, dk or dv.
        worst: largest absolute error.
        mean: mean absolute error.
        q999: the absolute error that one number in a thousand exceeds.
        standard: largest absolute error of standard attention in the same dtype.
        standard_mean: its mean.
        standard_q999: its 99.9 % quantile.
        ulp_median: median error in units in the last place.
        ulp_q999: its 99.9 % quantile.
        bound: what the error could at most be, computed before from the inputs (`bounds.py`), at its largest.
        used: largest share of its own bound that an error takes.
    """

    backend: str
    dtype: str
    d: int
    length: int
    mask: str
    result: str
    worst: float
    mean: float
    q999: float
    standard: float
    standard_mean: float
    standard_q999: float
    ulp_median: float
    ulp_q999: float
    bound: float = 0.0
    used: float = 0.0

    @property
    def ratio(self) -> float:
        """Worst error over that of standard attention."""
        return self.worst / self.standard if self.standard else (0.0 if self.worst == 0 else math.inf)


@dataclass(frozen=True)
class Certificate:
    """All findings of one validation.

    Attributes:
        device: where it ran, in words.
        versions: name → version of everything that takes part, the driver's among them.
        findings: in the order in which they were made.
        errors: how errors are distributed, where that was asked for.
        sources: "kernels" and "attention" → sha256 of their source files.
        configurations: kernel → its fixed blocks, where kernels were checked.
    """

    device: str
    versions: Mapping[str, str]
    findings: tuple[Finding, ...]
    errors: tuple[Errors, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    configurations: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether something was checked and nothing failed."""
        return bool(self.passed) and not self.failed

    @property
    def passed(self) -> tuple[Finding, ...]:
        """Findings within their budget."""
        return tuple(f for f in self.findings if f.verdict == "pass")

    @property
    def failed(self) -> tuple[Finding, ...]:
        """Findings outside their budget."""
        return tuple(f for f in self.findings if f.verdict == "fail")

    def joined(self, other: Certificate) -> Certificate:
        """Both certificates in one, as when a part of the checks ran in another process."""
        devices = dict.fromkeys([*self.device.split("; "), *other.device.split("; ")])
        return Certificate(
            "; ".join(devices),
            {**other.versions, **self.versions},
            self.findings + other.findings,
            self.errors + other.errors,
            {**other.sources, **self.sources},
            {**other.configurations, **self.configurations},
        )

    @property
    def sha(self) -> str:
        """Sha256 of everything that stands in it; another finding, version, source or device gives another one."""
        content = json.dumps(self._content(), sort_keys=True, ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(content.encode()).hexdigest()

    def expired(self, versions: Mapping[str, str], sources: Mapping[str, str]) -> str | None:
        """Why the certificate says nothing about an installation, in one sentence; None while it holds.

        Args:
            versions: name → version as installed (`machine.versions`).
            sources: name → sha256 of the source files as installed (`machine.sources`).
        """
        return changed(self.versions, self.sources, versions, sources)

    def headline(self) -> str:
        """The answer in one sentence for somebody who knows nothing of kernels."""
        if not self.ok:
            return "Not certified."
        said = [f"{worst:.2g} in {dtype}, where it is {own:.2g}" for dtype, worst, own in self.ranges()]
        if not said:
            return "Exact; every check passed."
        first = said[0].replace("where it", "where standard attention's own rounding")
        return f"Exact; on drawn problems the largest difference {'; '.join([first, *said[1:]])}."

    def ranges(self) -> list[tuple[str, float, float]]:
        """(dtype, largest error of an output, largest of standard attention) over random problems and error tables."""
        found: dict[str, tuple[float, float]] = {}
        drawn = [(f.dtype, f.worst, f.standard) for f in self.passed if _is_drawn(f)]
        measured = [(e.dtype, e.worst, e.standard) for e in self.errors if e.result == "out"]
        for dtype, worst, standard in drawn + measured:
            before = found.get(dtype, (0.0, 0.0))
            found[dtype] = max(before[0], worst), max(before[1], standard)
        return [(dtype, *pair) for dtype, pair in found.items()]

    def statement(self) -> str:
        """The answer to "is it an approximation?", in the figures of this certificate."""
        if not self.ok:
            if not self.failed:
                return "Nothing was checked, so nothing is certified."
            f = self.failed[0]
            return (
                f"Not certified: {len(self.failed)} of {len(self.failed) + len(self.passed)} checks failed, the first "
                f"being {f.backend}, {f.case}, {f.dtype}, {f.quantity}: error {f.worst:.3g}, allowed {f.allowed:.3g}."
            )
        lines = [
            "Is it an approximation? No. Each output is the softmax over every key that its query may see, computed in "
            "parts that are brought to one reference and added; nothing is dropped. What is left is rounding:"
        ]
        lines += [f"  {line}" for line in _losses(self.passed)]
        lines += self._said_of_parts()
        controls = [f for f in self.passed if f.backend == "control" and f.quantity == "forward"]
        if controls:
            least = min(controls, key=lambda f: f.worst)
            lines.append(
                f"What would be an approximation is seen to differ: {len(controls)} mistakes made on purpose miss the "
                f"right answers by at least {least.worst:.2g} ({least.case})."
            )
        lines.append(
            "Not promised: the bits of another implementation, whose sums are rounded in another order. "
            f"{len(self.passed)} checks passed on {self.device}."
        )
        return "\n".join(lines)

    def _said_of_parts(self) -> list[str]:
        """A line on theorems and one on the bound, where they were checked."""
        lines = []
        theorems = [f for f in self.passed if f.case.startswith("theorem")]
        if theorems:
            lines.append(
                f"{len({f.case for f in theorems})} theorems hold in {sum(f.cases for f in theorems):,} comparisons: "
                "what is masked is as if removed, the future changes no bit of the past, a sequence's bits do not "
                "depend on its neighbours, and so on."
            )
        used = [e.used for e in self.errors if e.bound]
        if used:
            lines.append(
                f"No error exceeds the bound that was computed from the inputs before: {len(used)} results take at "
                f"most {max(used):.0%} of it."
            )
        planted = [f for f in self.passed if f.quantity == "caught"]
        if planted:
            lines.append(f"{len(planted)} times a wrong implementation was planted, and each time it was caught.")
        return lines

    def to_json(self) -> str:
        """The certificate as JSON, with its statement; numbers that are not finite are the strings "inf" and "nan"."""
        said = {"ok": self.ok, "sha": self.sha, "headline": self.headline(), "statement": self.statement()}
        ranges = [dict(zip(("dtype", "worst", "standard"), found, strict=True)) for found in self.ranges()]
        document = said | {"ranges": [_plain(entry) for entry in ranges]} | self._content()
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)

    def _content(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "versions": dict(self.versions),
            "sources": dict(self.sources),
            "configurations": dict(self.configurations),
            "findings": [_plain(asdict(finding) | {"ratio": finding.ratio}) for finding in self.findings],
            "errors": [_plain(asdict(row) | {"ratio": row.ratio}) for row in self.errors],
        }

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """The certificate that `to_json` wrote.

        Raises:
            ValueError: no JSON, a field that is missing or of another kind, a content that its sha256 does not fit, or
                words (headline, statement and so on) that do not follow from the content.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"this is no certificate: it is not JSON ({error})") from error
        if not isinstance(document, dict):
            raise ValueError(f"this is no certificate: it is a JSON {type(document).__name__}, expected an object")
        try:
            certificate = cls(
                device=document["device"],
                versions=document["versions"],
                findings=tuple(_finding(entry) for entry in document["findings"]),
                errors=tuple(_errors(entry) for entry in document["errors"]),
                sources=document["sources"],
                configurations=document["configurations"],
            )
            sha = certificate.sha
            if sha != document["sha"]:
                raise ValueError(
                    f"the certificate says sha256 {str(document['sha'])[:12]} of itself and has {sha[:12]}"
                )
            derived = json.loads(certificate.to_json())
        except KeyError as error:
            raise ValueError(f"this is no certificate: it lacks {error}") from error
        except (TypeError, AttributeError, IndexError, OverflowError) as error:
            raise ValueError(f"this is no certificate: a field is of another kind ({error})") from error
        altered = [name for name in {**derived, **document} if document.get(name) != derived.get(name)]
        if altered:
            raise ValueError(f"the certificate's {altered[0]} does not follow from its findings: it was altered")
        return certificate


def changed(
    versions: Mapping[str, str], sources: Mapping[str, str], now: Mapping[str, str], sources_now: Mapping[str, str]
) -> str | None:
    """The first version, or sha256 of source files, that a certificate is for and that is another now; None if none."""
    for name, certified in versions.items():
        if (found := now.get(name, "not there")) != certified:
            return f"the certificate is for {name} {certified} and {name} is {found}: validate again"
    for name, certified in sources.items():
        if (found := sources_now.get(name, "not there")) != certified:
            return (
                f"the certificate is for source files of {name} with sha256 {certified[:12]} and they have "
                f"{found[:12]}: validate again"
            )
    return None


def _losses(findings: Iterable[Finding]) -> list[str]:
    """One line for each backend and dtype: its worst error on random problems beside that of standard attention."""
    lines = []
    groups: dict[tuple[str, str], list[Finding]] = {}
    for f in findings:
        if f.standard > 0 and _is_drawn(f):
            groups.setdefault((f.backend, f.dtype), []).append(f)
    for (backend, dtype), group in groups.items():
        worst = max(group, key=lambda f: f.worst)
        ratio = max(f.ratio for f in group)
        lines.append(
            f"{backend} in {dtype} is within {worst.worst:.2g} of float64 where standard attention loses "
            f"{worst.standard:.2g}; never more than {ratio:.2f} times its loss."
        )
    return lines


def _is_drawn(f: Finding) -> bool:
    return f.quantity == "forward" and f.case.startswith("random")


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in entry.items()}


def _finding(entry: Mapping[str, Any]) -> Finding:
    values, seeds = {f.name: entry[f.name] for f in fields(Finding)}, entry["seeds"]
    numbers = {name: float(values[name]) for name in ("worst", "standard", "allowed")}
    return Finding(**values | numbers | {"seeds": None if seeds is None else (seeds[0], seeds[1])})


def _errors(entry: Mapping[str, Any]) -> Errors:
    return Errors(**{f.name: _number(entry[f.name]) for f in fields(Errors)})


def _number(value: Any) -> Any:
    return float(value) if value in ("inf", "-inf", "nan") else value
