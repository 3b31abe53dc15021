"""HTML → text: what is kept, in what order, what is hidden, and that no text is emptied silently."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quantattn.data.filings.markup import render_html


def text_of(source: str) -> str:
    return render_html(source).text


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
def test_text_in_reading_order(source: str, text: str) -> None:
    assert text_of(f"<html><head><title>t</title></head><body>{source}</body></html>") == text
    assert text_of(source) == text


def test_hidden_parts_are_left_out_counted_and_read_for_facts() -> None:
    source = (
        "<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><body><div style='DISPLAY : none'><ix:header>"
        "<ix:hidden><ix:nonNumeric name='dei:EntityCentralIndexKey'>0000000123</ix:nonNumeric></ix:hidden></ix:header>"
        "</div><p hidden=''>secret</p><ix:nonNumeric name='dei:DocumentType'><b>10-K</b></ix:nonNumeric>"
        "<ix:nonFraction name='us-gaap:Revenues'>7</ix:nonFraction></body></html>"
    )
    rendered = render_html(source)
    assert rendered.text == "10-K7"
    assert rendered.hidden == len("0000000123secret")
    assert rendered.share == 1.0
    assert rendered.cover == {"dei:EntityCentralIndexKey": "0000000123", "dei:DocumentType": "10-K"}


def test_an_empty_xhtml_element_does_not_swallow_the_page() -> None:
    page = (
        "<html xmlns='http://www.w3.org/1999/xhtml'><head><title/></head><body><div style='display:none'/>kept</body>"
    )
    assert text_of(page) == "kept"


def test_lost_text_is_refused_and_not_returned_short() -> None:
    with pytest.raises(ValueError, match=r"text lost: \d+\.\d% of the visible characters kept, least 95%"):
        render_html("<p>short</p><textarea></textarea><title>" + "swallowed by an open title " * 20)
    with pytest.raises(ValueError, match="no visible text: 18 characters in the source, 18 of them hidden"):
        render_html("<div style='display:none'>everything is hidden</div>")


def test_twenty_thousand_nested_elements() -> None:
    for tag in ("div", "span", "table><tr><td"):
        depth = 20_000 if tag != "table><tr><td" else 2_000
        assert text_of(f"<{tag}>" * depth + "deep") == "deep"


def test_twelve_megabytes_in_one_text_node() -> None:
    text = "word " * 2_500_000
    assert text_of(f"<p>{text}</p>") == text.strip()


TAGS = "p /p div /div table tr td /td /table pre /pre b /b !-- br/ ix:header title /title div/ svg ![CDATA["
REST = "--> ]]> &nbsp; &#0; &amp &bogus; < > word été $ ) 12"
FRAGMENTS = st.sampled_from([*(f"<{tag}>" for tag in TAGS.split()), *REST.split()])


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.text(st.characters(codec="utf-8")), st.lists(FRAGMENTS, max_size=30).map(" ".join)))
@example("")
def test_anything_gives_text_or_a_reason(source: str) -> None:
    try:
        rendered = render_html(source)
    except ValueError as error:
        reason = str(error)
    else:
        reason = "" if rendered.text and rendered.share >= 0.95 else "neither text nor a reason"
    assert reason.startswith(("no visible text", "text lost")) or not reason


WORDS = st.lists(st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=8), min_size=1)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["p", "div", "td", "b", "pre", "li"]), WORDS), min_size=1, max_size=8))
def test_every_word_survives_in_order(elements: list[tuple[str, list[str]]]) -> None:
    wrapped = {"td": ("<table><tr><td>", "</td></tr></table>")}
    source = " ".join(
        wrapped.get(tag, (f"<{tag}>",))[0] + " ".join(words) + wrapped.get(tag, ("", f"</{tag}>"))[1]
        for tag, words in elements
    )
    assert text_of(source).split() == [word for _, words in elements for word in words]
