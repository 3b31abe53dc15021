"""Fixtures of the commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def here() -> Callable[..., object]:
    """As `benchmarks.processes.apart`, but in this process."""
    answers: list[object] = []

    class Pipe:
        send = staticmethod(answers.append)

    def call(name: str, target: Callable[..., None], *arguments: object) -> object:
        target(*arguments, Pipe)
        return answers.pop()

    return call
