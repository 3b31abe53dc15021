"""Batch scoring: a trained model over tables, in shards that are written once."""

from quantattn.score.plan import Shard, Work, make_plan
from quantattn.score.run import Progress, score

__all__ = ["Progress", "Shard", "Work", "make_plan", "score"]
