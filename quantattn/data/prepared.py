"""Everything that a training run needs to know of its data, in one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from quantattn.data.bayes import Bayes
from quantattn.data.pack import SequenceSet
from quantattn.data.protocol.audit import Audit

PARTS: tuple[str, ...] = ("train", "valid", "test")
"""Names of the parts of a split, in order of time; keys of the mappings below."""


@dataclass(frozen=True)
class Prepared:
    """Sequences of the three parts, and an account of how they were made.

    Decision q of a part is row q of every array that belongs to that part.

    Attributes:
        train: sequences to fit on.
        valid: sequences to choose by.
        test: sequences to report on.
        codes: integer field → number of codes, for the encoder's embeddings.
        values: names of the float fields.
        vocabulary_json: the fitted tokenizer.
        classes: names of the classes in order of their codes; () for regression and when there is no target.
        audit: the proof that nothing known only later was used.
        counts: rows at each stage.
        dropped: reason → decisions left out for it.
        notes: sentences of the source about what it decided, fell back to, or found odd.
        hashes: name → sha256 of what went in and of what came out.
        baselines: part → name → (Q, …) inputs of the baselines.
        as_of: part → (Q,) int64, when each decision is made, ns UTC.
        entity: part → (Q,) whose decision it is.
        bayes: the best that is possible, where it is known.
        bayes_in_context: the same for a model that sees of the test decisions what their sequences hold.
        account: what became of each document, as CSV, for people; "" where the kind of data keeps none.
        block_kind: what the intervals of figures resample: days, entities, stretches of time, or what fits ("auto").
    """

    train: SequenceSet
    valid: SequenceSet
    test: SequenceSet
    codes: Mapping[str, int]
    values: tuple[str, ...]
    vocabulary_json: str
    classes: tuple[str, ...]
    audit: Audit
    counts: Mapping[str, int]
    hashes: Mapping[str, str]
    baselines: Mapping[str, Mapping[str, npt.NDArray[np.generic]]]
    as_of: Mapping[str, npt.NDArray[np.int64]]
    entity: Mapping[str, npt.NDArray[np.generic]]
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    bayes: Bayes | None = None
    bayes_in_context: Bayes | None = None
    account: str = ""
    block_kind: Literal["auto", "day", "entity", "time"] = "auto"
