"""HTML → text in a guarded child: what is kept, what is hidden, and what bombs do."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import quantattn.data.filings.markup as markup
from quantattn.data.filings.markup import Limits, MarkupPool, Refused, Rendered


@pytest.fixture(scope="module")
def pool() -> Iterator[MarkupPool]:
    with MarkupPool(Limits(cpu_seconds=5, memory_mib=1_024)) as pool:
        yield pool


def text_of(pool: MarkupPool, source: str) -> str:
    rendered = pool.render(source)
    assert isinstance(rendered, Rendered), rendered
    return rendered.text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<p>One <b>bo</b>ld&nbsp;&amp; two</p><div>three</div>four", "One bold & two\nthree\nfour"),
        ("a<br>b<hr>c<ul><li>d<li>e</ul>", "a\nb\nc\nd\ne"),
        ("<p>&#8220;x&#8221; &#150; &eacute;\u200b\u00ad</p>", "“x” – é"),
        ("<h1>T</h1><title>no</title><script>no()</script><style>no{}</style><!-- no -->yes", "T\nyes"),
        ("<table><tr><td>Sales</td><td></td><td>$</td><td>10</td><td>&nbsp;</td><td>(</td><td>3</td><td>)%</td></tr>"
         "<tr><th>Cost</th><td><p>1</p><p>2</p></td></tr></table>", "Sales\t$10\t(3)%\nCost\t1 2"),
        ("<table><tr><td><table><tr><td>in</td><td>ner</td></tr></table></td><td>outer</td></tr></table>",
         "in\tner\touter"),
        (f"<table><tr><td><p>{'long ' * 50}</p><p>text</p></td></tr></table>", ("long " * 50).strip() + "\ntext"),
        ("<pre>  A     B\n  1     2</pre>after", "A\tB\n1\t2\nafter"),
        ("<p>a\n  b\t c</p>", "a b c"),
    ],
)  # fmt: skip
def test_text_in_reading_order(pool: MarkupPool, source: str, text: str) -> None:
    assert text_of(pool, f"<html><head><title>t</title></head><body>{source}</body></html>") == text
    assert text_of(pool, source) == text


def test_hidden_parts_are_left_out_counted_and_read_for_facts(pool: MarkupPool) -> None:
    source = (
        "<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><body><div style='DISPLAY : none'><ix:header>"
        "<ix:hidden><ix:nonNumeric name='dei:EntityCentralIndexKey'>0000000123</ix:nonNumeric></ix:hidden></ix:header>"
        "</div><p hidden=''>secret</p><ix:nonNumeric name='dei:DocumentType'><b>10-K</b></ix:nonNumeric>"
        "<ix:nonFraction name='us-gaap:Revenues'>7</ix:nonFraction></body></html>"
    )
    rendered = pool.render(source)
    assert isinstance(rendered, Rendered)
    assert rendered.text == "10-K7"
    assert rendered.hidden == len("0000000123secret")
    assert rendered.share == 1.0
    assert rendered.facts == {"dei:EntityCentralIndexKey": "0000000123", "dei:DocumentType": "10-K"}


def test_an_empty_xhtml_element_does_not_swallow_the_page(pool: MarkupPool) -> None:
    page = (
        "<html xmlns='http://www.w3.org/1999/xhtml'><head><title/></head><body><div style='display:none'/>kept</body>"
    )
    assert text_of(pool, page) == "kept"


def test_lost_text_is_refused_and_not_returned_short(pool: MarkupPool) -> None:
    refused = pool.render("<p>short</p><textarea></textarea><title>" + "swallowed by an open title " * 20)
    assert isinstance(refused, Refused)
    assert refused.reason == "text lost"
    refused = pool.render("<div style='display:none'>everything is hidden</div>")
    assert isinstance(refused, Refused)
    assert refused.reason == "no visible text"


def test_twenty_thousand_nested_elements(pool: MarkupPool) -> None:
    for tag in ("div", "span", "table><tr><td"):
        depth = 20_000 if tag != "table><tr><td" else 2_000
        assert text_of(pool, f"<{tag}>" * depth + "deep") == "deep"


def test_twelve_megabytes_in_one_text_node(pool: MarkupPool) -> None:
    text = "word " * 2_500_000
    rendered = pool.render(f"<p>{text}</p>")
    assert isinstance(rendered, Rendered)
    assert rendered.text == text.strip()


FORMATTING_BOMB = "".join(f"<p><font size={n}>x</p>" for n in range(20_000))


def test_bombs_end_the_child_and_not_the_run() -> None:
    with MarkupPool(Limits(cpu_seconds=1, memory_mib=4_096)) as pool:
        assert text_of(pool, "before") == "before"
        began = time.monotonic()
        assert pool.render(FORMATTING_BOMB) == Refused("time limit", "1 s of processor or 180 s in all")
        assert time.monotonic() - began < 60
        assert text_of(pool, "after") == "after"


def test_memory_has_a_limit() -> None:
    with MarkupPool(Limits(cpu_seconds=20, memory_mib=256)) as pool:
        refused = pool.render(FORMATTING_BOMB)
        assert isinstance(refused, Refused)
        assert refused.reason in ("memory limit", "parser died", "parser error")
        assert text_of(pool, "after") == "after"


def test_size_has_a_limit_and_wall_time_too() -> None:
    with MarkupPool(Limits(size_mib=0.001)) as pool:
        refused = pool.render("x" * 2_000)
        assert isinstance(refused, Refused)
        assert refused.reason == "size limit"
    with MarkupPool(Limits(wall_seconds=0.0)) as pool:
        refused = pool.render("never answered in no time")
        assert isinstance(refused, Refused)
        assert refused.reason == "time limit"


def test_pool_survives_the_death_of_a_child_between_documents() -> None:
    with MarkupPool() as pool:
        assert text_of(pool, "one") == "one"
        child = pool._idle.get()
        assert child is not None
        child._process.kill()
        child._process.wait()
        pool._idle.put(child)
        assert text_of(pool, "two") == "two"


def test_result_does_not_depend_on_what_the_child_did_before(pool: MarkupPool) -> None:
    source = "<table><tr><td>a</td><td>b</td></tr></table><pre>x    y</pre>"
    first = pool.render(source)
    pool.render("<pre><table><tr><td>unclosed")
    assert pool.render(source) == first


TAGS = "p /p div /div table tr td /td /table pre /pre b /b !-- br/ ix:header title /title div/ svg ![CDATA["
REST = "--> ]]> &nbsp; &#0; &amp &bogus; < > word été $ ) 12"
FRAGMENTS = st.sampled_from([*(f"<{tag}>" for tag in TAGS.split()), *REST.split()])


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.text(), st.lists(FRAGMENTS, max_size=30).map(" ".join)))
@example("<p>\ud800</p>")
@example("")
def test_anything_gives_text_or_a_reason(pool: MarkupPool, source: str) -> None:
    rendered = pool.render(source)
    if isinstance(rendered, Refused):
        assert rendered.reason in ("no visible text", "text lost", "parser error")
    else:
        assert rendered.text
        assert rendered.share >= pool.limits.min_share


WORDS = st.lists(st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=8), min_size=1)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["p", "div", "td", "b", "pre", "li"]), WORDS), min_size=1, max_size=8))
def test_every_word_survives_in_order(pool: MarkupPool, elements: list[tuple[str, list[str]]]) -> None:
    wrapped = {"td": ("<table><tr><td>", "</td></tr></table>")}
    source = " ".join(
        wrapped.get(tag, (f"<{tag}>",))[0] + " ".join(words) + wrapped.get(tag, ("", f"</{tag}>"))[1]
        for tag, words in elements
    )
    assert text_of(pool, source).split() == [word for _, words in elements for word in words]


def test_the_child_is_light() -> None:
    """It may import selectolax and the standard library, nothing of ours and nothing heavy."""
    tree = ast.parse(Path(markup.__file__).with_name("markup_child.py").read_text())
    imported = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= {"selectolax", *sys.stdlib_module_names}
