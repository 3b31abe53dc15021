"""Byte-level BPE over filings, fitted on training filings only; or a tokenizer that somebody has made.

Codes 0 … 3 are kept (see below); code 4 + t is token t of the BPE; behind its last token stand the marks (see `marks`),
in their order. Kept codes and marks are no tokens of the BPE, so no text, whatever stands in it, is encoded as one.

Digits are grouped by threes from the right, as they are written: 391035 is 391|035 and never 39|10|35, whatever was
frequent in training. Neither a word nor a number nor a line end is merged with what is beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as _Tokenizer

from quantattn.data.filings.marks import Mark, places_of
from quantattn.data.filings.ready_made import read_tokenizer, require_harmless
from quantattn.data.stored import count_of, of_stored

MISSING, MASKED, BEGIN, END = 0, 1, 2, 3
"""Kept codes: nothing, a masked token, the begin and the end of a document."""
RESERVED = 4
_FORMAT = "quantattn.filing-bpe"
GROUP = 3
"""Digits of a number that are one piece at most; a longer one is cut from the right, of 27 digits at most."""
PIECES = (
    r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+"
    rf"| ?\p{{N}}{{1,{GROUP}}}(?=(?:\p{{N}}{{{GROUP}}}){{0,8}}(?!\p{{N}}))| ?\p{{N}}{{{GROUP}}}"
    r"| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
"""What a text is cut into before any merge: that of GPT-2, but for the digits. Each try looks at 27 digits at most."""


@dataclass(frozen=True, eq=False)
class FilingTokenizer:
    """Text ↔ codes.

    Attributes:
        fitted_rows: number of training filings; 0 of a ready-made one.
        fitted_until: nanoseconds UTC, exclusive: every training filing was public before; 0 of a ready-made one.
        training_sha256: hash of the training texts, in order; of a ready-made one, of its file.
        marks: those that stand in the codes where items, tables and parts begin; none of them is in the text.
        ready_made: whether somebody else has made it, from texts and of a time that are not known.
    """

    _bpe: _Tokenizer
    fitted_rows: int
    fitted_until: int
    training_sha256: str
    marks: tuple[str, ...] = ()
    ready_made: bool = False

    @classmethod
    def fit(
        cls, frame: pl.DataFrame, *, fitted_until: int, vocabulary_size: int = 8_192, marks: tuple[str, ...] = ()
    ) -> FilingTokenizer:
        """Fit on the `text` of training filings.

        Args:
            frame: training filings, with `text` and `available_time`.
            fitted_until: end of the training time, nanoseconds UTC, exclusive.
            vocabulary_size: number of BPE tokens at most, the 256 bytes included.
            marks: see above; `quantattn.data.filings.marks.MARKS` has all.

        Raises:
            ValueError: a filing that became public at or after `fitted_until`, no filing at all, or a vocabulary too
                small for the bytes.
        """
        late = frame.filter(pl.col("available_time") >= fitted_until)
        if late.height:
            name = late["accession"][0] if "accession" in late.columns else f"row with time {late['available_time'][0]}"
            raise ValueError(
                f"{name} became public at {late['available_time'][0]} ns, at or after the end of the training time "
                f"{fitted_until} ns ({late.height} such filings); a tokenizer is fitted on training filings only"
            )
        require_vocabulary_size(vocabulary_size)
        texts = frame["text"].to_list()
        if not texts:
            raise ValueError("no training filing to fit a tokenizer on")
        return cls(_train(texts, vocabulary_size), len(texts), fitted_until, _hash(texts), marks)

    @classmethod
    def of_folder(cls, folder: str | Path, marks: tuple[str, ...] = ()) -> FilingTokenizer:
        """The tokenizer of a folder with a `tokenizer.json`, as Hugging Face's models have one; nothing is downloaded.

        Its codes are shifted by the kept ones, and the special tokens that it knows are ordinary text to it. What it
        does not know, or makes lower case, is not given back by `decode`.

        Raises:
            ValueError: no such file, none of a tokenizer, or one with a part that is not allowed, by name.
        """
        bpe, digest = read_tokenizer(Path(folder))
        return cls(bpe, 0, 0, digest, marks, ready_made=True)

    @property
    def tokens(self) -> int:
        """Number of tokens of the BPE, the added ones of a ready-made tokenizer included."""
        return max(self._bpe.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def codes(self) -> dict[str, int]:
        """Field → number of codes, kept codes and marks included."""
        return {"token": RESERVED + self.tokens + len(self.marks)}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of results should know of it."""
        told = "the tokenizer is ready-made: from which texts and until when it was fitted is not known to the audit"
        return (told,) if self.ready_made else ()

    @property
    def values(self) -> tuple[str, ...]:
        """Scaled fields: none."""
        return ()

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """(n,) int64 codes of a text, none of them a kept one."""
        return self.encode_all([text])[0]

    def encode_all(
        self, texts: Sequence[str], items: Sequence[Sequence[Mark]] | None = None
    ) -> list[npt.NDArray[np.int64]]:
        """Codes of every text, in order.

        Args:
            texts: to encode.
            items: of each, where its items begin and what of it belongs to none, as `marks.item_places` gives it; None
                leaves these marks out. Tables and parts are found in the text.
        """
        if not self.marks:
            return self._plain(texts)
        code = {name: RESERVED + self.tokens + n for n, name in enumerate(self.marks)}
        places = [
            [place for place in places_of(text, () if items is None else items[n]) if place[1] in code]
            for n, text in enumerate(texts)
        ]
        bounds = [[0, *(at for at, _ in marked), len(text)] for text, marked in zip(texts, places, strict=True)]
        pieces = [text[a:b] for text, cuts in zip(texts, bounds, strict=True) for a, b in pairwise(cuts)]
        encoded = iter(self._plain(pieces))
        found = []
        for marked in places:
            parts = [next(encoded)]
            for _, name in marked:
                parts += [np.asarray([code[name]], np.int64), next(encoded)]
            found.append(np.concatenate(parts))
        return found

    def _plain(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        encoded = self._bpe.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(each.ids, dtype=np.int64) + RESERVED for each in encoded]

    def decode(self, codes: npt.NDArray[np.int64]) -> str:
        """Text of codes; kept codes and marks have none. `decode(encode(text)) == text` for every text when fitted."""
        kept = np.asarray(codes)
        kept = kept[(kept >= RESERVED) & (kept < RESERVED + self.tokens)] - RESERVED
        return str(self._bpe.decode(kept.tolist(), skip_special_tokens=False))

    def to_json(self) -> str:
        """Everything, as JSON with sorted keys."""
        return json.dumps(
            {
                "format": _FORMAT,
                "fitted_rows": self.fitted_rows,
                "fitted_until": self.fitted_until,
                "training_sha256": self.training_sha256,
                "marks": self.marks,
                "ready_made": self.ready_made,
                "bpe": json.loads(self._bpe.to_str()),
            },
            sort_keys=True,
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str) -> FilingTokenizer:
        """The tokenizer that `to_json` wrote; ValueError for anything else."""
        return of_stored(text, cls._of_plain)

    @classmethod
    def _of_plain(cls, plain: Mapping[str, Any]) -> FilingTokenizer:
        if plain.get("format") != _FORMAT:
            raise ValueError(f"not a filing tokenizer: expected format {_FORMAT!r}")
        ready_made, marks = plain.get("ready_made", False), plain.get("marks", [])
        if type(ready_made) is not bool or type(marks) is not list or not all(type(each) is str for each in marks):
            raise TypeError("expected marks that are names and ready_made that is true or false")
        (require_harmless if ready_made else _require_ours)(plain["bpe"])
        try:
            bpe = _Tokenizer.from_str(json.dumps(plain["bpe"], ensure_ascii=False))
        except Exception as error:  # which is the class of all that the library of tokenizers raises
            raise ValueError(f"not a filing tokenizer: bpe is none, {error!s:.200}") from error
        bpe.encode_special_tokens = ready_made
        rows, until = count_of(plain, "fitted_rows"), count_of(plain, "fitted_until")
        return cls(bpe, rows, until, str(plain["training_sha256"]), tuple(marks), ready_made)


