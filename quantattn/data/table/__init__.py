"""Tables of events of many entities → sequences with one outcome an entity: bank clients, accounts, cards."""

from quantattn.data.table.aggregates import Aggregates
from quantattn.data.table.outcomes import Outcomes
from quantattn.data.table.prepare import check_table, prepare_table
from quantattn.data.table.tokens import CALENDAR, TableTokenizer

__all__ = ["CALENDAR", "Aggregates", "Outcomes", "TableTokenizer", "check_table", "prepare_table"]
