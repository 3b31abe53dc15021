"""How tests write XBRL: contexts and units once, facts as an instance or inline, an exhibit of a submission."""

from __future__ import annotations

SPACES = """xmlns:xbrli="http://www.xbrl.org/2003/instance" xmlns:link="http://www.xbrl.org/2003/linkbase"
xmlns:xbrldi="http://xbrl.org/2006/xbrldi" xmlns:iso4217="http://www.xbrl.org/2003/iso4217"
xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:dei="http://xbrl.sec.gov/dei/2012-01-31"
xmlns:acme="http://acme.com/20231231" """
CONTEXTS = """
<xbrli:context id="year"><xbrli:entity><xbrli:identifier scheme="x">0000000123</xbrli:identifier></xbrli:entity>
<xbrli:period><xbrli:startDate>2023-01-01</xbrli:startDate><xbrli:endDate>2023-12-31</xbrli:endDate></xbrli:period>
</xbrli:context>
<xbrli:context id="day"><xbrli:entity><xbrli:identifier scheme="x">0000000123</xbrli:identifier><xbrli:segment>
<xbrldi:explicitMember dimension="us-gaap:SegmentAxis">acme:AnvilMember</xbrldi:explicitMember>
<xbrldi:typedMember dimension="acme:LotAxis"><acme:lot>7</acme:lot></xbrldi:typedMember></xbrli:segment></xbrli:entity>
<xbrli:period><xbrli:instant>2023-12-31</xbrli:instant></xbrli:period></xbrli:context>
<xbrli:context id="ever"><xbrli:entity><xbrli:identifier scheme="x">0000000123</xbrli:identifier></xbrli:entity>
<xbrli:period><xbrli:forever/></xbrli:period></xbrli:context>
<xbrli:context id="odd"><xbrli:period><xbrli:instant>2023-02-30</xbrli:instant></xbrli:period></xbrli:context>
<xbrli:unit id="usd"><xbrli:measure>iso4217:USD</xbrli:measure></xbrli:unit>
<xbrli:unit id="each"><xbrli:divide>
<xbrli:unitNumerator><xbrli:measure>iso4217:USD</xbrli:measure></xbrli:unitNumerator>
<xbrli:unitDenominator><xbrli:measure>xbrli:shares</xbrli:measure></xbrli:unitDenominator></xbrli:divide></xbrli:unit>
<xbrli:unit id="area"><xbrli:measure>acme:m</xbrli:measure><xbrli:measure>acme:m</xbrli:measure></xbrli:unit>
<xbrli:unit id="none"/>
"""
PLAIN = 'contextRef="year" unitRef="usd"'


def instance(body: str, contexts: str = CONTEXTS) -> str:
    return f"<?xml version='1.0' encoding='US-ASCII'?>\n<xbrli:xbrl {SPACES}>{contexts}{body}</xbrli:xbrl>"


def inline(body: str) -> str:
    header = f"<ix:header><ix:resources>{CONTEXTS}</ix:resources></ix:header>".replace("<xbrli:forever/>", FOREVER)
    return f"<html xmlns='http://www.w3.org/1999/xhtml'><body>{header}<p>FORM 10-K</p>{body}</body></html>"


FOREVER = "<xbrli:forever></xbrli:forever>"


def exhibit(text: str, kind: str = "EX-101.INS") -> str:
    body = f"<XBRL>\n{text}\n</XBRL>"
    return f"<DOCUMENT>\n<TYPE>{kind}\n<SEQUENCE>2\n<FILENAME>acme.xml\n<TEXT>\n{body}\n</TEXT>\n</DOCUMENT>\n"
