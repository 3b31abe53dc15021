"""Training, validation and test rows, cut by time, by day or by entity, purged by label interval, with an embargo."""

from quantattn.data.protocol.splits.by_day import ByDay
from quantattn.data.protocol.splits.by_entity import ByEntity
from quantattn.data.protocol.splits.combinatorial import CombinatorialPurged, PurgedKFold
from quantattn.data.protocol.splits.fitting import events_to_fit_on
from quantattn.data.protocol.splits.intervals import Intervals, Split, purge
from quantattn.data.protocol.splits.plan import SplitPlan, choose
from quantattn.data.protocol.splits.walk_forward import WalkForward

__all__ = [
    "ByDay",
    "ByEntity",
    "CombinatorialPurged",
    "Intervals",
    "PurgedKFold",
    "Split",
    "SplitPlan",
    "WalkForward",
    "choose",
    "events_to_fit_on",
    "purge",
]
