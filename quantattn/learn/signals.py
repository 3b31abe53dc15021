"""Being told to stop: what a signal means while a run trains."""

from __future__ import annotations

import signal
import threading
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

STOPS = (signal.SIGTERM, signal.SIGUSR1)
"""Signals by which a scheduler announces that a job's time is over."""


class StopFlag(Callback):
    """Remembers a SIGTERM, a SIGUSR1 or a Ctrl-C instead of dying of it: the run is stopped between two batches.

    Lightning's own handlers, which leave without saving or put a job back into Slurm's queue, are set aside during
    training. A second Ctrl-C is not waited for: it interrupts at once.

    Attributes:
        received: SIGTERM or SIGINT once the run was told to stop; a SIGUSR1 is a SIGTERM that came early.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the signals, once Lightning has taken its own."""
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                signal.signal(number, self._note)
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell's background job ignores Ctrl-C
                self._before = signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self.received = signal.SIGTERM if number in STOPS else number
        self.release()

    def release(self) -> None:
        """Give Ctrl-C back its meaning."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
