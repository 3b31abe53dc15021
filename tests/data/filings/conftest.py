"""A maker of full submissions in the layouts that EDGAR has used."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Maker = Callable[..., str]


@pytest.fixture(scope="session")
def submission() -> Maker:
    def make(
        body: str = "FORM 10-K\n\nWe sold more.",
        *,
        form: str = "10-K",
        accession: str = "0000000123-24-000001",
        cik: str = "123",
        accepted: str | None = "20240315101500",
        filed: str = "20240315",
        brand: str = "SEC",
        more: str = "",
    ) -> str:
        stamp = f"<ACCEPTANCE-DATETIME>{accepted}\n" if accepted else ""
        return (
            f"<{brand}-DOCUMENT>{accession}.txt : {filed}\n<{brand}-HEADER>{accession}.hdr.sgml : {filed}\n{stamp}"
            f"ACCESSION NUMBER:\t\t{accession}\nCONFORMED SUBMISSION TYPE:\t{form}\nPUBLIC DOCUMENT COUNT:\t\t1\n"
            f"CONFORMED PERIOD OF REPORT:\t20231231\nFILED AS OF DATE:\t\t{filed}\n\nFILER:\n\n\tCOMPANY DATA:\n"
            f"\t\tCOMPANY CONFORMED NAME:\t\t\tACME {cik}\n\t\tCENTRAL INDEX KEY:\t\t\t{cik}\n</{brand}-HEADER>\n"
            f"<DOCUMENT>\n<TYPE>{form}\n<SEQUENCE>1\n<FILENAME>acme.txt\n<TEXT>\n{body}\n</TEXT>\n</DOCUMENT>\n{more}"
            f"</{brand}-DOCUMENT>\n"
        )

    return make
