"""A run of the command line that takes a few seconds."""

from __future__ import annotations

import sys

import pytest

from quantattn.cli import main

SMALL = [
    "data.source.entities=3",
    "data.source.events_per_entity=4096",
    "data.source.channels=2",
    "data.max_seq_len=330",
    "data.max_tokens_per_batch=1320",
    "data.prepare.n_bins=8",
    "trainer.max_steps=6",
    "trainer.validate_every=3",
    "trainer.log_every=1",
    "trainer.threads=1",
]


def call(monkeypatch: pytest.MonkeyPatch, command: str, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["quantattn", *arguments])
    return main(command)
