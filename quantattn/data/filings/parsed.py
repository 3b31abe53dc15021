"""What is asked about one file, and what it says: plain values that go to the child process of `pool` and come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quantattn.data.filings.facts import Fact
from quantattn.data.filings.items import Section

OK = "ok"
NOT_A_FILING = "not a filing"
OTHER_FORM = "other form"
NO_FORM = "form not stated"
UNREADABLE = "unreadable"
SIZE_LIMIT = "size limit"
NO_ITEMS = "no item has text"
FACTS_ALONE = "facts without text"
"""An XBRL instance: its facts are read where they are asked for, and its filing has the text."""

TEXT = "the text"
REPORT, INSTANCE = "Exhibit 13", "XBRL instance"
"""Parts of a submission that are read after its main document."""
CUT = "items"
"""Kind of a filing that another program has cut into items."""


@dataclass(frozen=True)
class Request:
    """What is asked of a child about one file.

    Attributes:
        path: the file.
        forms: families to keep.
        form: what an index says, for a file that states no form before its text.
        annual_report: whether to read Exhibit 13 and to follow items into it.
        facts: whether to read those of XBRL, inline or in an instance.
        max_bytes: of the file, unpacked.
        max_chars: of one document in HTML.
        min_share: least share of the visible characters that must survive.
    """

    path: str
    forms: tuple[str, ...]
    form: str | None = None
    annual_report: bool = False
    facts: bool = False
    max_bytes: int = 2**28
    max_chars: int = 2**26
    min_share: float = 0.95


@dataclass(frozen=True)
class Parsed:
    """What a file says; None or () where it is silent.

    Attributes:
        kind: "submission", "document" (one in its SGML lines), "html", "text", "instance" or `CUT`.
        form, accession, ciks, company: of the header, else of what stands in for it.
        names, sic: of the header, all filers and the first one's industry.
        period: of the report, `YYYY-MM-DD`, of the header, the record or the inline-XBRL cover.
        cik_on_cover: filer, from the inline-XBRL cover.
        named, year: of a filing that was cut into items, the name of the file that was cut, and the year that is told.
        accepted, filed: acceptance stamp and filing date as written in the header.
        text: of the main document.
        share: visible characters kept / visible characters of the source.
        sections: items of the text.
        annual_report: text of Exhibit 13.
        to_come: the part that is read after this answer, to be named where the child does not live to give the next; ""
            in the last answer.
        report_detail: why a part that is there, Exhibit 13 or an XBRL instance, could not be read.
        parts_skipped: uuencoded parts.
        facts: of inline XBRL, else of the submission's XBRL instance, in the order of the document.
        facts_left_out: reason → facts that are not among them.
        status: `OK`, or the reason for which the file is set aside.
        detail: what that reason was about.
    """

    kind: str = ""
    form: str | None = None
    accession: str | None = None
    ciks: tuple[str, ...] = ()
    company: str | None = None
    names: tuple[str, ...] = ()
    sic: str | None = None
    period: str | None = None
    cik_on_cover: str | None = None
    named: str | None = None
    year: str | None = None
    accepted: str | None = None
    filed: str | None = None
    text: str | None = None
    share: float | None = None
    sections: tuple[Section, ...] = ()
    annual_report: str | None = None
    to_come: str = ""
    report_detail: str = ""
    parts_skipped: int = 0
    facts: tuple[Fact, ...] = ()
    facts_left_out: Mapping[str, int] = field(default_factory=dict)
    status: str = OK
    detail: str = ""

    def without(self, reason: str) -> Parsed:
        """The same without the part that was to come, and the reason."""
        told = f"{self.to_come or 'the rest'}: {reason}"
        return replace(self, report_detail="; ".join(filter(None, (self.report_detail, told))))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        parts = {name: [vars(each) for each in getattr(self, name)] for name in ("sections", "facts")}
        return vars(self) | parts

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Parsed:
        """What `as_dict` gave, after JSON or not."""
        sections = tuple(
            Section(**{**each, "names": tuple(each["names"]), "report": each["report"] and tuple(each["report"])})
            for each in values["sections"]
        )
        facts = tuple(Fact(**{**each, "dimensions": tuple(each["dimensions"])}) for each in values["facts"])
        lists = {name: tuple(values[name]) for name in ("ciks", "names")}
        return Parsed(**{**values, **lists, "sections": sections, "facts": facts})
