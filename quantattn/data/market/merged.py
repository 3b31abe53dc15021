"""Events merged into tokens, cut at every decision: which rows of the tokens decisions are made at, and the proof.

A decision may depend on no event after its own. What a merged token says depends on events up to the end of its
stretch, so a stretch ends with every decision, and the token of a decision ends with the decision's own event. Every
event that qualifies as a decision cuts, whether or not it has a label: having one depends on what comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.carried import TokenVectors
from quantattn.data.merges import EVENT
from quantattn.data.pack import TokenTable
from quantattn.data.protocol.findings import Check, utc
from quantattn.data.protocol.perturb import past_only
from quantattn.data.tokens import Tokenizer

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
MERGED_LEAK = "merged token depends on the future"


@dataclass(frozen=True)
class MergedTokens:
    """Tokens, and the events that they end with.

    Attributes:
        table: R tokens. What is not in the joint vocabulary, and the time, are those of a token's last event.
        last: (R,) rows of these events in the table of events.
        known: (R,) ns UTC, when the stretch of a token is over and the token is what it is, −1 for never: the end of an
            entity is no decision.
    """

    table: TokenTable
    last: Ints
    known: Ints

    @staticmethod
    def of(table: TokenTable, tokenizer: Tokenizer, decisions: Ints) -> MergedTokens:
        """Merge a table of one token an event; it stays as it is when the tokenizer does not merge.

        Args:
            table: of `token_table`.
            tokenizer: that it was made with.
            decisions: (Q,) rising rows of all events that qualify as decisions.
        """
        rows = np.arange(len(table), dtype=np.int64)
        if tokenizer.merges is None:
            return MergedTokens(table, rows, table.time)
        codes = np.asarray(table.fields[EVENT], np.int64)
        tokens, last = tokenizer.merges.encode(codes, stretch_ends(table, decisions))
        fields = {name: column[last] for name, column in table.fields.items()}
        offsets = np.searchsorted(last, table.offsets)
        vectors = {
            name: TokenVectors(np.searchsorted(last, each.rows), each.values) for name, each in table.vectors.items()
        }
        fields[EVENT] = tokens.astype(np.uint16)
        made = replace(table, fields=fields, time=table.time[last], offsets=offsets, vectors=vectors)
        place = np.searchsorted(decisions, last)
        ending = np.append(decisions, len(table))[place]
        decided = (ending < len(table)) & (table.entity_of(np.minimum(ending, len(table) - 1)) == table.entity_of(last))
        return MergedTokens(made, last, np.where(decided, np.append(table.time, -1)[ending], -1))

    def rows(self, events: Ints) -> Ints:
        """Rows of the tokens that end with these events, which must all end one."""
        place = np.searchsorted(self.last, events)
        if not np.array_equal(self.last[np.minimum(place, len(self.last) - 1)], events):
            raise ValueError(
                "a decision lies within a token: its event must qualify as a decision where events are cut"
            )
        return place


def stretch_ends(table: TokenTable, decisions: Ints) -> Bools:
    """(R,) events after which no token goes on: decisions, the last of an entity, and those beside a carried vector.

    A token that carries a vector says one event.
    """
    stop = np.zeros(len(table), np.bool_)
    stop[decisions] = True
    stop[table.offsets[1:][np.diff(table.offsets) > 0] - 1] = True
    for each in table.vectors.values():
        stop[each.rows] = True
        stop[each.rows[each.rows > 0] - 1] = True
    return stop


def with_merges(
    tokenizer: Tokenizer,
    events: pl.DataFrame,
    seen: Bools,
    decisions: Ints,
    joint: Sequence[str] | None,
    merges: int,
) -> Tokenizer:
    """The tokenizer with a joint vocabulary and merges, fitted on the events that may be seen; as it is without."""
    if joint is None:
        return tokenizer
    stop = np.zeros(events.height, np.bool_)
    stop[decisions] = True
    stop[np.cumsum(events["entity"].rle().struct.field("len").to_numpy().astype(np.int64)) - 1] = True
    return tokenizer.joined(events, joint, merges, seen, stop)


def require_stretches(merges: int, decision_every: int, decision_kinds: Sequence[int] | None) -> None:
    """Refuse to merge where every event is a decision.

    Raises:
        ValueError: saying what to ask for.
    """
    if merges and decision_every == 1 and decision_kinds is None:
        raise ValueError(
            f"{merges} merges would join events, but each event is a decision, which may not depend on the next: ask "
            "for fewer decisions (decision_every or decision_kinds), or for merges = 0"
        )


def merged_past(
    table_of: Callable[[pl.DataFrame], TokenTable],
    decide: Callable[[pl.DataFrame], Ints],
    tokenizer: Tokenizer,
    events: pl.DataFrame,
    as_of: int,
) -> tuple[Check, ...]:
    """Merge the past again with its future cut off: every token of a stretch that was over must come out the same.

    Args:
        table_of: event table → its tokens, one an event.
        decide: event table → rows of its decisions.
        tokenizer: of these tokens; where it does not merge, there is nothing to check.
        events: the whole table.
        as_of: ns UTC; events available later are cut off.
    """
    if tokenizer.merges is None:
        return ()

    def tokens(known: pl.DataFrame) -> pl.DataFrame:
        return _tokens(MergedTokens.of(table_of(known), tokenizer, decide(known)))

    whole, past = tokens(events), tokens(events.filter(pl.col("available_time") <= as_of))
    known = int((whole["available_time"] <= as_of).sum())
    if known != past.height:
        sentence = f"{known} tokens were known by {utc(as_of)}, and {past.height} when nothing after it is known"
        return (Check(MERGED_LEAK, "failed", known, abs(known - past.height), sentence),)
    columns, again = ({each.name: each for each in frame.get_columns()} for frame in (whole, past))
    return (replace(past_only(lambda _: again, whole, columns, as_of), name=MERGED_LEAK),)


def _tokens(merged: MergedTokens) -> pl.DataFrame:
    """The tokens of the stretches that a decision ended, in order; `available_time` is when it did."""
    table, over = merged.table, merged.known >= 0
    entity = np.repeat(np.arange(len(table.entities)), np.diff(table.offsets))
    columns = {"available_time": merged.known, "time": table.time, "entity": np.asarray(table.entities)[entity]}
    return pl.DataFrame({**columns, **table.fields}).filter(pl.Series(over))
