"""What a signal does to a command that has nothing to save."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quantattn.cli.errors import STOPPED


@contextmanager
def stopping_on_sigterm() -> Iterator[None]:
    """Leave with exit code 143 on a SIGTERM or SIGUSR1 outside of training, where there is nothing to save."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(STOPPED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
