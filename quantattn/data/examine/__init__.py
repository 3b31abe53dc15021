"""What is in a table of events and what is odd about it, counted before anybody trains on it."""

from quantattn.data.examine.curve import Curve, cut_curve
from quantattn.data.examine.examine import MOST_ROWS, Examination, examine

__all__ = ["MOST_ROWS", "Curve", "Examination", "cut_curve", "examine"]
