"""How much an item changed from one filing of a company to its next: 1 − cosine of what either says.

Cohen, Malloy and Nguyen 2020 ("Lazy prices", Journal of Finance 75, pages 1371–1415) find that returns are low after
filings whose text changed. A filing is compared with the last one of the same company and family of forms that was
public strictly before it: 10-K with 10-K, its variants included. Three vectors stand for an item: the embedding of a
model; the counts n_t of its words; and n_t · (1 + ln((1 + N) / (1 + df_t))), of N items and df_t of them with the word
t in filings of any company that were public strictly before. So no value depends on a later filing.
"""

from __future__ import annotations

import io
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import dataframely as dy
import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.files import put
from quantattn.data.filings.embedding_table import read_embedding_table
from quantattn.data.filings.forms import family, is_amendment
from quantattn.data.filings.item_names import scheme_of
from quantattn.data.filings.item_table import cut_all, item_names
from quantattn.data.filings.items import FOUND
from quantattn.data.filings.word_counts import count_words
from quantattn.data.schema import Events, Filings, check

AMENDMENT = "amendment"
FIRST = "first filing"
NOT_RECOGNISED = "no item is recognised"
NOT_YET = "the form had no such item yet"
NOT_ASKED = "not asked for"
NO_EMBEDDING = "no embedding"
NO_EARLIER_EMBEDDING = "no embedding of the earlier filing"
SEEN = "the model had seen later filings"
UNKNOWN = "the model does not say what it had seen"
Floats = npt.NDArray[np.float64]


class FilingChanges(Events):
    """One filing a row, with what its item changed by since the filing before.

    `item`: its name. `reason`: why nothing is compared; null where it is. `earlier_accession`,
    `earlier_available_time`: what it is compared with, public strictly before. `change_words`, `change_tfidf`:
    1 − cosine of counts of words, and of those weighed by how rare a word is. `words`, `earlier_words`: how many there
    are. `fitted_items`: N. `change_embedding`: 1 − cosine of embeddings. `embedding_reason`: why there is none.
    """

    form = dy.String(nullable=False, min_length=1)
    accession = dy.String(nullable=False, min_length=1)
    item = dy.String(nullable=False)
    reason = dy.String(nullable=True)
    earlier_accession = dy.String(nullable=True)
    earlier_available_time = dy.Int64(nullable=True)
    change_embedding = dy.Float64(nullable=True, min=0.0, max=2.0)
    change_words = dy.Float64(nullable=True, min=0.0, max=1.0)
    change_tfidf = dy.Float64(nullable=True, min=0.0, max=1.0)
    words = dy.Int64(nullable=True, min=0)
    earlier_words = dy.Int64(nullable=True, min=0)
    fitted_items = dy.Int64(nullable=True, min=1)
    embedding_reason = dy.String(nullable=True)

    @dy.rule()
    def looks_back(cls) -> pl.Expr:
        """What a filing is compared with was public before it."""
        return pl.col("earlier_available_time").is_null() | (
            pl.col("earlier_available_time") < pl.col("available_time")
        )

    @dy.rule()
    def value_or_reason(cls) -> pl.Expr:
        """A filing has a value or a reason."""
        return pl.col("reason").is_null() == pl.col("change_words").is_not_null()


