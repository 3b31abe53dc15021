"""Labels, each with the interval that it looks at, or with the reason why there is none."""

from quantattn.data.protocol.labels.barrier import TripleBarrier
from quantattn.data.protocol.labels.crossing import SpreadCrossing
from quantattn.data.protocol.labels.label import Label
from quantattn.data.protocol.labels.mid import MOVE_COLUMNS, MidLabel, MidMove, mid_moves
from quantattn.data.protocol.labels.next_event import NextEventLabel
from quantattn.data.protocol.labels.reasons import LABEL_REASON, REASONS
from quantattn.data.protocol.labels.shipped import ShippedLabel
from quantattn.data.protocol.labels.threshold import CLASS_NAMES, Threshold
from quantattn.data.protocol.labels.volatility import RealisedVolatility

__all__ = [
    "CLASS_NAMES",
    "LABEL_REASON",
    "MOVE_COLUMNS",
    "REASONS",
    "Label",
    "MidLabel",
    "MidMove",
    "NextEventLabel",
    "RealisedVolatility",
    "ShippedLabel",
    "SpreadCrossing",
    "Threshold",
    "TripleBarrier",
    "mid_moves",
]
