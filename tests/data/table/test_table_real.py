"""The bank tables of two contests as they are, odd shapes and all."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from quantattn.cli.config import compose, plain
from quantattn.cli.instantiate import instantiate
from quantattn.data.prepared import PARTS, Prepared
from quantattn.data.protocol import ByEntity
from quantattn.data.sources.table import TableSource, scan_table
from quantattn.data.table import Outcomes, prepare_table
from quantattn.data.table.twins import TWINS

EVENTS = {
    "account.asc.gz": ("account_id", "date", "yymmdd", {"frequency": "category", "district_id": "category"}, 4_500),
    "card.asc": ("disp_id", "issued", "%y%m%d %H:%M:%S", {"type": "category"}, 892),
    "loan.asc": ("account_id", "date", "yymmdd", {"amount": "integer", "payments": "decimal2"}, 682),
    "trans_first_rows.asc": ("account_id", "date", "yymmdd", {"amount": "decimal2", "bank": "category"}, 100),
}


def made(realdata: Path, experiment: str, folder: str) -> tuple[TableSource, Outcomes, Prepared]:
    """Source, outcomes and what is prepared, by the settings that ship."""
    given = plain(compose("train", [f"experiment={experiment}", f"data.path={realdata / 'events' / folder}"]))
    source, label = instantiate(given["data"]["source"], "source"), instantiate(given["labels"], "labels")
    prepared = prepare_table(source, label=label, split=ByEntity(stratify=True), **given["data"]["prepare"])
    return source, label, prepared


@pytest.mark.parametrize("name", EVENTS)
def test_every_row_of_a_dated_berka_table_is_read(realdata: Path, name: str) -> None:
    entity, time, form, columns, rows = EVENTS[name]
    source = scan_table(realdata / "events" / "berka" / name, id=entity, time=time, time_format=form, columns=columns)
    frame = source.frame.collect()
    assert (frame.height, source.report.rows_read, dict(source.report.rows_set_aside)) == (rows, rows, {})
    days = pl.from_epoch(frame["event_time"], time_unit="ns").dt.year()
    assert days.is_between(1993, 1998).all()


def test_sberbank_amounts_and_days_are_exact(realdata: Path) -> None:
    source, label, prepared = made(realdata, "sberbank", "sberbank_age")
    first = source.frame.filter(pl.col("entity") == "4").collect().row(0, named=True)
    assert (first["event_time"], first["small_group"], first["amount_rur"]) == (0, "1", 10_209), "4,0,1,10.209"
    assert source.report.rows_read == 1_000
    assert label.names(label.read()["label"]) == prepared.classes == ("0", "1", "2", "3")
    assert [len(prepared.entity[part]) for part in PARTS] == [60, 20, 20]


def test_berka_loans_see_their_terms_and_nothing_later(realdata: Path) -> None:
    source, label, prepared = made(realdata, "berka", "berka")
    assert source.report.rows_read == 4_500 + 892 + 100 + 682
    loans = label.read()
    assert loans["label"].value_counts().sort("label").rows() == [("A", 203), ("B", 31), ("C", 403), ("D", 45)]
    batch = prepared.test.pack(range(len(prepared.test)))
    last = batch.fields["loan_amount_code"][batch.positions]
    assert bool((last > 1).all()), "the last event of every history is the loan itself"
    terms = source.frame.filter(pl.col("table").is_in(["account", "loan"])).drop("seq").collect()
    whole = terms.group_by("entity").agg(history=pl.struct(pl.exclude("entity"))).join(loans, on="entity")
    twins = whole.filter(pl.col("history").is_duplicated()).group_by("history").agg("label")["label"]
    assert len(twins) == 10, "ten accounts with a loan stand in these tables twice, under two numbers"
    assert all(len(pair) == 2 and pair[0] == pair[1] for pair in twins.to_list()), "and with the same outcome"
    assert 0 < prepared.dropped[TWINS] <= 20
    assert prepared.audit.passed
