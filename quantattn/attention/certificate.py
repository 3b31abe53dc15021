"""The certificate: what was checked of which implementation, how far it was from the truth, and what follows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["pass", "fail", "not offered"]


@dataclass(frozen=True)
class Finding:
    """One check of one implementation.

    Attributes:
        backend: what was checked: a backend's name, "state" for the algebra, "control" for mistakes made on purpose.
        case: the problem, or the law of the algebra.
        dtype: of the inputs.
        quantity: "forward", "gradients", "bits", or what else was compared.
        worst: largest absolute error against float64; for a control, how far the mistake is from the right answer.
        standard: largest error of standard attention in the same dtype, 0 where nothing of the kind applies.
        allowed: the largest error within the budget; for a control, the distance that makes it a visible mistake.
        verdict: pass, fail, or "not offered" where the backend says that it does not take such inputs.
        note: the reason of a verdict other than pass, or what a control shows.
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

    @property
    def ratio(self) -> float:
        """Worst error over what standard attention loses; 0 when both are 0, infinite when only standard is."""
        return self.worst / self.standard if self.standard else (0.0 if self.worst == 0 else math.inf)


@dataclass(frozen=True)
class Certificate:
    """All findings of one validation.

    Attributes:
        device: where it ran, in words.
        versions: name → version of everything that takes part.
        findings: in the order in which they were made.
    """

    device: str
    versions: Mapping[str, str]
    findings: tuple[Finding, ...]

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
        device = self.device if other.device == self.device else f"{self.device}; {other.device}"
        return Certificate(device, {**other.versions, **self.versions}, self.findings + other.findings)

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
        controls = [f for f in self.passed if f.backend == "control"]
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

    def to_json(self) -> str:
        """The certificate as JSON, with its statement; numbers that are not finite are the strings "inf" and "nan"."""
        document = {
            "ok": self.ok,
            "statement": self.statement(),
            "device": self.device,
            "versions": dict(self.versions),
            "findings": [_plain(asdict(finding) | {"ratio": finding.ratio}) for finding in self.findings],
        }
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """The certificate that `to_json` wrote."""
        document = json.loads(text)
        findings = (_finding(entry) for entry in document["findings"])
        return cls(document["device"], document["versions"], tuple(findings))


def _losses(findings: Iterable[Finding]) -> list[str]:
    """One line for each backend and dtype: its worst error on random problems beside that of standard attention."""
    lines = []
    groups: dict[tuple[str, str], list[Finding]] = {}
    for f in findings:
        if f.quantity == "forward" and f.standard > 0 and f.case.startswith("random"):
            groups.setdefault((f.backend, f.dtype), []).append(f)
    for (backend, dtype), group in groups.items():
        worst = max(group, key=lambda f: f.worst)
        ratio = max(f.ratio for f in group)
        lines.append(
            f"{backend} in {dtype} is within {worst.worst:.2g} of float64 where standard attention loses "
            f"{worst.standard:.2g}; never more than {ratio:.2f} times its loss."
        )
    return lines


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in entry.items()}


def _finding(entry: Mapping[str, Any]) -> Finding:
    return Finding(
        backend=entry["backend"],
        case=entry["case"],
        dtype=entry["dtype"],
        quantity=entry["quantity"],
        worst=float(entry["worst"]),
        standard=float(entry["standard"]),
        allowed=float(entry["allowed"]),
        verdict=entry["verdict"],
        note=entry["note"],
    )
