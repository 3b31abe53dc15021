"""Prepared data: sorted Parquet shards with a manifest, written out of core, and the source that reads them."""

from quantattn.data.shards.cut import Cutting
from quantattn.data.shards.layout import PARSED
from quantattn.data.shards.manifest import Manifest, read_manifest, read_plan
from quantattn.data.shards.pieces import Piece, pieces_of
from quantattn.data.shards.prepare import Progress, Written, prepare_shards
from quantattn.data.shards.scan import scan_prepared

__all__ = [
    "PARSED",
    "Cutting",
    "Manifest",
    "Piece",
    "Progress",
    "Written",
    "pieces_of",
    "prepare_shards",
    "read_manifest",
    "read_plan",
    "scan_prepared",
]
