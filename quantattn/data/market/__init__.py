"""Order books: sessions, books rebuilt from messages, the state of a book, and features that see the past alone."""

from quantattn.data.market.book import book_flags, count_flags, halt_intervals
from quantattn.data.market.features import FEATURES, book_features, feature_names, persistence
from quantattn.data.market.levels import LevelTally, RebuiltLevels, rebuild_levels
from quantattn.data.market.price_features import price_feature_names, price_features
from quantattn.data.market.rebuild import BookAgreement, OrderBooks, RebuiltBook, Tally, compare_book, rebuild_book
from quantattn.data.market.sessions import Sessions, exchange_sessions, exchange_zone, midnight

__all__ = [
    "FEATURES",
    "BookAgreement",
    "LevelTally",
    "OrderBooks",
    "RebuiltBook",
    "RebuiltLevels",
    "Sessions",
    "Tally",
    "book_features",
    "book_flags",
    "compare_book",
    "count_flags",
    "exchange_sessions",
    "exchange_zone",
    "feature_names",
    "halt_intervals",
    "midnight",
    "persistence",
    "price_feature_names",
    "price_features",
    "rebuild_book",
    "rebuild_levels",
]
