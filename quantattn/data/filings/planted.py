"""Made 10-K filings in which a sentence of Item 1A decides the sign of a number in Item 7; see docs/planted_filings.md.

Item 1A says whether the company is a net seller or a net buyer of a commodity, Item 7, a settable number of tokens
later, whether its price rose or fell and by how much operating income changed, but not in which direction. With s = +1
for a seller and d = +1 for a price that rose, the direction is that of s · d with probability 1 − noise:

    P(up | s, d) = 1 − noise if s · d = +1, else noise;    P(s = +1) = sellers,    P(d = +1) = 1/2.

So what any text tells is known: every figure below is a sum over four cases.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.bayes import Bayes, Floats
from quantattn.data.files import put
from quantattn.data.filings.clock import is_business_day, parse_acceptance, public_ns
from quantattn.data.filings.planted_text import BUYER, FELL, ROSE, SELLER, least_distance, write_text
from quantattn.data.schema import CANONICAL_ORDER, Filings, check
from quantattn.data.sources.source import Source, SourceReport

GENERATOR = 1  # raise it whenever the texts change
CLASSES = ("down", "up")
LABEL_DELAY = timedelta(days=1)
"""How long after a filing the direction is told, for splits in time."""
FIRST_YEAR, LAST_YEAR = 2006, 2025  # of filing; Item 1A was not asked for before

_WORDS = re.compile(rf"\b(?:{SELLER}|{BUYER}|{ROSE}|{FELL})\b")
_COLUMNS = {
    **{"accession": pl.String, "entity": pl.String, "accepted": pl.String, "exposure": pl.Int64, "move": pl.Int64},
    **{"amount": pl.Int64, "label": pl.Int64, "text": pl.String, "marker_end": pl.Int64, "question_start": pl.Int64},
}


@dataclass(frozen=True)
class PlantedFilings:
    """Filings whose labels are drawn by a known law.

    Attributes:
        filings: how many, in years of `companies` each.
        companies: filers; each files once a year, on a business day from January to March.
        distance: tokens between the last sentence that says what the company is and the first about the price (tokens
            of a tokenizer that knows every word; others need more).
        first_distance: the same in the first year, from which it rises by equal ratios over `growing` years, as real
            filings grew; all have `distance` when None.
        growing: years before `distance` is reached; no later filing is shorter.
        copies: how often either is said, in three wordings by turns, which makes both easier to find.
        sellers: share of companies that are sellers. At 1/2 neither item alone tells anything.
        noise: how often the direction is the other one.
        seed: of all randomness. Filing i is a function of (seed, i) and the settings, not of how many there are.
    """

    filings: int = 2_000
    companies: int = 125
    distance: int = 1_000
    first_distance: int | None = None
    growing: int = 8
    copies: int = 24
    sellers: float = 0.7
    noise: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("filings", "companies", "copies", "growing"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, distance in (("distance", self.distance), ("first_distance", self.first_distance)):
            if distance is not None and distance < least_distance():
                raise ValueError(
                    f"{name} must be at least {least_distance()} tokens, which the headings between Items 1A and 7 and "
                    f"a sentence below each take; got {distance}"
                )
        if (self.first_distance or 0) > self.distance:
            raise ValueError(
                f"first_distance grows to distance = {self.distance} and is no more, got {self.first_distance}"
            )
        if not 0.5 <= self.sellers < 1:
            raise ValueError(f"sellers is a share of the companies and must lie in [0.5, 1), got {self.sellers}")
        if not 0 < self.noise < 0.5:
            raise ValueError(f"noise is the share of other directions and must lie in (0, 0.5), got {self.noise}")
        if self.filings > self.companies * (LAST_YEAR - FIRST_YEAR + 1):
            raise ValueError(
                f"{self.companies} companies that file once a year from {FIRST_YEAR} to {LAST_YEAR} make no "
                f"{self.filings} filings; raise companies"
            )

    def probability_up(self, exposure: npt.ArrayLike, move: npt.ArrayLike) -> Floats:
        """P(up | what was read): exposure s is +1, −1, or 0 when not read; move d likewise; broadcasts.

        Without d it is exactly 1/2, whatever s is: d is fair. Without s it goes by the share of sellers.
        """
        s, d = np.asarray(exposure, np.float64), np.asarray(move, np.float64)
        mean = np.where(s == 0, 2 * self.sellers - 1, s)
        return np.asarray(0.5 + (0.5 - self.noise) * mean * d, np.float64)

    def bayes(self, item_1a: bool = True, item_7: bool = True) -> Bayes:
        """The best expected figures of a reader of these parts: a sum over what they can say."""
        s = np.array([1.0, -1.0] if item_1a else [0.0])
        d = np.array([1.0, -1.0] if item_7 else [0.0])
        chance = np.array([self.sellers, 1 - self.sellers])[:, None] / 2 if item_1a else np.array([[0.5]])
        weight = np.broadcast_to(chance if item_7 else 2 * chance, (len(s), len(d)))
        up = self.probability_up(s[:, None], d[None, :])
        loss = -(up * np.log(up) + (1 - up) * np.log1p(-up))
        log_loss, accuracy, brier = (float((weight * x).sum()) for x in (loss, np.maximum(up, 1 - up), up * (1 - up)))
        return Bayes(log_loss, accuracy, float(np.log(2)), brier, None, float(item_1a and item_7))

    def read(self, text: str) -> tuple[int, int]:
        """(s, d) as the text tells, 0 for what it does not; all that a text tells of its label."""
        words = set(_WORDS.findall(text))
        return int(SELLER in words) - int(BUYER in words), int(ROSE in words) - int(FELL in words)

    def bayes_of(self, texts: Iterable[str]) -> Bayes:
        """The best expected figures of a reader of these texts, pieces of the filings, on average over them."""
        read = Counter((s != 0, d != 0) for s, d in map(self.read, texts))
        return Bayes.mixture([self.bayes(*parts) for parts in read], list(read.values()))

    def distance_in(self, year: int) -> int:
        """Tokens between the two places in a year, counted from 0: first · (distance / first)^(year / growing)."""
        if self.first_distance is None or year >= self.growing:
            return self.distance
        ratio: float = (self.distance / self.first_distance) ** (year / self.growing)
        return round(self.first_distance * ratio)

    def truth(self) -> pl.DataFrame:
        """One row a filing, in order of making.

        Columns: `accession`, `entity` (CIK), `accepted` (New York, as EDGAR writes it), `exposure` and `move` (s, d),
        `amount` (change of income in million dollars, with its sign), `label` (0 down, 1 up), `text`, and the
        characters of it at which the last sentence of Item 1A about the company ends (`marker_end`) and the first of
        Item 7 about the price begins (`question_start`).
        """
        return pl.DataFrame([self._row(number) for number in range(self.filings)], schema=_COLUMNS, orient="row")

    def source(self) -> Source:
        """The filings as a source; made now and held in memory.

        Beside the columns of `Filings`: `label`, `label_start` and `label_end` (the direction is told a day after the
        filing), `last_label`, that of the company's filing of the year before, −1 when there was none, and `move`.
        """
        made = self.truth().with_row_index("seq")
        accepted = [parse_acceptance(stamp) for stamp in made["accepted"]]
        available = [public_ns(time) for time in accepted]
        delay = LABEL_DELAY // timedelta(microseconds=1) * 1_000
        table = made.select(
            "entity",
            pl.Series("event_time", accepted, pl.Int64),
            pl.Series("available_time", available, pl.Int64),
            pl.col("seq").cast(pl.Int64),
            pl.lit("10-K").alias("form"),
            *("accession", "text", "move", "label"),
            pl.Series("label_start", available, pl.Int64),
            pl.Series("label_end", available, pl.Int64) + delay,
        )
        table = table.sort(CANONICAL_ORDER).with_columns(
            last_label=pl.col("label").shift(1).over("entity").fill_null(-1)
        )
        settings = json.dumps({"generator": GENERATOR, **asdict(self)}, sort_keys=True)
        report = SourceReport(table.height, files={"planted": hashlib.sha256(settings.encode()).hexdigest()})
        return Source(check(table, Filings).lazy(), (), report)

    def write(self, folder: str | Path) -> None:
        """Write each filing as EDGAR keeps it, a full submission in `folder`/ACCESSION.txt."""
        for row in self.truth().iter_rows(named=True):
            put(Path(folder) / f"{row['accession']}.txt", _submission(row).encode())

    def _row(self, number: int) -> tuple[object, ...]:
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(number,)))
        year, company = FIRST_YEAR + number // self.companies, number % self.companies
        seller, rose, other = rng.random() < self.sellers, rng.random() < 0.5, rng.random() < self.noise
        up, amount = (seller == rose) != other, int(rng.integers(1, 100))
        accepted = _acceptance(rng, year)
        cik = f"{company + 1:010d}"
        made = write_text(
            rng,
            company=f"Company {company + 1}",
            year=year - 1,
            distance=self.distance_in(year - FIRST_YEAR),
            copies=self.copies,
            seller=seller,
            rose=rose,
            amount=amount,
        )
        accession = f"{cik}-{year % 100:02d}-{number:06d}"
        signs = 2 * int(seller) - 1, 2 * int(rose) - 1, amount if up else -amount, int(up)
        return (accession, cik, accepted, *signs, made.text, made.marker_end, made.question_start)


def baseline_inputs(rows: pl.DataFrame) -> dict[str, npt.NDArray[np.generic]]:
    """What the baselines read of these rows of a source.

    Returns:
        `features` (Q, 1) float64, d: all that Item 7 tells of its own number. `persistence` (Q,) int64, the company's
        last label.
    """
    return {"features": rows.select("move").to_numpy().astype(np.float64), "persistence": rows["last_label"].to_numpy()}


def law_in_sight(bayes: Bayes) -> str:
    """What is possible with what the sequences of the test decisions hold, as a sentence."""
    return (
        f"{bayes.marker_seen:.1%} of the test sequences hold what Item 1A says and what Item 7 says; the best possible "
        f"with what they hold is log loss {bayes.log_loss:.4f}, accuracy {bayes.accuracy:.4f}"
    )


def _acceptance(rng: np.random.Generator, year: int) -> str:
    """A moment of a business day from January to March, New York, while EDGAR publishes at once."""
    while True:
        day = date(year, 1, 2) + timedelta(days=int(rng.integers(88)))
        seconds = int(rng.integers(6 * 3_600, 17 * 3_600))
        if is_business_day(day):
            return f"{day:%Y%m%d}{seconds // 3_600:02d}{seconds // 60 % 60:02d}{seconds % 60:02d}"


def _submission(row: Mapping[str, Any]) -> str:
    number, day, year = row["accession"], row["accepted"][:8], int(row["accepted"][:4])
    return (
        f"<SEC-DOCUMENT>{number}.txt : {day}\n<SEC-HEADER>{number}.hdr.sgml : {day}\n"
        f"<ACCEPTANCE-DATETIME>{row['accepted']}\nACCESSION NUMBER:\t\t{number}\nCONFORMED SUBMISSION TYPE:\t10-K\n"
        f"PUBLIC DOCUMENT COUNT:\t\t1\nCONFORMED PERIOD OF REPORT:\t{year - 1}1231\nFILED AS OF DATE:\t\t{day}\n\n"
        f"FILER:\n\n\tCOMPANY DATA:\n\t\tCOMPANY CONFORMED NAME:\t\t\tCOMPANY {int(row['entity'])}\n"
        f"\t\tCENTRAL INDEX KEY:\t\t\t{row['entity']}\n</SEC-HEADER>\n<DOCUMENT>\n<TYPE>10-K\n<SEQUENCE>1\n<TEXT>\n"
        f"{row['text']}\n</TEXT>\n</DOCUMENT>\n</SEC-DOCUMENT>\n"
    )
