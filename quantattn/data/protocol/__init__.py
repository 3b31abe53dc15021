"""The only place that cuts time: labels with their intervals, splits by time, and the audit of both."""

from quantattn.data.protocol.audit import Audit, Check, Fitted, LeakError, audit
from quantattn.data.protocol.labels import CLASS_NAMES, REASONS, MidMove, Threshold, mid_moves
from quantattn.data.protocol.perturb import past_only, perturb_future
from quantattn.data.protocol.splits import Intervals, Split, WalkForward, purge

__all__ = [
    "CLASS_NAMES",
    "REASONS",
    "Audit",
    "Check",
    "Fitted",
    "Intervals",
    "LeakError",
    "MidMove",
    "Split",
    "Threshold",
    "WalkForward",
    "audit",
    "mid_moves",
    "past_only",
    "perturb_future",
    "purge",
]