def filing_changes(
    filings: pl.DataFrame, item: object = "1A", embeddings: pl.DataFrame | None = None, *, in_sample: bool = False
) -> pl.DataFrame:
    """The change of an item in every filing whose form has it.

    Args:
        filings: in the schema `Filings`, in canonical order; with `annual_report`, items are followed there.
        item: its name: 1A (10-K), II.1A (10-Q).
        embeddings: one row an item, as scoring with `unit=item output=embeddings` writes them: `accession`, `item`,
            `embedding`, and `seen_until`, from which time on (ns UTC) they may be used.
        in_sample: whether to use embeddings of before `seen_until` too, for a look at the past and no backtest.

    Returns:
        A table in the schema `FilingChanges`, in canonical order.

    Raises:
        ValueError: no form among the filings has the item; embeddings without its columns, or two of one item.
    """
    (name,) = item_names([item])
    kinds = [family(form) for form in filings["form"]]
    has_item = [
        kind is not None and name in scheme_of(form).names for kind, form in zip(kinds, filings["form"], strict=True)
    ]
    own = filings.filter(pl.Series(has_item, dtype=pl.Boolean))
    if not own.height:
        raise ValueError(f"none of {filings.height} filings has a form with an item {name}")
    vectors = None if embeddings is None else _Vectors.of(embeddings, name, in_sample)
    in_time = own.with_row_index("row").sort("available_time", "row")
    rows: list[dict[str, object]] = [{}] * own.height
    for row, values in zip(in_time["row"], _changes(_read(in_time, name), vectors), strict=True):
        rows[row] = values
    found = {column: FilingChanges.columns()[column].dtype for column in _FOUND}
    keys = own.select("entity", "event_time", "available_time", "seq", "form", "accession", item=pl.lit(name))
    return check(pl.concat([keys, pl.DataFrame(rows, schema=found)], how="horizontal"), FilingChanges)


def scan_changes(
    filings: pl.LazyFrame, item: object = "1A", embeddings: str | Path | None = None, *, in_sample: bool = False
) -> pl.DataFrame:
    """`filing_changes` of a source's table and of the Delta table of embeddings in a folder.

    Raises:
        ValueError: as `filing_changes`; the folder holds no such table, or not all of it.
    """
    table = None if embeddings is None else read_embedding_table(embeddings)
    return filing_changes(check(filings.collect(), Filings), item, table, in_sample=in_sample)


def require_name(path: Path) -> Path:
    """The path of a table of changes; ValueError unless it ends in .parquet or .csv."""
    if path.suffix not in (".parquet", ".csv"):
        raise ValueError(f"a table of changes is written as .parquet or .csv, got {path.name!r}")
    return path


def write_changes(table: pl.DataFrame, path: Path) -> None:
    """Write a table as Parquet or CSV, by the ending of the name, whole or not at all."""
    buffer = io.BytesIO()
    if require_name(path).suffix == ".csv":
        table.write_csv(buffer)
    else:
        table.write_parquet(buffer)
    put(path, buffer.getvalue())


_FOUND = tuple(FilingChanges.columns())[tuple(FilingChanges.columns()).index("reason") :]


@dataclass(frozen=True)
class _Filing:
    """One filing, with the words of its item or why there are none to compare."""

    entity: str
    family: str
    accession: str
    time: int
    reason: str | None
    words: Counter[str]


def _read(own: pl.DataFrame, name: str) -> Iterator[_Filing]:
    keys = own.select("entity", "form", "accession", "available_time").iter_rows()
    for (entity, form, accession, time), items in zip(keys, cut_all(own), strict=True):
        status = items.status.get(name)
        reason = NOT_YET if status is None else None if status == FOUND else f"item {status}"
        if not items.sections:
            reason = NOT_RECOGNISED
        if is_amendment(form):
            reason = AMENDMENT
        words = count_words(items[name]) if reason is None else Counter[str]()
        yield _Filing(entity, family(form) or "", accession, time, reason, words)


def _changes(filings: Iterator[_Filing], vectors: _Vectors | None) -> Iterator[dict[str, object]]:
    """The values of each filing; they come in order of time, and of each company the last one is kept in memory."""
    seen: dict[str, _Seen] = defaultdict(_Seen)
    last: dict[tuple[str, str], _Filing] = {}
    for _, at_once in groupby(filings, key=lambda each: each.time):
        public = list(at_once)
        for each in public:
            yield _row(each, last.get((each.entity, each.family)), seen[each.family], vectors)
        # Only now: filings that become public at one time are not earlier than one another.
        for each in public:
            if each.reason != AMENDMENT:
                last[each.entity, each.family] = each
            if each.reason is None:
                seen[each.family].add(each.words)


