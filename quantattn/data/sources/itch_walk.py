"""Where each message of an ITCH stream begins: a walk from length to length, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

OK, WRONG_TYPE, WRONG_LENGTH = 0, 1, 2


@njit
def walk(
    data: NDArray[np.uint8],  # (n,) whole messages and the beginning of one more
    lengths: NDArray[np.int64],  # (256,) bytes of a message of each type, 0 where there is no such type
    zeros: bool,  # whether the two bytes before each message are 0 instead of its length
    starts: NDArray[np.int64],  # (n // 14 + 1,) out: where the types stand
) -> tuple[int, int, int]:
    """Returns the number of whole messages, where the next one's length stands, and what is wrong with it."""
    count, at = 0, 0
    while at + 3 <= len(data):
        given = np.int64(data[at]) * 256 + np.int64(data[at + 1])
        length = lengths[data[at + 2]]
        if length == 0:
            return count, at, WRONG_TYPE
        if given != (0 if zeros else length):
            return count, at, WRONG_LENGTH
        if at + 2 + length > len(data):
            break
        starts[count] = at + 2
        count += 1
        at += 2 + length
    return count, at, OK
