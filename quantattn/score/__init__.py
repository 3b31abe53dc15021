"""Batch scoring: a trained model over tables, in shards that are written once."""

from quantattn.score.plan import Shard, Work, make_plan
from quantattn.score.run import Progress, score
from quantattn.score.sink import check_place

__all__ = ["Progress", "Shard", "Work", "check_place", "make_plan", "score"]
