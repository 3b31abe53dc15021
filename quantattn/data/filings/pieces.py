"""Documents in tokens → sequences: each between a begin and an end code, whole or cut into windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from quantattn.data.filings.tokenizer import BEGIN, END
from quantattn.data.pack import Decisions, SequenceSet, TokenTable

OnLong = Literal["error", "window", "keep"]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pieces:
    """D documents as S sequences, those of a document one after the other.

    Attributes:
        of: (S,) int64, rising: the document that each sequence is a piece of.
        offsets: (S + 1,) int64, sequence s is tokens[offsets[s]:offsets[s + 1]].
        tokens: codes of all of them, begin and end codes included.
        max_seq_len: no sequence may be longer; where documents stay whole, the length of the longest.
    """

    of: Ints
    offsets: Ints
    tokens: Ints
    max_seq_len: int

    def sequences(
        self, time: Ints, names: Sequence[str], targets: dict[str, npt.NDArray[np.generic]] | None = None
    ) -> SequenceSet:
        """Each piece as a sequence with a decision at its last token.

        Args:
            time: (D,) int64 ns UTC at which each document became public.
            names: D names, for what is said of a document.
            targets: name → (S, …) of the decisions.

        Raises:
            ValueError: a piece is longer than `max_seq_len`.
        """
        table = TokenTable(
            fields={"token": self.tokens},
            time=np.repeat(time[self.of], np.diff(self.offsets)),
            offsets=self.offsets,
            entities=tuple(names[document] for document in self.of.tolist()),
        )
        return SequenceSet(table, Decisions(self.offsets[1:] - 1, targets or {}), self.max_seq_len, "document")


def cut_documents(codes: Sequence[Ints], max_seq_len: int, on_long: OnLong) -> Pieces:
    """Sequences of documents given as the codes of their texts.

    Args:
        codes: of each document, without begin and end.
        max_seq_len: tokens of a sequence at most, begin and end included.
        on_long: what becomes of a longer document: "error" leaves it to `Pieces.sequences` to refuse it; "window" cuts
            it into windows of at most `max_seq_len` tokens; "keep" keeps it whole, and `max_seq_len` is not used.
    """
    whole = [np.concatenate([[BEGIN], each, [END]]).astype(np.int64) for each in codes]
    longest = max((len(each) for each in whole), default=1)
    size = max_seq_len if on_long == "window" else longest
    pieces = [(n, each[at : at + size]) for n, each in enumerate(whole) for at in range(0, len(each), size)]
    lengths = np.asarray([len(piece) for _, piece in pieces], np.int64)
    return Pieces(
        of=np.asarray([n for n, _ in pieces], np.int64),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        tokens=np.concatenate([piece for _, piece in pieces]) if pieces else np.zeros(0, np.int64),
        max_seq_len=longest if on_long == "keep" else max_seq_len,
    )