def _require_ours(bpe: Mapping[str, Any]) -> None:
    """Refuse parts that `_train` does not make: a stored expression, for one, may be tried on a text for hours."""
    for part, kind in {"model": "BPE", "decoder": "ByteLevel"}.items():
        if bpe[part]["type"] != kind:
            raise TypeError(f"bpe has a {part} of type {bpe[part]['type']!r:.40}, expected {kind}")
    cutter = bpe["pre_tokenizer"]
    if cutter["type"] != "ByteLevel" and cutter != json.loads(_pieces().__getstate__()):
        raise TypeError(f"bpe has a pre_tokenizer of type {cutter['type']!r:.40} that is none of ours")
    for part in ("normalizer", "post_processor", "truncation", "padding"):
        if bpe[part] is not None:
            raise TypeError(f"bpe has a {part}, {bpe[part]!r:.80}, expected none")
    if bpe["added_tokens"]:
        raise TypeError(f"bpe has added tokens, {bpe['added_tokens']!r:.80}, expected none")


def _pieces() -> pre_tokenizers.PreTokenizer:
    """Of models of before digits were grouped it is `ByteLevel` alone."""
    parts = [
        pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    return pre_tokenizers.Sequence(parts)


def _train(texts: Iterable[str], vocabulary_size: int) -> _Tokenizer:
    bpe = _Tokenizer(models.BPE())
    bpe.pre_tokenizer = _pieces()
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return bpe


def _hash(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8")
        digest.update(len(content).to_bytes(8) + content)
    return digest.hexdigest()


def require_vocabulary_size(size: int) -> None:
    """Raise ValueError for a vocabulary that has no token for each byte."""
    if size < 256:
        raise ValueError(f"vocabulary_size must be at least 256, one token a byte; got {size}")