def _row(each: _Filing, earlier: _Filing | None, seen: _Seen, vectors: _Vectors | None) -> dict[str, object]:
    if each.reason is not None:
        return {"reason": each.reason, "embedding_reason": each.reason}
    if earlier is None:
        return {"reason": FIRST, "embedding_reason": FIRST}
    compared: dict[str, object] = {
        "earlier_accession": earlier.accession,
        "earlier_available_time": earlier.time,
    }
    if earlier.reason is not None:
        reason = f"earlier filing: {earlier.reason}"
        return compared | {"reason": reason, "embedding_reason": reason}
    terms = sorted(each.words.keys() | earlier.words.keys())
    now, before = (np.array([words[term] for term in terms], np.float64) for words in (each.words, earlier.words))
    weight = seen.weights(terms)
    change, why = (None, NOT_ASKED) if vectors is None else vectors.change(each, earlier)
    return compared | {
        "change_embedding": change,
        "embedding_reason": why,
        "change_words": min(one_minus_cosine(now, before), 1.0),
        "change_tfidf": min(one_minus_cosine(now * weight, before * weight), 1.0),
        "words": each.words.total(),
        "earlier_words": earlier.words.total(),
        "fitted_items": seen.items,
    }


def one_minus_cosine(a: Floats, b: Floats) -> float:
    """1 − a·b / √(a·a · b·b), in [0, 2] and exactly 0 for equal vectors; 1 where one of them is zero."""
    norm = math.sqrt(float(a @ a) * float(b @ b))
    return min(max(1.0 - float(a @ b) / norm, 0.0), 2.0) if norm > 0 else 1.0


@dataclass
class _Seen:
    """How many items were public so far, and in how many of them each word stands."""

    items: int = 0
    holding: Counter[str] = field(default_factory=Counter)

    def add(self, words: Counter[str]) -> None:
        self.items += 1
        self.holding.update(words.keys())

    def weights(self, terms: list[str]) -> Floats:
        """(n,) 1 + ln((1 + N) / (1 + df)) of words; one that stands nowhere has the most."""
        holding = np.array([self.holding[term] for term in terms], np.float64)
        return np.asarray(1.0 + np.log((1.0 + self.items) / (1.0 + holding)), np.float64)


@dataclass(frozen=True)
class _Vectors:
    """Embeddings of one item by accession number, each with the time from which on it may be used."""

    by_accession: Mapping[str, tuple[Floats, int | None]]
    in_sample: bool

    @staticmethod
    def of(table: pl.DataFrame, name: str, in_sample: bool) -> _Vectors:
        lacking = [column for column in ("accession", "item", "embedding") if column not in table.columns]
        if lacking:
            raise ValueError(f"the table of embeddings lacks {', '.join(lacking)}; it has {', '.join(table.columns)}")
        own = table.filter(pl.col("item") == name)
        if not own.height:
            raise ValueError(f"the table of embeddings has no item {name}; write it with unit=item items=[{name}]")
        twice = own.filter(pl.col("accession").is_duplicated())
        if twice.height:
            raise ValueError(f"the table of embeddings has item {name} of {twice['accession'][0]} twice")
        until = own["seen_until"].to_list() if "seen_until" in own.columns else [None] * own.height
        vectors = (np.asarray(each, np.float64) for each in own["embedding"].to_list())
        return _Vectors(dict(zip(own["accession"], zip(vectors, until, strict=True), strict=True)), in_sample)

    def change(self, each: _Filing, earlier: _Filing) -> tuple[float | None, str | None]:
        """1 − cosine, or why it may not be known."""
        now, before = self.by_accession.get(each.accession), self.by_accession.get(earlier.accession)
        if now is None or before is None:
            return None, NO_EMBEDDING if now is None else NO_EARLIER_EMBEDDING
        if not self.in_sample:
            if now[1] is None or before[1] is None:
                return None, UNKNOWN
            if each.time < max(now[1], before[1]):
                return None, SEEN
        return one_minus_cosine(now[0], before[0]), None
