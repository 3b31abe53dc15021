"""Order books: sessions, the state of the book, and features that look at the past alone."""

from quantattn.data.market.book import book_flags, count_flags, halt_intervals
from quantattn.data.market.features import FEATURES, book_features, feature_names, persistence
from quantattn.data.market.sessions import Sessions, exchange_sessions, exchange_zone, midnight

__all__ = [
    "FEATURES",
    "Sessions",
    "book_features",
    "book_flags",
    "count_flags",
    "exchange_sessions",
    "exchange_zone",
    "feature_names",
    "halt_intervals",
    "midnight",
    "persistence",
]
