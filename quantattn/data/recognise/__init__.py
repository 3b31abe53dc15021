"""Which format a file is of: told by its content where that can tell, and by its name where it cannot."""

from quantattn.data.recognise.bundles import bundle
from quantattn.data.recognise.formats import Claim, Format
from quantattn.data.recognise.look import Look
from quantattn.data.recognise.recognise import Recognised, by_format, one_format, recognise, recognise_folder
from quantattn.data.recognise.registry import FORMATS

__all__ = [
    "FORMATS",
    "Claim",
    "Format",
    "Look",
    "Recognised",
    "bundle",
    "by_format",
    "one_format",
    "recognise",
    "recognise_folder",
]
