"""Processor seconds of fitting the filings' tokenizer and of encoding with it, beside Hugging Face tokenizers plainly.

    python benchmarks/filings_tokenizer.py FOLDER [--rounds 3] [--vocabulary 8192]

FOLDER holds filings of any kind; the texts are those that `scan_filings` gives, undated files dated alike. Both do
the same byte-level BPE on the same pieces of the same texts, in turn, in one process; the best of the rounds counts.
Ours also hashes the training texts and returns arrays of codes. The merges must be equal, and so must the codes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import polars as pl
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Split

from quantattn.data.filings.index import FilingIndex
from quantattn.data.filings.tokenizer import PIECES, RESERVED, FilingTokenizer
from quantattn.data.sources.filings import scan_filings

Made = TypeVar("Made")


def read(folder: Path) -> pl.DataFrame:
    """Every filing of a folder, those without a header dated alike; one that is cut into items has a date."""
    names = {file.name for file in folder.rglob("*") if file.is_file() and ".json" not in file.suffixes}
    rows = [{"name": name, "accepted": "20240102120000", "cik": "1"} for name in sorted(names)]
    return scan_filings(folder, index=FilingIndex(rows), filing_dates="latest").frame.collect()


def plainly(texts: list[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE as the library's own guide makes one."""
    tokenizer = Tokenizer(models.BPE())
    parts = [Split(Regex(PIECES), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def timed(do: Callable[[], Made]) -> tuple[float, Made]:
    """Processor seconds, of all threads, and what was made."""
    began = time.process_time()
    made = do()
    return time.process_time() - began, made


def main() -> None:
    """Print a row for fitting and one for encoding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=8_192)
    given = parser.parse_args()
    table = read(given.folder)
    texts, until = table["text"].to_list(), int(table["available_time"].max()) + 1  # type: ignore[call-overload]
    best: dict[str, float] = {}
    for _ in range(given.rounds):
        seconds = {}
        seconds["fit, ours"], ours = timed(
            lambda: FilingTokenizer.fit(table, fitted_until=until, vocabulary_size=given.vocabulary)
        )
        seconds["fit, plain"], plain = timed(lambda: plainly(texts, given.vocabulary))
        seconds["encode, ours"], codes = timed(lambda ours=ours: ours.encode_all(texts))
        seconds["encode, plain"], ids = timed(lambda plain=plain: [each.ids for each in plain.encode_batch(texts)])
        best = {name: min(each, best.get(name, each)) for name, each in seconds.items()}
        assert json.loads(ours.to_json())["bpe"]["model"]["merges"] == json.loads(plain.to_str())["model"]["merges"]
        assert all((mine - RESERVED).tolist() == theirs for mine, theirs in zip(codes, ids, strict=True))
    tokens, size = sum(map(len, ids)), sum(map(len, texts))
    print(f"{len(texts)} filings, {size / 2**20:.1f} Mi characters, {tokens:,} tokens")
    for work in ("fit", "encode"):
        mine, theirs = best[f"{work}, ours"], best[f"{work}, plain"]
        print(f"{work:7} ours {mine:6.2f} s  plain {theirs:6.2f} s  {mine / theirs:.2f} times its time")


if __name__ == "__main__":
    main()
