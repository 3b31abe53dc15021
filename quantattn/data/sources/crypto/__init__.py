"""Feeds of crypto venues: as the venues publish them, as vendors sell them and as researchers record them."""

from quantattn.data.sources.crypto.binance import scan_binance
from quantattn.data.sources.crypto.binance_depth import scan_binance_depth
from quantattn.data.sources.crypto.bitstamp import OrderLogSource, scan_bitstamp
from quantattn.data.sources.crypto.build import LevelSource
from quantattn.data.sources.crypto.capture import scan_capture
from quantattn.data.sources.crypto.hftbacktest import scan_hftbacktest
from quantattn.data.sources.crypto.tardis import scan_tardis

__all__ = [
    "LevelSource",
    "OrderLogSource",
    "scan_binance",
    "scan_binance_depth",
    "scan_bitstamp",
    "scan_capture",
    "scan_hftbacktest",
    "scan_tardis",
]
