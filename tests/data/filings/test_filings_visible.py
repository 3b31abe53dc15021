"""Visible characters of a page: the count in bytes is that of its definition, character by character."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quantattn.data.filings.visible import INVISIBLE, conserved, expected_length, visible_length

PIECES = (
    *("<p>", "</p>", "<a href='x>y'>", "<b <i>", "< 5", "<", ">", "<!-- ", " -->", "<hea", "d>", "<HEAD>", "</head>"),
    *("<header>", "<Title>", "</tItle>", "<script>", "</script>", "<style x>", "</style>", "<template>", "</template>"),
    *("&nbsp;", "&amp;", "&ampx", "&#8217;", "&#xA0;", "&x;", "&", "&nbsp", "\xa0", "\u200b", "\x01", "é", "’"),
    *("\U0001f600", "word", " ", "\n", "0"),
)  # fmt: skip


def seen(text: str) -> int:
    return sum(not (each.isspace() or INVISIBLE.match(each)) for each in text)


def plainly(source: str) -> int:
    """The definition: cut what is not shown, kind after kind, cut tags, read references, count."""
    for tag in ("!--", "head", "title", "script", "style", "template"):
        opening = "<!--" if tag == "!--" else f"<{tag}(?![a-z\x80-\U0010ffff])"
        closing = "-->" if tag == "!--" else f"</{tag}>"
        source = re.sub(f"{opening}.*?{closing}", "", source, flags=re.IGNORECASE | re.ASCII | re.DOTALL)
    text = re.sub(r"<[a-zA-Z/!?][^<>]*>", " ", source).replace("&nbsp;", " ")
    return seen(re.sub(r"&(?:#\d+|#[xX][0-9a-fA-F]+|\w{1,32});?", lambda match: html.unescape(match[0]), text))


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
@example("a <b <i>c</i>")  # a tag that holds an opening is none
@example("<hea<!-- x -->d>a</head>b")  # what a cut joins is an opening
@example("<header>a</header><head>b</head>c")
@example("<HEAD>a</head>b<title>c")
def test_a_page_has_the_characters_of_the_definition(source: str) -> None:
    assert expected_length(source) == plainly(source)


@given(st.text(st.characters(exclude_categories=[])))
def test_a_text_has_the_characters_that_are_no_white_space_and_have_a_width(text: str) -> None:
    assert visible_length(text) == seen(text)


def test_a_text_that_lost_a_word_in_twenty_is_refused() -> None:
    source = "<p>" + "word " * 100 + "</p>"
    assert conserved("word " * 95, source) == 0.95
    with pytest.raises(ValueError, match=r"94\.0%"):
        conserved("word " * 94, source)
