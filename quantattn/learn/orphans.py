"""Processes that make batches end with the process that they make them for, however that one ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def end_with_parent(worker: int) -> None:
    """In a spawned process: end it when its parent is gone, also one that was killed before this one had begun.

    torch's own watch asks for the parent's number first when the worker has begun, and then only while it waits.

    Args:
        worker: its number, which torch tells.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
