# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Reading a filing
#
# A portfolio manager is told that a model read an annual report and sold the stock, and has one question:
#
# **What was the model shown, and since when could anybody have known it?** We follow one annual report from the file
# that EDGAR serves to the tokens of a sequence: a header, a text, items, facts, a time. Then we damage it.

# %%
import gzip
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from quantattn.data.filings import FilingTokenizer
from quantattn.data.filings.items import items_of
from quantattn.data.filings.pool import Limits
from quantattn.data.sources.filings import scan_filings

# %% [markdown]
# ## A file
#
# A company that is not there, in the manner of those that are: the SGML header, then a 10-K in inline XBRL. The
# sentences are made of words drawn at random; what matters here stands around them. The header says when EDGAR accepted
# the filing: on a Friday in November, twelve minutes past six in the evening.

# %%
dice = np.random.default_rng(1)
words = ["the", "company", "expects", "demand", "for", "anvils", "in", "its", "markets", "to", "depend", "on", "steel"]
plan = {"1. Business": 60, "1A. Risk Factors": 140, "1B. Unresolved Staff Comments": 0, "2. Properties": 8}
plan |= {"3. Legal Proceedings": 6, "5. Market for Registrant's Common Equity": 12, "6. [Reserved]": 0}
plan |= {"7. Management's Discussion and Analysis": 90, "7A. Quantitative and Qualitative Disclosures": 10}
plan |= {"8. Financial Statements and Supplementary Data": 40, "9A. Controls and Procedures": 9, "10. Directors": -1}
pages = []
for title, paragraphs in plan.items():
    told = {0: ["None."], -1: ["The information is incorporated by reference to our proxy statement."]}.get(paragraphs)
    sentences = told or [" ".join(dice.permutation(words)).capitalize() + "." for _ in range(4 * paragraphs)]
    text = [" ".join(sentences[n : n + 4]) for n in range(0, len(sentences), 4)]
    pages.append(f"<div><b>Item {title}</b></div>" + "".join(f"<p>{each}</p>" for each in text))
contents = "<p>TABLE OF CONTENTS</p><table>"
contents += "".join(f"<tr><td>Item {title}</td><td>{3 + 5 * n}</td></tr>" for n, title in enumerate(plan)) + "</table>"

# %% [markdown]
# Numbers of the statements are marked: `391,035` with a scale of 6 is 391,035 · 10⁶ dollars, and a context says of
# which year. Some of it is hidden: the page does not show it, the reader finds it.

# %%
year = "<xbrli:startDate>2023-10-01</xbrli:startDate><xbrli:endDate>2024-09-30</xbrli:endDate>"
context = "<xbrli:context id='fy'><xbrli:entity><xbrli:identifier>0000000123</xbrli:identifier></xbrli:entity>"
unit = "<xbrli:unit id='usd'><xbrli:measure>iso4217:USD</xbrli:measure></xbrli:unit>"
hidden = "<ix:hidden><ix:nonNumeric name='dei:DocumentType' contextRef='fy'>10-K</ix:nonNumeric></ix:hidden>"
head = f"<ix:header>{hidden}<ix:resources>{context}<xbrli:period>{year}</xbrli:period></xbrli:context>{unit}"
mark = "<ix:nonFraction name='us-gaap:{0}' contextRef='fy' unitRef='usd' scale='6' decimals='-6' {1} "
mark += "format='ixt:num-dot-decimal'>{2}</ix:nonFraction>"
sales, loss = mark.format("Revenues", "", "391,035"), mark.format("NetIncomeLoss", "sign='-'", "1,204")
table = f"<table><tr><td>Net sales</td><td>$</td><td>{sales}</td></tr><tr><td>Net loss</td><td>(</td><td>{loss}</td>"
pages[9] += table + "<td>)</td></tr></table>"
page = f"<html xmlns='http://www.w3.org/1999/xhtml'><body><div style='display:none'>{head}</ix:resources></ix:header>"
page += f"</div><p>FORM 10-K</p>{contents}{''.join(pages)}<p>SIGNATURES</p><p>Pursuant to the requirements, signed.</p>"
header = "<SEC-DOCUMENT>0000000123-24-000007.txt : 20241115\n<SEC-HEADER>0000000123-24-000007.hdr.sgml : 20241115\n"
header += "<ACCEPTANCE-DATETIME>20241115181203\nACCESSION NUMBER:\t0000000123-24-000007\n"
header += "CONFORMED SUBMISSION TYPE:\t10-K\nCONFORMED PERIOD OF REPORT:\t20240930\nFILED AS OF DATE:\t20241118\n"
header += "FILER:\n\tCOMPANY CONFORMED NAME:\tACME ANVILS INC\n\tCENTRAL INDEX KEY:\t0000000123\n</SEC-HEADER>\n"
filing = header + f"<DOCUMENT>\n<TYPE>10-K\n<SEQUENCE>1\n<TEXT>\n{page}\n</TEXT>\n</DOCUMENT>\n</SEC-DOCUMENT>\n"
folder = Path(tempfile.mkdtemp())
(folder / "acme.txt").write_text(filing)
print(filing[:640])

# %% [markdown]
# ## A row
#
# `scan_filings` gives one row a filing and an account of every file. The period ended in September; that is no time at
# which anybody knew. EDGAR disseminates what it accepts after half past five on the next business day, at six in the
# morning in New York: the filing of Friday evening is public on Monday, and no decision may see it before.

