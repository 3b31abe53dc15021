"""A fitted vocabulary as it was stored: JSON that nobody vouches for, checked before anything is made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
V = TypeVar("V", int, str)


def of_stored(text: str, make: Callable[[dict[str, Any]], T]) -> T:
    """What `make` makes of the JSON object in `text`.

    Raises:
        ValueError: there is no object, or it lacks something or holds it in another kind.
    """
    try:
        plain = json.loads(text)
        if not isinstance(plain, dict):
            raise TypeError(f"it is a {type(plain).__name__}")
        return make(plain)
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"this is no vocabulary that a run writes: {what:.200}") from error


def categories_of(plain: Mapping[str, Any], kind: type[V]) -> dict[str, tuple[V, ...]]:
    """Field → its known values, all of one kind and none of them twice."""
    found = {}
    for name, values in plain["categories"].items():
        if type(values) is not list or any(type(value) is not kind for value in values):
            raise TypeError(f"categories of {name!r:.40} must be a list of {kind.__name__}, got {values!r:.80}")
        if len(set(values)) < len(values):
            raise TypeError(f"categories of {name!r:.40} hold a value twice: {values!r:.80}")
        found[name] = tuple(values)
    return found


def numeric_of(plain: Mapping[str, Any], make: Callable[[tuple[Any, ...], float, float], T]) -> dict[str, T]:
    """Field → what `make` makes of its rising edges, its center and its scale."""
    found = {}
    for name, field in plain["numeric"].items():
        edges, center, scale = field["edges"], field["center"], field["scale"]
        if type(edges) is not list or not _numbers([*edges, center, scale]) or edges != sorted(edges):
            raise TypeError(
                f"numeric field {name!r:.40} must have rising edges, a center and a scale, got {field!r:.80}"
            )
        found[name] = make(tuple(edges), center, scale)
    return found


def count_of(plain: Mapping[str, Any], name: str) -> int:
    """The integer of this name."""
    if type(plain[name]) is not int:
        raise TypeError(f"{name} must be an integer, got {plain[name]!r:.40}")
    return int(plain[name])


def _numbers(values: list[Any]) -> bool:
    return all(type(value) in (int, float) and math.isfinite(value) for value in values)
