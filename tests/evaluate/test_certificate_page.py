"""The certificate as a page: its sums, its verdict, its escaping."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quantattn.evaluate import render_certificate, write_certificate
from quantattn.evaluate.certificate import Group, budget_figure, groups
from quantattn.evaluate.certificate_parts import SECTIONS, summaries


def test_groups_count_and_keep_the_worst(certificate: dict[str, Any]) -> None:
    assert groups(certificate["findings"]) == [
        Group("tiled", "float32", 2, 0, 0, pytest.approx(2.0), pytest.approx(0.6)),
        Group("tiled", "float16", 0, 1, 0, pytest.approx(3.0), pytest.approx(1.5)),
        Group("tiled", "float64", 1, 0, 0, None, None),
        Group("sdpa", "float16", 0, 0, 1, None, None),
        Group("control", "float64", 1, 0, 0, None, None),
        Group("tiled", "bfloat16", 0, 1, 0, float("inf"), float("inf")),
    ]
    assert budget_figure(groups(certificate["findings"][3:4])) is None


def test_a_failure_is_said_first(certificate: dict[str, Any], tmp_path: Path) -> None:
    page = write_certificate(tmp_path / "certificate.html", certificate).read_text()
    assert re.search(r"<h1>(.*?)</h1>", page)[1] == "Not certified."  # type: ignore[index]
    assert "4 passed, 2 failed" in page
    assert "<p>A second line.</p>" in page
    assert page.count(">FAILED<") == 2
    assert page.count(">not offered<") == 1
    passed = render_certificate({**certificate, "ok": True, "findings": certificate["findings"][:2]})
    assert "<h1>Exact: what is left is rounding.</h1>" in passed
    assert "2 passed, 0 failed" in passed


def test_the_question_is_asked_once_and_the_whole_answer_follows(full_certificate: dict[str, Any]) -> None:
    page = render_certificate(full_certificate)
    assert page.count("Is it an approximation?") == 1
    assert re.findall(r"<p>(.*?)</p>", page.split("Is it an approximation?</h2>")[1].split("</section>")[0]) == [
        "No.",
        "  tiled in bfloat16 is within 0.005 of float64.",
    ]


def test_hostile_strings_stay_text(certificate: dict[str, Any]) -> None:
    bad = "</text><script>alert(1)</script><img src=x onerror=alert(2)>"
    finding = {**certificate["findings"][0], "backend": bad, "case": bad, "note": bad, "dtype": bad}
    changed = {"statement": bad, "device": bad, "versions": {bad: bad}, "findings": [finding]}
    page = render_certificate({**certificate, **changed})
    assert page.count("<script") == 1
    assert "<img" not in page


def test_a_certificate_that_lacks_something_is_one_sentence(certificate: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the certificate lacks findings, ok"):
        render_certificate({k: v for k, v in certificate.items() if k not in ("findings", "ok")})
    finding = {k: v for k, v in certificate["findings"][0].items() if k != "worst"}
    with pytest.raises(ValueError, match="finding 0 of the certificate lacks worst"):
        render_certificate({**certificate, "findings": [finding]})


def test_a_statement_is_one_row_whoever_was_asked(full_certificate: dict[str, Any]) -> None:
    removed, future = summaries(full_certificate["findings"], "theorem")
    assert (removed.said, removed.holds, removed.fails) == ("masked is removed", ("tiled", "sdpa"), ())
    assert (removed.cases, removed.seeds, removed.measured) == (18, "0 to 2", ("50%", "0.5"))
    assert future.measured == ("none, not one bit", "0.0")
    (softcap,) = summaries(full_certificate["findings"], "feature")
    assert (softcap.holds, softcap.refused, softcap.cases) == (("tiled",), ("sdpa",), 18)
    assert summaries(full_certificate["findings"], "nothing") == []


def test_every_part_has_words_of_its_own(full_certificate: dict[str, Any]) -> None:
    """A mistake that was made on purpose is caught; it does not hold, nor does the control of memory."""
    findings = full_certificate["findings"]
    words = {part: [(row.measured[0], row.verdict) for row in summaries(findings, part)] for part in SECTIONS}
    assert words == {
        "theorem": [("50%", "holds"), ("none, not one bit", "holds")],
        "feature": [("13%", "right")],
        "repeat": [("none, not one bit", "the same bits")],
        "memory": [("0.96", "a straight line"), ("1.96", "the matrix, as expected")],
        "fuzz": [("none", "all within")],
        "planted": [("0.02", "caught")],
    }
    missed = [{**f, "verdict": "fail", "worst": 3.0 if f["worst"] == 0 else f["worst"]} for f in findings]
    words = {part: [(row.measured[0], row.verdict) for row in summaries(missed, part)] for part in SECTIONS}
    assert words["planted"] == [("0.02", "NOT CAUGHT")]
    assert words["repeat"] == [("up to 3, where none may be", "FAILED")]
    assert words["fuzz"] == [("3", "FAILED")]
    assert summaries([{**findings[11], "worst": "inf"}], "planted")[0].measured[0] == "no number at all"
    page = render_certificate(full_certificate)
    assert page.count("caught</td>") == 2  # in its own table and in that of every check
    for odd in ("no bit<", ">slope<", ">failures<"):
        assert odd not in page


def test_a_failed_theorem_is_named_with_its_implementation(full_certificate: dict[str, Any]) -> None:
    findings = [dict(f) for f in full_certificate["findings"]]
    findings[2]["verdict"] = "fail"
    (removed, _) = summaries(findings, "theorem")
    assert (removed.holds, removed.fails) == (("tiled",), ("sdpa (bfloat16)",))
    page = render_certificate({**full_certificate, "ok": False, "findings": findings})
    assert re.search(r"FAILED<small>sdpa \(bfloat16\)</small>", page)
    assert "<h1>Not certified.</h1>" in page


def test_a_full_page_has_every_part_once(full_certificate: dict[str, Any]) -> None:
    page = render_certificate(full_certificate)
    for title in ("What holds of it", "What it can do", "The same bits again", "Memory", "Wrong on purpose"):
        assert page.count(f"<h2>{title}</h2>") == 1, title
    for text in ("ab" * 32, "cd" * 32, "550.54", "64 × 128, 4 warps, 3 stages"):
        assert page.count(text) == 1, text
    assert "random: table" not in page  # which the table of errors shows
    assert "random: ragged" in page
    hostile = "<script>alert(1)</script>"
    changed = {"headline": hostile, "sha": hostile, "sources": {hostile: hostile}, "configurations": {hostile: hostile}}
    rows = [{**full_certificate["errors"][0], "mask": hostile, "backend": hostile}]
    findings = [{**full_certificate["findings"][1], "case": f"theorem: {hostile}", "note": hostile}]
    page = render_certificate({**full_certificate, **changed, "errors": rows, "findings": findings})
    assert page.count("<script") == 1


def test_a_row_of_errors_that_lacks_something_is_one_sentence(full_certificate: dict[str, Any]) -> None:
    row = {k: v for k, v in full_certificate["errors"][0].items() if k != "bound"}
    with pytest.raises(ValueError, match="row 0 of the error table lacks bound"):
        render_certificate({**full_certificate, "errors": [row]})
