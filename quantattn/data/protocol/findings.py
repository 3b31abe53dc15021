"""What an audit finds, as plain values: checks with their verdicts, and records of what was fitted."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


class LeakError(ValueError):
    """A check of the audit failed; the message is one sentence that names the check and the row."""


@dataclass(frozen=True)
class Fitted:
    """Something that was fitted: a vocabulary, bins, a threshold, a scaler.

    Attributes:
        name: what it is called in the report.
        fitted_until: ns UTC; it saw nothing at or after this time. None if nothing was fitted.
        fitted_rows: how many rows it saw.
        rows: numbers of the decisions it was fitted on, when it was fitted on decisions.
        events: numbers of the rows of the event table it was fitted on, when they are not simply the earliest.
    """

    name: str
    fitted_until: int | None
    fitted_rows: int
    rows: Int64Array | None = None
    events: Int64Array | None = None


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: what may not happen.
        verdict: "passed", "failed", or "not run" when the audit was not given what it needs.
        looked_at: how many rows or objects were looked at.
        leaks: how many of them break the rule.
        sentence: the first of those, or why the check was not run; empty when passed.
    """

    name: str
    verdict: Literal["passed", "failed", "not run"]
    looked_at: int = 0
    leaks: int = 0
    sentence: str = ""


@dataclass(frozen=True)
class Audit:
    """All checks of one split."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.verdict != "failed" for check in self.checks)

    def require(self) -> Audit:
        """The audit itself if it passed.

        Raises:
            LeakError: the first check that failed, with the row.
        """
        for check in self.checks:
            if check.verdict == "failed":
                raise LeakError(f"{check.name}: {check.sentence} ({check.leaks} of {check.looked_at})")
        return self

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for the report."""
        return {"passed": self.passed, "checks": [asdict(check) for check in self.checks]}


def utc(time: int) -> str:
    """A time in ns UTC as ISO 8601 with all nine decimals."""
    seconds, rest = divmod(int(time), 10**9)
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
