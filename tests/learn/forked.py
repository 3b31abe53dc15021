"""Parts of a test in processes of their own that cost no start: forks of the one that has imported everything."""

from __future__ import annotations

import gc
import json
import os
import traceback
from collections.abc import Callable
from typing import Any


def fork(call: Callable[[], object]) -> int:
    """The process in which `call` runs; it exits with 0, or with 1 and a traceback when it raises."""
    if process := os.fork():
        return process
    code = 1
    try:
        gc.freeze()
        call()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def answer(call: Callable[[], object]) -> Any:
    """What `call`, whose answer is JSON, returns in a process of its own."""
    read, write = os.pipe()

    def told() -> None:
        os.write(write, json.dumps(call()).encode())

    process = fork(told)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        said = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    return json.loads(said)
