"""Boxes, bullets and Greek letters of symbol fonts are what a reader sees; other texts stay as they are."""

from __future__ import annotations

import time

import pytest

from quantattn.data.filings.markup import render_html


def shown(body: str) -> str:
    page = render_html(f"<html><body>{body}</body></html>")
    assert page.share == 1.0  # a character for a character
    return page.text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('<p>Yes <font face="Wingdings">þ</font> No <font face=WINGDINGS size=2>&#168;</font></p>', "Yes ☑ No ☐"),
        ("<p><span style=\"font-family: 'Wingdings', serif\">x</span> Yes</p>", "☒ Yes"),
        ('<p style="font:10pt Wingdings">&uml; <b>o</b></p>', "☐ ☐"),
        ('<p style="font-family:Wingdings 2">R £ S</p>', "☑ ☐ ☒"),
        ('<p><font face="Symbol">&#183;</font> one, <font face="symbol">a</font> two</p>', "• one, α two"),
        ("<p>&#61623; one &#61551; two</p>", "• one ☐ two"),  # a word processor's codes
    ],
)
def test_what_is_shown(body: str, text: str) -> None:
    assert shown(body) == text


@pytest.mark.parametrize(
    "body",
    [
        "<p>o x þ in words</p>",
        "<p style=\"font-family:'Segoe UI Symbol'\">o x</p>",
        '<p style="font-family:Times, Symbol">abc</p>',
        '<p style="font-family:Symbolic">abc</p>',
        '<p title="Wingdings">o</p>',
        '<p class="symbol">a</p>',
    ],
)
def test_other_fonts_stay(body: str) -> None:
    assert shown(body) == body[body.index(">") + 1 : body.rindex("<")]


def test_a_font_inside_ends_that_of_around_it_and_what_follows_has_it_again() -> None:
    inner = '<span style="font-family:Times">o <i>x</i></span><font face="Arial">x</font>'
    assert shown(f'<div style="font-family:Wingdings">o {inner} x</div><p>o</p>') == "☐ o xx ☒\no"
    assert shown('<font face="Wingdings">x<font face="Symbol">a</font>x</font>') == "☒α☒"


def test_a_code_that_is_not_known_stays() -> None:
    assert shown('<p><font face="Wingdings">G\u2610</font></p>') == "G☐"


def test_many_fonts_one_in_another_take_linear_time() -> None:
    began = time.process_time()
    assert "☐" in shown('<p style="font-family:Wingdings">' + '<span style="font-family:Wingdings">o' * 20_000)
    assert time.process_time() - began < 5
