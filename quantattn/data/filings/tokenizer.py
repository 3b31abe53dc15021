"""Byte-level BPE over filings, fitted on training filings only.

Codes 0 … 3 are kept (see below); code c ≥ 4 is token c − 4 of the BPE. Because the kept codes are not tokens of the
BPE, no text, whatever stands in it, is encoded as one of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from tokenizers import Tokenizer as _Tokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from quantattn.data.stored import count_of, of_stored

MISSING, MASKED, BEGIN, END = 0, 1, 2, 3
"""Kept codes: nothing, a masked token, the begin and the end of a document."""
RESERVED = 4
_FORMAT = "quantattn.filing-bpe"


@dataclass(frozen=True, eq=False)
class FilingTokenizer:
    """Text ↔ codes.

    Attributes:
        fitted_rows: number of training filings.
        fitted_until: nanoseconds UTC, exclusive: every training filing was public before.
        training_sha256: hash of the training texts, in order.
    """

    _bpe: _Tokenizer
    fitted_rows: int
    fitted_until: int
    training_sha256: str

    @classmethod
    def fit(cls, frame: pl.DataFrame, *, fitted_until: int, vocabulary_size: int = 8_192) -> FilingTokenizer:
        """Fit on the `text` of training filings.

        Args:
            frame: training filings, with `text` and `available_time`.
            fitted_until: end of the training time, nanoseconds UTC, exclusive.
            vocabulary_size: number of BPE tokens at most, the 256 bytes included.

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
        return cls(_train(texts, vocabulary_size), len(texts), fitted_until, _hash(texts))

    @property
    def codes(self) -> dict[str, int]:
        """Field → number of codes, kept codes included."""
        return {"token": RESERVED + self._bpe.get_vocab_size(with_added_tokens=False)}

    @property
    def values(self) -> tuple[str, ...]:
        """Scaled fields: none."""
        return ()

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """(n,) int64 codes of a text, none of them a kept one."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Codes of every text, in order."""
        encoded = self._bpe.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(each.ids, dtype=np.int64) + RESERVED for each in encoded]

    def decode(self, codes: npt.NDArray[np.int64]) -> str:
        """Text of codes; kept codes have none. `decode(encode(text)) == text` for every text."""
        kept = np.asarray(codes)
        return str(self._bpe.decode((kept[kept >= RESERVED] - RESERVED).tolist(), skip_special_tokens=False))

    def to_json(self) -> str:
        """Everything, as JSON with sorted keys."""
        return json.dumps(
            {
                "format": _FORMAT,
                "fitted_rows": self.fitted_rows,
                "fitted_until": self.fitted_until,
                "training_sha256": self.training_sha256,
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
        _require_ours(plain["bpe"])
        try:
            bpe = _Tokenizer.from_str(json.dumps(plain["bpe"], ensure_ascii=False))
        except Exception as error:  # which is the class of all that the library of tokenizers raises
            raise ValueError(f"not a filing tokenizer: bpe is none, {error!s:.200}") from error
        return cls(bpe, count_of(plain, "fitted_rows"), count_of(plain, "fitted_until"), str(plain["training_sha256"]))


def _require_ours(bpe: Mapping[str, Any]) -> None:
    """Refuse parts that `_train` does not make: a stored expression, for one, may be tried on a text for hours."""
    kinds = {"model": "BPE", "pre_tokenizer": "ByteLevel", "decoder": "ByteLevel"}
    for part, kind in kinds.items():
        if bpe[part]["type"] != kind:
            raise TypeError(f"bpe has a {part} of type {bpe[part]['type']!r:.40}, expected {kind}")
    for part in ("normalizer", "post_processor", "truncation", "padding"):
        if bpe[part] is not None:
            raise TypeError(f"bpe has a {part}, {bpe[part]!r:.80}, expected none")
    if bpe["added_tokens"]:
        raise TypeError(f"bpe has added tokens, {bpe['added_tokens']!r:.80}, expected none")


def _train(texts: Iterable[str], vocabulary_size: int) -> _Tokenizer:
    bpe = _Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
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
