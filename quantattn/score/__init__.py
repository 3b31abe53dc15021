"""Batch scoring: a trained model over tables, in shards that are written once."""

from quantattn.score.plan import Plan, Shard, Work, make_plan
from quantattn.score.run import Progress, score
from quantattn.score.sink import check_place
from quantattn.score.worker import Worker

__all__ = ["Plan", "Progress", "Shard", "Work", "Worker", "check_place", "make_plan", "score"]
