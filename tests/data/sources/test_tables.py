"""Several tables as one stream of events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quantattn.data.schema import Events, check
from quantattn.data.sources.tables import scan_tables

DAY = 86_400 * 10**9
ACCOUNT = {"path": "account.csv*", "id": "account", "time": "day", "time_format": "day"}
TABLES: dict[str, Any] = {
    "account": ACCOUNT | {"columns": {"town": "category"}},
    "card": ACCOUNT
    | {"path": "card.csv", "id": "card", "through": {"path": "account.csv", "id": "card", "to": "account"}}
    | {"columns": {"limit": "decimal2"}, "delay": "1d"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "account.csv").write_text("account,card,day,town\nb,7,3,x\na,8,1,y\n")
    (tmp_path / "card.csv").write_text("card,day,limit\n7,2,10.5\n8,4,20\n")
    return tmp_path


def test_rows_of_all_tables_in_one_order_of_time(folder: Path) -> None:
    source = scan_tables(folder, TABLES)
    frame = check(source.frame.collect(), Events)
    assert frame.select("entity", "event_time", "available_time", "table", "town", "limit").rows() == [
        ("a", DAY, DAY, "account", "y", None),
        ("a", 4 * DAY, 5 * DAY, "card", None, 2000),
        ("b", 3 * DAY, 3 * DAY, "account", "x", None),
        ("b", 2 * DAY, 3 * DAY, "card", None, 1050),
    ], "of two events known at one time the one of the earlier table comes first"
    assert list(source.columns) == ["table", "town", "limit"]
    assert source.report.rows_read == 4
    assert set(source.report.files) == {"account.csv", "card.csv"}
    assert "card: 2 rows" in source.report.notes


def test_bad_rows_are_counted_by_table(folder: Path) -> None:
    with (folder / "card.csv").open("a") as file:
        file.write("9,5,1\n7,5,1.005\n")
    with pytest.raises(ValueError, match=r"tables\.card: card\.csv:4: card is not in account\.csv"):
        scan_tables(folder, TABLES)
    source = scan_tables(folder, TABLES, on_bad="quarantine", set_aside=folder / "bad")
    assert source.report.rows_set_aside == {
        "card: card is not in account.csv": 1,
        "card: column 'limit' is not a decimal number with at most 2 places that fits 64 bits": 1,
    }
    assert (folder / "bad" / "card.csv").read_text().count("\n") == 3


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({}, "tables must name one or more"),
        ({"card": {"id": "card"}}, "tables.card: path is missing"),
        ({"card": ACCOUNT | {"colour": 1}}, "tables.card: got an unexpected keyword argument 'colour'"),
        (
            TABLES | {"more": TABLES["account"] | {"columns": {"limit": "category"}, "rename": {"town": "limit"}}},
            "tables.more: column 'limit' has another type in an earlier table",
        ),
        ({"a": ACCOUNT | {"columns": {"table": "category"}, "rename": {"town": "table"}}}, "is called 'table'"),
    ],
)
def test_settings_that_cannot_be(folder: Path, changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        scan_tables(folder, changed)
    assert sentence in str(refused.value)


def test_a_file_both_plain_and_compressed_is_not_read_twice(folder: Path) -> None:
    (folder / "account.csv.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"names account\.csv\.gz both plain and compressed|names account\.csv both"):
        scan_tables(folder, TABLES)
