"""Hashes of tables: the same columns give the same hash on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from quantattn.data.filed import blocks


def columns_sha256(columns: Mapping[str, npt.NDArray[np.generic]]) -> str:
    """Hexadecimal sha256 of names, types and little-endian bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name, column in sorted(columns.items()):
        kind = column.dtype.newbyteorder("<")
        digest.update(f"{name} {kind.str} {column.shape}\n".encode())
        for rows in blocks(len(column)):
            digest.update(np.ascontiguousarray(column[rows], kind).data)
    return digest.hexdigest()
