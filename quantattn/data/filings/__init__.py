"""Filings: EDGAR to text, dates that hold, prices without a look ahead, tokens, whole documents as sequences."""

from quantattn.data.filings.labels import label_filings
from quantattn.data.filings.prepare import prepare_filings
from quantattn.data.filings.prices import Prices, match_tickers, read_prices, read_tickers
from quantattn.data.filings.tokenizer import FilingTokenizer

__all__ = [
    "FilingTokenizer",
    "Prices",
    "label_filings",
    "match_tickers",
    "prepare_filings",
    "read_prices",
    "read_tickers",
]
