"""What the codes of token fields stand for, read off a tokenizer's own JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from quantattn.data.table.tokens import FIRST_VALUE, TableTokenizer
from quantattn.data.tokens import FIRST_CODE, Tokenizer


@dataclass(frozen=True)
class Meaning:
    """Codes from `first` on are these values in order, or the bins between these edges; those below are no value.

    Attributes:
        first: code of the first value or bin.
        labels: names of values; None where codes are bins or joint types.
        edges: of bins, in the field's own units: bin 0 is below edges[0], bin i from edges[i − 1] on; None where codes
            are values.
    """

    first: int
    labels: tuple[str, ...] | None = None
    edges: tuple[float, ...] | None = None


def meanings(vocabulary_json: str) -> dict[str, Meaning]:
    """Field (without `_code`) → what its codes stand for, of a market's or a table's tokenizer.

    Fields that are one in a joint vocabulary are left out.
    """
    plain = json.loads(vocabulary_json)
    table = plain.get("kind") == "table"
    tokenizer = (TableTokenizer if table else Tokenizer).from_json(vocabulary_json)
    categories: Mapping[str, tuple[object, ...]] = tokenizer.categories
    first = FIRST_VALUE if table else FIRST_CODE
    found = {name: Meaning(first, labels=tuple(map(str, values))) for name, values in categories.items()}
    found |= {name: Meaning(FIRST_CODE, edges=tuple(field.edges)) for name, field in tokenizer.numeric.items()}
    joint = getattr(tokenizer, "merges", None)
    return {name: meaning for name, meaning in found.items() if joint is None or name not in joint.fields}
