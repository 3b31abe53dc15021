"""How filings are told, and what lies beside them: indexes, lists of tickers, notes; and files that nothing reads."""

from __future__ import annotations

import re

from quantattn.data.filings.cut import is_cut, looks_cut
from quantattn.data.filings.forms import form_on_cover
from quantattn.data.filings.index import MASTER
from quantattn.data.filings.instance import is_instance
from quantattn.data.filings.submission import has_header, is_wrapped_document
from quantattn.data.filings.text import is_html
from quantattn.data.recognise.formats import Claim
from quantattn.data.recognise.look import Look

_COMMISSION = re.compile(r"SECURITIES\s+AND\s+EXCHANGE\s+COMMISSION", re.IGNORECASE)
_UNTIMED = "filings cut into items by another program, which keeps no time of acceptance: data.source.index=FILE has it"
_OF_A_FILER = ("accessionNumber", "acceptanceDateTime", "filingDate")
_TICKERS = re.compile(r'\{\s*"0"\s*:\s*\{\s*"cik_str"\s*:')
_FILER = re.compile(r'"(?:cik|filename)"\s*:')
_WORDS = re.compile(r"[^\W\d_]{2,}")


def filings(look: Look) -> Claim | None:
    """The header of a submission, the lines of a document, a page, a cover in plain text, XBRL, cut items."""
    text = look.text
    if look.columns is not None and is_cut(look.columns):
        return Claim(f"its columns are those of {_UNTIMED}")
    if text is None:
        return None
    if looks_cut(text) and _FILER.search(text):
        return Claim(f"it is JSON of {_UNTIMED}")
    if has_header(text):
        return Claim("it opens with the header of an EDGAR submission")
    if is_instance(text):
        return Claim("it is an XBRL instance, whose facts belong to a filing and are read with facts=true")
    if is_wrapped_document(text):
        return Claim("it opens with the lines <DOCUMENT> and <TYPE> of a document of EDGAR")
    if is_html(text):
        return Claim("it is a page of HTML, as documents of filings are")
    form = form_on_cover(text)
    if form is not None or (_COMMISSION.search(text[:6000]) and not text.startswith(("{", "["))):
        named = f"form {form}" if form is not None else "the Securities and Exchange Commission"
        return Claim(f"its first lines name {named}, as the cover of a filing does")
    return None


def filing_index(look: Look) -> Claim | None:
    """A table with a row for each filing, EDGAR's own list of a quarter or of a filer."""
    unread = "it is an index of filings, which goes with them: data.source.index=FILE"
    if look.text is None:
        return None
    if MASTER.search(look.text, 0, 4096) is not None:
        return Claim("it is a master index of EDGAR", unread=unread)
    if look.text.lstrip().startswith("{") and all(f'"{name}"' in look.text for name in _OF_A_FILER):
        return Claim("it is what EDGAR says of the filings of one filer", unread=unread)
    names = {re.sub(r"[ _]", "", cell).lower() for cell in look.header}
    links = {"filename", "htmlindex", "completetextfilelink", "accessionnumber", "accession", "adsh"}
    if "cik" not in names or not names & links:
        return None
    return Claim("its header names a CIK and the file or the number of each filing", unread=unread)


def tickers(look: Look) -> Claim | None:
    """EDGAR's list of companies and their tickers."""
    if look.text is None or not _TICKERS.match(look.text):
        return None
    return Claim(
        "it is a JSON list of CIK, ticker and name",
        unread="it is EDGAR's list of tickers, which goes with filings: data.prepare.tickers=FILE",
    )


def fi2010(look: Look) -> Claim | None:
    """Lines of numbers between spaces, each as long as a day has events."""
    if look.text is None or len(look.text) < 2000:
        return None
    first = look.text.split("\n", 1)[0][:2000].split()
    if len(first) < 60 or not all(re.fullmatch(r"[+-]?\d\.\d{7}e[+-]\d\d", each) for each in first[:50]):
        return None
    return Claim("its lines are long rows of numbers in the notation of FI-2010, a feature each")


def note(look: Look) -> Claim | None:
    """Prose."""
    if look.text is None or len(_WORDS.findall(look.text[:4000])) < 12 or look.text.lstrip().startswith(("{", "[")):
        return None
    lines = [line for line in look.text.split("\n")[:40] if line.strip()]
    fields = {line.count(look.separator) for line in lines}
    if len(lines) > 1 and len(fields) == 1 and fields != {0}:
        return None
    return Claim("it is text with words and no fields", unread="it is a text that is no data")
