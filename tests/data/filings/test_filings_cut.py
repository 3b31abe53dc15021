"""Filings that another program has cut into items: the same in whatever file, dated by an index or not at all."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.filings.clock import latest_acceptance_ns, parse_acceptance, parse_filing_date
from quantattn.data.filings.corpus import LINES, LIST, PARQUET, holds_many
from quantattn.data.filings.cut import parse_record, read_items, read_metadata
from quantattn.data.filings.index import FilingIndex
from quantattn.data.filings.item_table import select_items
from quantattn.data.filings.items import items_of
from quantattn.data.filings.parsed import Parsed
from quantattn.data.filings.prepare import prepare_filings
from quantattn.data.filings.text import tidy
from quantattn.data.filings.tokenizer import FilingTokenizer
from quantattn.data.protocol import WalkForward
from quantattn.data.recognise import recognise
from quantattn.data.sources.filings import scan_filings
from tests.data.filings.cut_records import ACCEPTED, NUMBERS, RECORDS, crawled, index_of, parquet, record

FILES = {
    "corpus.parquet": lambda path: parquet(path, RECORDS),
    "corpus": lambda path: path.write_text("\n".join(map(json.dumps, RECORDS))),
    "b": lambda path: path.write_bytes(gzip.compress("\r\n\r\n".join(map(json.dumps, RECORDS)).encode())),
    "c.xz": lambda path: path.write_bytes(lzma.compress("\n".join(map(json.dumps, RECORDS)).encode())),
    "list": lambda path: path.write_text(json.dumps(RECORDS)),
    "list.gz": lambda path: path.write_bytes(gzip.compress(json.dumps(RECORDS, indent=2).encode())),
}


@pytest.mark.parametrize("name", FILES)
def test_the_file_that_filings_come_in_changes_nothing(tmp_path: Path, name: str) -> None:
    """Parquet, lines, a list, an object a file; by content, whatever the name and the packing."""
    (tmp_path / "alone").mkdir()
    for number, each in enumerate(RECORDS):
        (tmp_path / "alone" / f"{number}.json").write_text(json.dumps(each, indent=4))
    FILES[name](tmp_path / name)
    index = index_of(*RECORDS)
    alone = scan_filings(tmp_path / "alone", index=index).frame.collect()
    together = scan_filings(tmp_path / name, index=index).frame.collect()
    assert alone.height == len(RECORDS)
    assert together.drop("file").equals(alone.drop("file"))
    found = recognise(tmp_path / name)
    assert found.read
    assert found.format is not None
    assert found.format.name == "filings"
    assert "keeps no time of acceptance" in found.claim.why


def test_tables_are_told_by_content(tmp_path: Path) -> None:
    for name, table in {"corpus.parquet": PARQUET, "corpus": LINES, "b": LINES, "list": LIST, "list.gz": LIST}.items():
        FILES[name](tmp_path / name)
        assert holds_many(tmp_path / name) == table
    (tmp_path / "one").write_text(json.dumps(record(), indent=1))
    (tmp_path / "page").write_text("<html>")
    (tmp_path / "other").write_text('{"a": 1}\n{"a": 2}\n')
    assert [holds_many(tmp_path / name) for name in ("one", "page", "other")] == ["", "", ""]


def test_a_year_is_no_time(tmp_path: Path) -> None:
    """Without an index no filing has a time, whatever is allowed; with one, those that it does not name have none."""
    path = parquet(tmp_path / "x", RECORDS)
    source = scan_filings(path, filing_dates="latest")
    assert source.frame.collect().height == 0
    assert source.report.rows_set_aside == {"no acceptance time": 3}
    assert source.documents["event_time"].null_count() == 3
    source = scan_filings(path, index=index_of(RECORDS[1]))
    assert source.report.rows_read == 1
    assert source.report.rows_set_aside == {"no acceptance time": 2}
    (row,) = source.frame.collect().to_dicts()
    assert (row["entity"], row["event_time"], row["time_source"], row["accession"]) == (
        *("0000000002", parse_acceptance(ACCEPTED), "index", "2_2015.txt"),
    )
    assert any("3 filings were cut into items by another program" in note for note in source.report.notes)


@pytest.mark.parametrize(
    ("rows", "status", "detail"),
    [
        ([{"cik": "2", "year": "2015", "accepted": ACCEPTED}], "ok", ""),
        ([{"cik": "2", "year": 2015, "accepted": ACCEPTED, "form": "10-K405"}], "ok", ""),
        ([{"cik": "2", "year": "2015", "accepted": ACCEPTED}] * 2, "ok", ""),  # said twice
        ([{"cik": "2", "year": "2014", "accepted": ACCEPTED}], "no acceptance time", "cut items carry none"),
        ([{"cik": "2", "accepted": ACCEPTED, "accession": "0000000002-16-000001"}], "no acceptance time", "cut items"),
        ([{"cik": "2", "year": "2015", "accepted": ACCEPTED, "form": "10-Q"}], "no acceptance time", "cut items carry"),
        (
            [{"cik": "2", "year": "2015", "accepted": at} for at in (ACCEPTED, "20150226161500")],
            *("no acceptance time", "the index has 2 filings of this CIK and the year 2015"),
        ),
        (
            [{"cik": "2", "year": "2015", "accepted": "20141231120000"}],
            *("unreadable", "the index dates it 2014-12-31, before the year 2015 that it states"),
        ),
    ],
)
def test_filer_and_year_name_a_filing_where_the_index_has_years(
    tmp_path: Path, rows: list[dict[str, object]], status: str, detail: str
) -> None:
    source = scan_filings(parquet(tmp_path / "x", [record(2)]), index=FilingIndex(rows))
    found = source.documents.row(0, named=True)
    assert found["status"] == status
    assert found["detail"].startswith(detail)
    assert (found["event_time"] is not None) == (status == "ok")


def test_a_filing_date_is_not_a_time_unless_it_is_said_to_be_enough(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(json.dumps(crawled()))
    source = scan_filings(tmp_path)
    assert source.report.rows_set_aside == {"no acceptance time": 1}
    assert source.documents["detail"].to_list() == ["only the filing date 2024-03-15 is known"]
    (row,) = scan_filings(tmp_path, filing_dates="latest").frame.collect().to_dicts()
    assert row["event_time"] == latest_acceptance_ns(parse_filing_date("2024-03-15"))
    assert (row["time_source"], row["accession"], row["company"], row["form"]) == (
        *("record filing date", "0000000123-24-000001", "ACME", "10-K"),
    )
    known = FilingIndex([{"accession": "0000000123-24-000001", "accepted": "20240314173100"}])
    assert scan_filings(tmp_path, index=known).frame.collect()["event_time"][0] == parse_acceptance("20240314173100")
    other = FilingIndex([{"accession": "0000000123-24-000001", "accepted": "20230315101500"}])
    assert scan_filings(tmp_path, index=other).documents["detail"].to_list() == [
        "the index dates it 2023-03-15, its own filing date is 2024-03-15"
    ]


def test_what_comes_later_changes_no_earlier_row(tmp_path: Path) -> None:
    """Another filing, and another text of it, leave the rows before it as they were, bit for bit."""
    times = [{"filename": each["filename"], "accepted": f"2016022{n}161500"} for n, each in enumerate(RECORDS)]
    index = FilingIndex(times)
    before = scan_filings(parquet(tmp_path / "x", RECORDS[:2]), index=index).frame.collect()
    for later in (RECORDS[2], RECORDS[2] | {"section_1": "another"}):
        after = scan_filings(parquet(tmp_path / "x", [*RECORDS[:2], later]), index=index).frame.collect()
        assert after.height == 3
        assert after.filter(pl.col("available_time") <= before["available_time"].max()).equals(before)


def test_items_are_taken_as_they_were_cut(tmp_path: Path) -> None:
    """A heading within an item, on which a text would be cut, cuts nothing here."""
    deceiving = record(1, **{"1": "Item 1. Business\nWe sell.\nItem 1A. Risk Factors\nAnvils fall.", "1A": ""})
    source = scan_filings(parquet(tmp_path / "x", [deceiving]), index=index_of(deceiving))
    table = source.frame.collect()
    for number in ("1", "7"):
        kept, counts, dropped = select_items(table, [number])
        assert kept["text"].to_list() == [tidy(deceiving[f"section_{number}"])]
        assert (counts, dropped) == ({f"item {number} found": 1}, {})
    with pytest.raises(ValueError, match="none of 1 filings has one of the items 1A"):
        select_items(table, ["1A"])
    assert "1A" in items_of(table["text"][0], "10-K")  # what cutting it again would give
    assert source.documents.select("items_found", "items_missing").row(0) == (2, 18)


def test_sequences_hold_the_items_that_are_asked_for_and_no_other(tmp_path: Path) -> None:
    records = [
        record(n, **{"1": "Item 1. Business\nsecret", "7": f"Item 7. Discussion\nIt rose {n}."}) for n in range(1, 61)
    ]
    days = [
        {"filename": each["filename"], "accepted": f"2016{n % 12 + 1:02}15161500"} for n, each in enumerate(records)
    ]
    source = scan_filings(parquet(tmp_path / "x", records), index=FilingIndex(days))
    settings = {"split": WalkForward(test=0.2, valid=0.1), "vocabulary_size": 300}
    prepared = prepare_filings(source, objective="masked", items=[7], **settings)  # type: ignore[arg-type]
    tokenizer = FilingTokenizer.from_json(prepared.vocabulary_json)
    for part in (prepared.train, prepared.valid, prepared.test):
        tokens = part.table.fields["token"]
        for start, stop in zip(part.start, part.stop, strict=True):
            text = tokenizer.decode(tokens[start:stop])
            assert "It rose" in text
            assert "secret" not in text
    whole = prepare_filings(source, objective="masked", **settings)  # type: ignore[arg-type]
    assert len(whole.train.table) > len(prepared.train.table)
    assert prepared.counts["item 7 found"] == 60


def test_items_of_a_table_are_those_of_its_text(tmp_path: Path) -> None:
    """Items that a source has found are those that cutting again finds: taking them from the table is no loss."""
    text = "<html><body><p>FORM 10-K</p><h1>Items 1 and 2. Business and Properties</h1><p>Anvils.</p>"
    text += "<h1>Item 4. Mine Safety</h1><p>None.</p><h1>Item 7. Discussion</h1><p>Well.</p></body></html>"
    (tmp_path / "a.html").write_text(text)
    index = FilingIndex([{"name": "a.html", "accepted": ACCEPTED, "cik": "1"}])
    with_items, without = (scan_filings(tmp_path, index=index, items=each).frame.collect() for each in (True, False))
    assert "items" not in without.columns
    for names in (["1"], ["2", "7"], ["4"], ["1", "4", "7"]):
        assert select_items(with_items, names)[0]["text"].equals(select_items(without, names)[0]["text"])
        assert select_items(with_items, names)[1:] == select_items(without, names)[1:]


TEXTS = st.dictionaries(st.sampled_from(NUMBERS), st.text(max_size=60), min_size=1)


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.randoms(use_true_random=False))
def test_every_item_is_a_slice_and_their_order_in_the_record_is_no_matter(texts: dict[str, str], dice: object) -> None:
    values = record() | {f"section_{number}": text for number, text in texts.items()}
    read = read_items(values, Parsed(form="10-K"))
    told = {name: tidy(values[f"section_{name}"]) for name in NUMBERS}
    told = {name: text for name, text in told.items() if text}
    if not told:
        assert (read.status, read.text) == ("no item has text", None)
        return
    assert read.text == "\n".join(told.values())
    assert {each.names[0]: read.text[each.start : each.end] for each in read.sections} == told
    names = list(values)
    dice.shuffle(names)  # type: ignore[attr-defined]
    assert read_items({name: values[name] for name in names}, Parsed(form="10-K")) == read
    again = read_metadata(parse_record(json.dumps(values)))
    assert read_items(parse_record(json.dumps(values)), again).text == read.text


def test_statuses_are_those_of_the_items_text() -> None:
    told = {
        **{"section_1": "ITEMS 1 and 2. BUSINESS AND PROPERTIES\nWe sell anvils.", "section_4": "Item 4. [Reserved]"},
        **{"section_1B": "ITEM 1B. Unresolved Staff Comments\nNone.", "section_9A": "Item 9A(T). Controls\nThey work."},
        "section_11": "ITEM 11. Executive Compensation\nIt is in the Proxy Statement, included by reference.",
    }
    found = read_items(told, Parsed(form="10-K"))
    assert {each.names[0]: each.status for each in found.sections} == {
        **{"1": "found", "1B": "omitted", "4": "omitted", "9A": "found", "11": "by reference"}
    }


def test_parts_of_a_quarterly_report() -> None:
    values = {
        "filing_type": "10-Q",
        "part_1": "PART I\nItem 1. Financial Statements\nMany.\nbetween\nItem 2. Discussion\nShort.\nafter",
        "part_1_item_1": "Item 1. Financial Statements\nMany.",
        "part_1_item_2": "Item 2. Discussion\nShort.",
        "part_1_item_3": "",
        "part_2": "something else",
        "part_2_item_1A": "Item 1A. Risk Factors\nNone.",
        "SIGNATURE": "Signed.",
    }
    read = read_items(values, read_metadata(values))
    assert read.text == f"{values['part_1']}\n{values['part_2_item_1A']}\nSigned."
    assert [(each.names, read.text[each.start : each.end]) for each in read.sections] == [
        (("I.1",), values["part_1_item_1"]),
        (("I.2",), values["part_1_item_2"]),
        (("II.1A",), values["part_2_item_1A"]),
    ]
    alone = read_items(values | dict.fromkeys(("part_1_item_1", "part_1_item_2", "part_2_item_1A"), ""), read)
    assert (alone.text, alone.sections) == (f"{values['part_1']}\nsomething else\nSigned.", ())


def test_names_without_a_line_between_and_a_link_are_a_record_too(tmp_path: Path) -> None:
    link = "https://www.sec.gov/Archives/edgar/data/4457/000000445723000052/0000004457-23-000052-index.htm"
    values = {"item1": ">Item 1. Business\nWe move.", "item1a": "Item 1A. Risk Factors\nRain.", "cik": "4457"}
    (tmp_path / "a.json").write_text(json.dumps(values | {"names": ["ACME"], "source": link}))
    index = FilingIndex([{"accession": "0000004457-23-000052", "accepted": "20230601120000"}])
    (row,) = scan_filings(tmp_path, index=index).frame.collect().to_dicts()
    assert (row["entity"], row["form"], row["accession"]) == ("0000004457", "10-K", "0000004457-23-000052")
    assert row["text"] == "\n".join((values["item1"], values["item1a"]))
    assert read_metadata({"cik": "1", "item7": "x"}).form is None  # of an 8-K before 2004, or of a 10-K
    assert read_metadata({"cik": "1", "part_2_item_1A": "x"}).form is None


def test_filings_that_come_twice_and_other_forms_are_counted(tmp_path: Path) -> None:
    parquet(tmp_path / "a", RECORDS)
    parquet(tmp_path / "b", RECORDS[:1])
    rows = [json.dumps(crawled(filing_type=form)) for form in ("S-1", "8-K12B")]
    (tmp_path / "c").write_text("\n".join(rows))
    (tmp_path / "d").write_text(json.dumps({"cik": "1", "filename": "x", "item_1": "y"}))
    (tmp_path / "e").write_text('{"cik": "1", "facts": {}}')
    empty = record(9, **dict.fromkeys(NUMBERS, " \n"))
    (tmp_path / "f").write_text(json.dumps(empty))
    source = scan_filings(tmp_path, index=index_of(*RECORDS, empty), filing_dates="latest")
    assert source.report.rows_read == 4
    assert source.report.rows_set_aside == {
        **{"duplicate accession": 1, "form not stated": 1, "no item has text": 1, "not a filing": 1, "other form": 1}
    }
    assert source.documents.height == 4 + 5


def test_real_filings_that_were_cut(realdata: Path) -> None:
    folder = realdata / "filings"
    paths = sorted(folder.glob("edgar_corpus_json_*/*"))
    if not paths:
        pytest.skip("the real data holds no filing that was cut into items")
    index = folder / "edgar_crawler_FILINGS_METADATA.csv.gz"
    source = scan_filings(folder / "edgar_corpus_json_*" / "*", index=index, filing_dates="latest")
    told = [
        json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()) for path in paths
    ]
    assert source.documents.height == len(paths)
    assert source.report.rows_read + sum(source.report.rows_set_aside.values()) == len(paths)
    assert set(source.report.rows_set_aside) <= {"duplicate accession"}
    table = source.frame.collect()
    by_number = {each["filename"].rsplit("_", 1)[-1].rsplit(".", 1)[0]: each for each in told[::-1]}
    for row in table.to_dicts():
        values = by_number[row["accession"]]
        assert row["event_time"] == latest_acceptance_ns(parse_filing_date(values["filing_date"]))
        present = {
            name.removeprefix("item_"): tidy(text) for name, text in values.items() if name[:5] == "item_" and text
        }
        found = {
            item["name"]: row["text"][item["start"] : item["end"]] for item in row["items"] if item["start"] is not None
        }
        assert found == present
