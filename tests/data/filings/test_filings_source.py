"""A folder of files → a table, with every file accounted for and every time honest."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from quantattn.data.filings.clock import parse_acceptance, public_ns
from quantattn.data.filings.forms import form_on_cover
from quantattn.data.filings.index import FilingIndex, read_index
from quantattn.data.sources import SOURCES
from quantattn.data.sources.filings import scan_filings, summary

Maker = Callable[..., str]
HTML = "<html><body><p>FORM 10-K</p><p>We sold more.</p></body></html>"
COVER = "<ix:nonNumeric name='dei:EntityCentralIndexKey'>0000000123</ix:nonNumeric>"


def write(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def status_of(source_documents: pl.DataFrame) -> dict[str, str]:
    return dict(source_documents.select("file", "status").iter_rows())


@pytest.fixture
def folder(tmp_path: Path, submission: Maker) -> Path:
    return write(
        tmp_path,
        a_dot_txt=submission("FORM 10-K\n\nFirst."),
        b_dot_bin=gzip.compress(submission(HTML, form="8-K/A", accession="0000000123-24-000002").encode()),
        sub__c_dot_txt=submission("Same again.", accession="0000000123-24-000001"),
        d_dot_txt=submission("Other.", form="NT 10-K", accession="0000000123-24-000004"),
        e_dot_htm=HTML,
        f_dot_json='{"item_1": "text"}',
        g_dot_txt="Just some text.",
        h_dot_htm="<html><body><p>A letter to shareholders</p></body></html>",
        i_dot_txt=submission("Old.", accession="0000000123-24-000005", accepted=None),
        j_dot_txt=submission("<html><body><div style='display:none'>x</div>", accession="0000000123-24-000006"),
        k_dot_pdf=b"%PDF-1.4 \x00\x01",
        l_dot_txt=submission("Twice.", accession="0000000123-24-000007", accepted="20241103013000"),
    )


def test_every_file_is_accounted_for(folder: Path) -> None:
    source = scan_filings(folder, workers=1)
    assert status_of(source.documents) == {
        "a.txt": "ok",
        "b.bin": "ok",
        "d.txt": "other form",
        "e.htm": "no acceptance time",
        "f.json": "not a filing",
        "g.txt": "not a filing",
        "h.htm": "form not stated",
        "i.txt": "no acceptance time",
        "j.txt": "unreadable",
        "k.pdf": "not a filing",
        "l.txt": "unreadable",
        "sub/c.txt": "duplicate accession",
    }
    report = source.report
    assert report.rows_read == source.frame.collect().height == 2
    assert report.rows_read + sum(report.rows_set_aside.values()) == len(report.files) == 12
    assert summary(source)["files"].sum() == 12
    reasons = dict(source.documents.select("file", "detail").iter_rows())
    assert "exists twice" in reasons["l.txt"]
    assert "no visible text" in reasons["j.txt"]
    assert "as in a.txt" in reasons["sub/c.txt"]


def test_rows_carry_form_times_and_text(folder: Path) -> None:
    first, second = scan_filings(folder).frame.sort("seq").collect().to_dicts()
    accepted = parse_acceptance("20240315101500")
    assert (first["entity"], first["form"], first["amendment"]) == ("0000000123", "10-K", False)
    assert (first["event_time"], first["available_time"]) == (accepted, public_ns(accepted))
    assert (first["accepted_text"], first["time_source"]) == ("20240315101500", "header")
    assert first["text"] == "FORM 10-K\n\nFirst."
    assert (second["form"], second["family"], second["amendment"]) == ("8-K/A", "8-K", True)
    assert second["text"] == "FORM 10-K\nWe sold more."
    assert second["n_chars"] == len(second["text"])


def test_result_does_not_depend_on_the_number_of_workers(folder: Path) -> None:
    one, two = scan_filings(folder, workers=1), scan_filings(folder, workers=2)
    assert one.frame.collect().equals(two.frame.collect())
    assert one.documents.equals(two.documents)
    assert one.report == two.report


def test_refuse_raises_at_the_first_unreadable_file(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"j\.txt: no visible text"):
        scan_filings(folder, on_bad="refuse")


def test_a_main_document_that_breaks_off_is_set_aside(tmp_path: Path, submission: Maker) -> None:
    text = submission("Net sales rose. Risk factors follow.", accession="0000000123-24-000007")
    end = "</TEXT>\n</DOCUMENT>\n"
    exhibit = "<DOCUMENT>\n<TYPE>EX-99\n<SEQUENCE>2\n<TEXT>\nAn exhib"
    write(
        tmp_path,
        cut=text[: text.index("factors")],
        whole=text.replace("24-000007", "24-000008").split("</SEC-DOCUMENT>")[0] + exhibit,
        next=submission("Body.", accession="0000000123-24-000009", more=exhibit).replace(end, ""),
        outer=submission("Body.", accession="0000000123-24-000010").replace(end, ""),
    )
    source = scan_filings(tmp_path)
    assert status_of(source.documents) == {"cut": "unreadable", "whole": "ok", "next": "ok", "outer": "ok"}
    (detail,) = source.documents.filter(pl.col("status") == "unreadable")["detail"]
    assert detail == "the main document has no end: no closing tag follows it, so the file stops early"


def test_forms_are_kept_by_family(tmp_path: Path, submission: Maker) -> None:
    forms = [
        "10-K",
        "10-K405",
        "10-KSB/A",
        "10-Q",
        "10-QSB",
        "8-K",
        "8-K12B",
        "20-F",
        "NT 10-Q",
        "4",
        "10-12G",
        "424B3",
    ]
    for number, form in enumerate(forms):
        text = submission(form=form, accession=f"0000000123-24-{number:06}")
        write(tmp_path, **{f"{number:02}_dot_txt": text})
    kept = scan_filings(tmp_path).frame.collect()
    assert sorted(kept["form"]) == sorted(forms[:7])
    assert set(scan_filings(tmp_path, forms=("10-Q",)).frame.collect()["form"]) == {"10-Q", "10-QSB"}
    with pytest.raises(ValueError, match="forms must be some of"):
        scan_filings(tmp_path, forms=("20-F",))


@pytest.mark.parametrize(
    ("cover", "form"),
    [
        ("UNITED STATES\nFORM 10-K\n(Mark One)", "10-K"),
        ("Form 8-K", "8-K"),
        ("FORM 10-Q/A", "10-Q/A"),
        ("FORM 10-K/A (Amendment No. 1)", "10-K/A"),
        ("FORM 10-K Amendment No. 2", "10-K/A"),
        ("FORM 10K405", "10-K405"),
        ("our annual report on Form 10-K for 1999", None),
        ("FORM 20-F", None),
        ("x" * 6_000 + "\nFORM 10-K", None),
    ],
)
def test_form_named_on_the_cover(cover: str, form: str | None) -> None:
    assert form_on_cover(cover) == form


def test_a_filing_date_is_used_only_when_asked_for(tmp_path: Path, submission: Maker) -> None:
    write(tmp_path, old_dot_txt=submission(accepted=None, filed="19960628", brand="IMS"))
    assert scan_filings(tmp_path).report.rows_set_aside == {"no acceptance time": 1}
    (row,) = scan_filings(tmp_path, filing_dates="latest").frame.collect().to_dicts()
    assert row["time_source"] == "header filing date"
    assert row["accepted_text"] is None
    assert row["event_time"] == parse_acceptance("19960628220000")
    assert row["available_time"] == parse_acceptance("19960701060000")  # Friday evening → Monday


def test_an_index_dates_documents_without_a_header(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "filings", **{"x_0000000123-24-000001_dot_htm": HTML.replace("<p>FORM", f"{COVER}<p>FORM")}
    )
    index = tmp_path / "index.csv"
    index.write_text(
        "Accession Number,Acceptance DateTime,Period of Report\n0000000123-24-000001,20240315180000,20231231\n"
    )
    (row,) = scan_filings(folder, index=index).frame.collect().to_dicts()
    assert (row["time_source"], row["accepted_text"]) == ("index", "20240315180000")
    assert row["available_time"] == parse_acceptance("20240318060000")
    assert row["entity"] == "0000000123"


def test_a_period_is_never_taken_for_a_time(tmp_path: Path, submission: Maker) -> None:
    folder = write(tmp_path / "filings", **{"x_dot_htm": HTML})
    index = tmp_path / "index.csv"
    index.write_text("filename,Period of Report,CIK\nx.htm,2023-12-31,123\n")
    with pytest.raises(ValueError, match="no column with acceptance times or filing dates"):
        read_index(index)
    index.write_text("filename,Period of Report,CIK,accepted\nx.htm,2023-12-31,123,\n")
    assert scan_filings(folder, index=index).report.rows_set_aside == {"no acceptance time": 1}
    text = submission(accepted=None).replace("FILED AS OF DATE:\t\t20240315\n", "")
    write(folder, **{"x_dot_htm": text})
    assert scan_filings(folder, filing_dates="latest").report.rows_set_aside == {"no acceptance time": 1}


def test_header_wins_over_index(tmp_path: Path, submission: Maker) -> None:
    folder = write(tmp_path, a_dot_txt=submission())
    index = FilingIndex([{"accession": "0000000123-24-000001", "accepted": "20200101120000"}])
    assert scan_filings(folder, index=index).frame.collect()["accepted_text"].to_list() == ["20240315101500"]


def test_index_times_and_their_zones(tmp_path: Path) -> None:
    def ns(text: str, zone: str | None = None) -> int | None:
        entry = FilingIndex([{"name": "a.htm", "accepted": text}], zone).find(None, "sub/a.htm.gz")  # type: ignore[arg-type]
        assert entry is not None
        return entry.accepted

    winter = parse_acceptance("20240115163000")
    assert ns("2024-01-15T16:30:00") == ns("2024-01-15 16:30:00") == winter
    assert ns("2024-01-15T16:30:00-05:00") == ns("2024-01-15T21:30:00+00:00") == winter
    assert ns("2024-01-15T16:30:00.000Z", "new_york") == ns("2024-01-15T21:30:00.000Z", "utc") == winter
    for wrong, what in (
        ("2024-01-15T16:30:00.000Z", "ends in Z"),
        ("2024-01-15", "ISO date and time"),
        ("noon", "ISO"),
    ):
        with pytest.raises(ValueError, match=what):
            ns(wrong)
    path = tmp_path / "index.json"
    path.write_text(json.dumps({"0000000123-24-000001": {"acceptanceDateTime": "20240115163000"}}))
    entry = read_index(path).find("0000000123-24-000001", "any.htm")
    assert entry is not None
    assert entry.accepted == winter
    twice = [{"name": "a", "accepted": "20240115163000"}, {"name": "a", "accepted": "20240115163001"}]
    with pytest.raises(ValueError, match="index row 1: 'a' stands in the index twice"):
        FilingIndex(twice)


def test_filers_are_given_and_never_guessed(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"ACME_10-K_dot_htm": HTML})
    index = FilingIndex([{"name": "ACME_10-K", "accepted": "20240315101500"}])
    assert scan_filings(folder, index=index).report.rows_set_aside == {"filer not stated": 1}
    source = scan_filings(folder, index=index, filers={"ACME_": "123"})
    assert source.frame.collect()["entity"].to_list() == ["0000000123"]
    write(tmp_path, **{"ACME_10-K_dot_htm": HTML.replace("<p>FORM", f"{COVER}<p>FORM")})
    contradiction = scan_filings(folder, index=index, filers={"ACME_": "77"})
    assert "0000000077 is given" in contradiction.documents["detail"][0]


def test_inline_xbrl_cover_states_form_and_amendment(tmp_path: Path) -> None:
    cover = f"{COVER}<ix:nonNumeric name='dei:DocumentType'>10-Q</ix:nonNumeric>"
    flag = "<ix:nonNumeric name='dei:AmendmentFlag'>true</ix:nonNumeric>"
    write(tmp_path, a_dot_htm=f"<html><body>{cover}<div style='display:none'>{flag}</div><p>x</p>")
    documents = scan_filings(tmp_path).documents
    assert documents.select("form", "family", "amendment", "entity").row(0) == ("10-Q/A", "10-Q", True, "0000000123")


@pytest.mark.parametrize("name", ["../../escaped.txt", "/etc/passwd", "..\\..\\x", "CON", "a\x00b", "~/.bashrc"])
def test_names_inside_a_file_never_become_paths(tmp_path: Path, submission: Maker, name: str) -> None:
    inside = tmp_path / "deep" / "folder"
    part = (
        f"<DOCUMENT>\n<TYPE>GRAPHIC\n<SEQUENCE>2\n<FILENAME>{name}\n<TEXT>\nbegin 644 {name}\n#0V%T\n`\nend\n</TEXT>\n"
    )
    write(inside, a_dot_txt=submission(more=part).replace("acme.txt", name))
    before = sorted(tmp_path.rglob("*"))
    documents = scan_filings(inside).documents
    assert documents["status"].to_list() == ["ok"]
    assert documents["parts_skipped"].to_list() == [1]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no files"):
        scan_filings(tmp_path)
    with pytest.raises(ValueError, match="neither a folder nor a file"):
        scan_filings(tmp_path / "missing")


def test_a_pattern_of_files_is_read_too(folder: Path) -> None:
    assert scan_filings(folder / "[a-d].*").documents["file"].to_list() == ["a.txt", "b.bin", "d.txt"]
    assert scan_filings(folder / "**" / "?.txt").documents["file"][-1] == "sub/c.txt"
    with pytest.raises(ValueError, match=r"x\*\.txt holds no files"):
        scan_filings(folder / "x*.txt")
    odd = write(folder, **{"x[1]_dot_htm": HTML}) / "x[1].htm"
    assert scan_filings(odd).documents["file"].to_list() == ["x[1].htm"]  # a name that is there is no pattern


def test_names_of_any_bytes_and_a_relative_path(
    tmp_path: Path, submission: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate((b"\xc3\xa9.txt", b"\xff.txt", b"a b\n.txt", b'"q".txt')):
        text = submission(accession=f"0000000123-24-{number:06}")
        (Path(os.fsdecode(bytes(tmp_path) + b"/" + name))).write_text(text)
    monkeypatch.chdir(tmp_path.parent)
    source = scan_filings(tmp_path.name)
    assert sorted(source.documents["file"]) == ['"q".txt', "\\xff.txt", "a b\n.txt", "é.txt"]
    assert source.report.rows_read == len(source.report.files) == 4


def test_registry(folder: Path) -> None:
    assert SOURCES["filings"](folder).report.rows_read == 2


@pytest.mark.parametrize(
    ("stamp", "accepted", "public"),
    [
        ("20240308173000", "2024-03-08T22:30:00", "2024-03-08T22:30:00"),  # the last Friday before, in winter time
        ("20240310015959", "2024-03-10T06:59:59", "2024-03-11T10:00:00"),  # Sunday: a second before two o'clock …
        ("20240310030000", "2024-03-10T07:00:00", "2024-03-11T10:00:00"),  # … which is followed by three
        (
            "20241101173001",
            "2024-11-01T21:30:01",
            "2024-11-04T11:00:00",
        ),  # after the cut: Monday's six is an hour later
        ("20241103005959", "2024-11-03T04:59:59", "2024-11-04T11:00:00"),
        ("20241103020000", "2024-11-03T07:00:00", "2024-11-04T11:00:00"),
    ],
)
def test_both_days_on_which_clocks_change(
    tmp_path: Path, submission: Maker, stamp: str, accepted: str, public: str
) -> None:
    """From the header's stamp to the table, and the same by an index, worked out by hand."""
    write(tmp_path / "a", x_dot_txt=submission(accepted=stamp))
    write(tmp_path / "b", x_dot_htm=HTML)
    iso = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[8:10]}:{stamp[10:12]}:{stamp[12:]}"
    index = FilingIndex([{"name": "x.htm", "accepted": iso, "cik": "123"}])
    for source in (scan_filings(tmp_path / "a"), scan_filings(tmp_path / "b", index=index)):
        times = source.frame.select("event_time", "available_time").collect().cast(pl.Datetime("ns"))
        assert [f"{time:%Y-%m-%dT%H:%M:%S}" for time in times.row(0)] == [accepted, public]


@pytest.mark.parametrize(("stamp", "what"), [("20240310023000", "does not exist"), ("20241103013000", "exists twice")])
def test_an_hour_that_is_missing_or_comes_twice_is_set_aside(
    tmp_path: Path, submission: Maker, stamp: str, what: str
) -> None:
    write(tmp_path, x_dot_txt=submission(accepted=stamp))
    documents = scan_filings(tmp_path).documents
    assert documents["status"].to_list() == ["unreadable"]
    assert what in documents["detail"][0]
