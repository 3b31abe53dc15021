"""Batch scoring: a trained model over tables, in shards that are written once."""

from quantattn.score.outputs import Embeddings, Output, Scores
from quantattn.score.plan import Plan, Shard, Work, make_plan
from quantattn.score.run import Progress, score
from quantattn.score.sink import check_place
from quantattn.score.worker import Worker

__all__ = [
    "Embeddings",
    "Output",
    "Plan",
    "Progress",
    "Scores",
    "Shard",
    "Work",
    "Worker",
    "check_place",
    "make_plan",
    "score",
]
