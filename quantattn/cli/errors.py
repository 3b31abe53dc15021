"""What a failure looks like from outside: one sentence on stderr and an exit code."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Iterable

from quantattn.learn.secrets import redact_urls

DONE, FAILED, USAGE, INTERRUPTED, STOPPED = 0, 1, 2, 130, 143
"""Exit codes: done; a check or a run failed; wrong usage or configuration; stopped by Ctrl-C; stopped by SIGTERM."""


class UsageError(Exception):
    """The command line or the configuration is wrong; nothing has been read or written yet."""


def nearest(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" for the known name most like `name`, or what there is when none is like it."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there is {', '.join(names)}" if names else ""


def wants_traceback() -> bool:
    """Whether QUANTATTN_DEBUG=1 asks for tracebacks."""
    return os.environ.get("QUANTATTN_DEBUG", "") == "1"


def complain(command: str, error: BaseException) -> None:
    """Print `error` as one sentence without passwords on stderr, after its traceback when QUANTATTN_DEBUG=1."""
    if wants_traceback():
        traceback.print_exception(error)
    sentence = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.filename is not None:
        sentence = f"{error.filename}: {error.strerror}"
    print(f"quantattn {command}: {redact_urls(sentence)}", file=sys.stderr)


def exit_code(error: BaseException) -> int | None:
    """The exit code that `error` stands for, or None when it is nobody's mistake but ours and needs its traceback."""
    if isinstance(error, UsageError):
        return USAGE
    if isinstance(error, (ValueError, OSError, RuntimeError, ArithmeticError, MemoryError)):
        return FAILED
    return None
