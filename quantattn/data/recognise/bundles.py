"""Folders whose files belong together under names that are known: tables of one bank, and shards that were prepared."""

from __future__ import annotations

import re
from pathlib import Path

from quantattn.data.recognise.formats import Claim, Format
from quantattn.data.recognise.look import Look
from quantattn.data.shards.layout import EVENTS, MANIFEST, PLAN

PREPARED = Format("prepared", "prepared shards", lambda look: None, "prepared")
SBERBANK = Format("sberbank", "Sberbank's age contest", lambda look: None, "table", "Europe/Moscow")
BERKA = Format("berka", "PKDD'99 bank data (Berka)", lambda look: None, "tables", "Europe/Prague")
BUNDLES = (PREPARED, SBERBANK, BERKA)
_CONTEST = ("client_id", "trans_date", "small_group", "amount_rur")
_BANK = ("account", "card", "disp", "loan", "trans")


def bundle(path: Path) -> tuple[Format, Claim] | None:
    """The bundle that a folder holds, if it does."""
    if (path / MANIFEST).is_file() and (path / PLAN).is_file() and (path / EVENTS).is_dir():
        return PREPARED, Claim(f"it holds {MANIFEST}, {PLAN} and a folder {EVENTS}, as `quantattn prepare` writes them")
    contest = path / "age-transactions.csv"
    if contest.is_file() and set(_CONTEST) <= set(Look.at(contest).header):
        return SBERBANK, Claim("it holds age-transactions.csv with the columns of that contest")
    names = [file.name for file in path.iterdir()]
    stems = {match[1] for name in names if (match := re.fullmatch(r"([a-z]+)[^.]*\.asc(?:\.gz)?", name))}
    if set(_BANK) <= stems:
        return BERKA, Claim(f"it holds the tables {', '.join(_BANK)} as .asc files")
    return None