# %%
source = scan_filings(folder, items=True, facts=True)
row = source.frame.collect().row(0, named=True)
for name in ("event_time", "available_time"):
    print(f"{name:15} {datetime.fromtimestamp(row[name] // 10**9, UTC):%A %Y-%m-%d %H:%M:%S} UTC")
print(f"{row['n_chars']:,} characters, {row['share']:.1%} of what the page shows")
assert datetime.fromtimestamp(row["available_time"] // 10**9, UTC) == datetime(2024, 11, 18, 11, tzinfo=UTC)

# %% [markdown]
# ## Items
#
# The text is cut into the items of its form. The lines of the table of contents open none of them; an item that says
# "None" or sends the reader to the proxy statement has a status that says so, and one that is not there is missing.
# Below, the filing from its first character to its last.

# %%
items = items_of(row["text"], "10-K")
colours = {"found": "#4477aa", "by reference": "#ccbb44", "omitted": "#ee6677", "missing": "#bbbbbb"}
figure, axes = plt.subplots(figsize=(9, 3.4), layout="constrained")
axes.barh(0, len(items.text), left=0, color="#eeeeee")
for n, section in enumerate(items.sections):
    middle = (section.start + section.end) / 2
    axes.barh(0, section.end - section.start, left=section.start, color=colours[section.status], edgecolor="white")
    height = 0.55 + 0.22 * (n % 3)
    axes.plot([middle, middle], [0.4, height], color="grey", linewidth=0.6)
    axes.text(
        middle, height, " & ".join(section.names), ha="center", va="bottom", fontsize=8, color=colours[section.status]
    )
for status, colour in list(colours.items())[:3]:
    axes.barh(0, 0, color=colour, label=status)
axes.set(xlabel="characters of the text; grey is cover, contents and signatures", ylim=(-0.5, 1.5), yticks=[])
axes.set_title("The structure of a 10-K")
axes.legend(loc="upper left", ncols=3, frameon=False, fontsize=8)
plt.show()

# %%
print({name: status for name, status in items.status.items() if status != "found"})
assert "".join(piece for _, piece in items.pieces()) == items.text
assert items.status["1B"] == "omitted"
assert items.status["10"] == "by reference"
print(items["1B"], "|", items["8"][-44:])

# %% [markdown]
# ## Facts
#
# The marked numbers are events of their own, whole numbers with a power of ten: nothing was rounded. They are known
# when the filing is, not at the end of their period.

# %%
print(source.facts.select("concept", "start", "end", "value", "exponent", "unit", "text", "hidden"))
assert source.facts.filter(pl.col("concept") == "us-gaap:NetIncomeLoss")["value"].to_list() == [-1204]
assert (source.facts["available_time"] == row["available_time"]).all()

# %% [markdown]
# ## Tokens
#
# A byte-level BPE, fitted on filings that were public before the end of training. It refuses one that was not, and it
# loses nothing: what a model reads decodes to the text, byte by byte.

# %%
monday = row["available_time"]
earlier = source.frame.collect().with_columns(available_time=pl.lit(monday - 1))
tokenizer = FilingTokenizer.fit(earlier, fitted_until=monday, vocabulary_size=400)
codes = tokenizer.encode(row["text"])
print(
    f"{len(codes):,} tokens for {len(row['text']):,} characters; equal again: {tokenizer.decode(codes) == row['text']}"
)
try:
    FilingTokenizer.fit(source.frame.collect(), fitted_until=monday)
except ValueError as refusal:
    print(refusal)

# %% [markdown]
# ## Damage
#
# Files break off, archives are cut, and some pages are made so that a parser never ends. Each file is read in a child
# process with limits on size, time and memory; what goes wrong ends the child, and is set aside with its reason.

# %%
bomb = "<p>FORM 10-K</p>" + "<pre>" * 100_000  # half a megabyte that takes a parser many seconds
another = filing.replace("24-000007", "24-000008").replace("<p>FORM 10-K</p>", bomb)
(folder / "bomb.txt").write_text(another)
(folder / "cut.txt").write_text(filing[: len(filing) // 2])
(folder / "cut.gz").write_bytes(gzip.compress(filing.encode())[:-9])
twice = filing.replace("20241115181203", "20241103013000").replace("24-000007", "24-000009")
(folder / "twice.txt").write_text(twice)
damaged = scan_filings(folder, limits=Limits(cpu_seconds=1), items=True)
for file, status, detail in damaged.documents.select("file", "status", "detail").iter_rows():
    print(f"{file:10}{status}{': ' + detail if detail else ''}")
print("set aside:", damaged.report.rows_set_aside)
assert damaged.report.rows_set_aside == {"time limit": 1, "unreadable": 3}
assert damaged.frame.collect().row(0, named=True)["text"] == row["text"]

# %% [markdown]
# ## The answer
#
# The model was shown the text of the main document, every character that the page shows; items begin where they do and
# not in the table of contents; what the page hides is among the facts, by name. Anybody could have known it since six
# o'clock on Monday morning, New York time: neither since the end of the year it tells of nor since Friday evening. Of
# the files that could not be read each is named with its reason, among them one whose hour came twice because clocks
# were put back, and the one that was made to hang the reader.
