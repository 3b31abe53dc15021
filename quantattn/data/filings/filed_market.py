"""A made market in which what a filing says decides how the price moves after it; see docs/filings_and_events.md."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from quantattn.data.bayes import Bayes
from quantattn.data.filings.stream import hashed_words, read_embeddings
from quantattn.data.market.filed import FilingVectors, with_filings
from quantattn.data.schema import CANONICAL_ORDER, MARKER, Filings, check
from quantattn.data.sources.source import Source, SourceReport
from quantattn.data.synthetic import SyntheticMarket

GENERATOR = 1  # raise it whenever the texts change
RAISED, LOWERED = "above", "below"
DELAY = 15 * 60 * 10**9
"""From acceptance to publication, ns."""
_NOISE = (
    "The Board of Directors met and approved the minutes of its last meeting.",
    "The Company repurchased shares under its existing programme.",
    "A committee reviewed the lease of our distribution centre.",
    "We replaced part of the fleet and retired older equipment.",
    "Our credit agreement was amended without a change of its covenants.",
    "The annual meeting of shareholders will be held in the spring.",
    "An officer has notified the Company of his retirement.",
    "We moved the registered office to another floor of the same building.",
    "The Company completed the integration of a small acquisition.",
    "Our independent auditor was appointed for another year.",
)


@dataclass(frozen=True)
class FiledMarket(SyntheticMarket):
    """A synthetic market whose markers are filings: the sign of a marker stands in the filing's words alone.

    In the place of each marker of a `SyntheticMarket` with one channel a filing of that company becomes public, which
    says that results will be above or below what was expected. No other event tells: the decision that follows goes by
    it, and by the flow before it, and each filing is used by one decision, so that no price tells of it either.

    Attributes:
        vector_size: numbers of a filing's vector, its hashed words.
        embeddings: folder of embeddings of these filings (`made_filings`), which then stand for them instead.
        read: False leaves the vectors out: filings come, and nobody reads them.
    """

    marker_distance: int = 36
    channels: int = 1
    copies: int = 1
    vector_size: int = 64
    embeddings: str | None = None
    read: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.channels, self.copies) != (1, 1):
            got = f"{self.channels} and {self.copies}"
            raise ValueError(f"a filing speaks of one decision: channels and copies must be 1, got {got}")

    def filings(self) -> pl.DataFrame:
        """The filings in the schema `Filings` with `sign`, +1 where the sentence says above."""
        frames = []
        for index, name in enumerate(self.names):
            columns, _ = self.stream(index)
            rows = np.flatnonzero(columns["kind"] == MARKER)
            sign, time = columns["side"][rows].astype(np.int64), columns["available_time"][rows]
            rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(index, 1)))
            texts = [_text(rng, name, each > 0) for each in sign.tolist()]
            frames.append(
                pl.DataFrame({"available_time": time, "seq": np.arange(len(rows)), "text": texts, "sign": sign}).select(
                    pl.lit(name).alias("entity"),
                    (pl.col("available_time") - DELAY).alias("event_time"),
                    *("available_time", "seq"),
                    pl.lit("8-K").alias("form"),
                    pl.format("{}-{}", pl.lit(name), pl.col("seq")).alias("accession"),
                    *("text", "sign"),
                )
            )
        return check(pl.concat(frames).sort(CANONICAL_ORDER), Filings)

    def bayes(self, context: int | None = None) -> Bayes:
        """The best expected figures with the last `context` events in view; where filings are not read, by the flow."""
        if self.read:
            return super().bayes(context)
        seen = self.flow_events if context is None else min(self.flow_events, context - 1)
        log_loss, accuracy, brier = self.law.expected(seen, False)
        return Bayes(log_loss, accuracy, float(np.log(2)), brier, context, 0.0)

    def source(self) -> Source:
        """The market without its markers, with filings in their place."""
        joined = with_filings(self.events(), self.vectors())
        return joined if self.read else Source(joined.frame.drop("filing"), joined.instruments, joined.report)

    def events(self) -> Source:
        """The market without markers and without filings."""
        made = super().source()
        return replace(made, frame=made.frame.filter(pl.col("kind") != MARKER))

    def vectors(self) -> FilingVectors:
        """What `source` joins."""
        if self.embeddings is not None:
            return read_embeddings(self.embeddings)
        return hashed_words(self.filings(), self.vector_size)


def made_filings(
    entities: int = 24, events_per_entity: int = 8_192, marker_distance: int = 36, seed: int = 0
) -> Source:
    """The filings of the `FiledMarket` of these settings as a source, for a model of filings to be trained on them."""
    market = FiledMarket(entities, events_per_entity, marker_distance, seed=seed)
    table = market.filings().drop("sign")
    settings = f"{GENERATOR} {entities} {events_per_entity} {marker_distance} {seed}"
    files = {"made filings": hashlib.sha256(settings.encode()).hexdigest()}
    return Source(table.lazy(), (), SourceReport(table.height, files=files))


def _text(rng: np.random.Generator, company: str, raised: bool) -> str:
    """A short 8-K: the sentence that counts, somewhere among others."""
    said = f"We now expect results for the year {RAISED if raised else LOWERED} our earlier outlook."
    sentences = [_NOISE[i] for i in rng.choice(len(_NOISE), 4, replace=False)]
    sentences.insert(int(rng.integers(5)), said)
    return f"FORM 8-K\n{company}\nItem 8.01. Other Events\n" + "\n".join(sentences)
