"""Passwords and keys among settings: what a run prints or writes down says "***" in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NAME = (
    r"(?:[\w.-]*[_.-])?(?:password|passwd|secret|token|credentials?|apikey|auth)(?:[_.-][\w.-]*)?"
    r"|[\w.-]*(?:api|access|private)_?key"
)
"""Names of settings that are secret."""
_IN_TEXT = re.compile(
    rf"(?im)^([ \t|'\"+~-]*(?:{_NAME})(?::[ \t]+|=))(?!null$|''$)\S.*$"  # alone on its line, up to the end of it
    rf"|(?<![\w.-])((?:{_NAME})['\"]?\s*[:=]\s*)(?!null\b|'')(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,&;|}}'\"]+)"
)


_BLOCK = re.compile(rf"(?im)^([ ]*)((?:{_NAME}):)[ ]*(?:[|>][+-]?)?(?:\n+\1(?:[ ]+|-[ ]+)\S.*)+")
"""What YAML puts on lines of its own below such a name."""


def is_secret(name: str) -> bool:
    """Whether the setting of this dotted name is secret, or stands under one that is."""
    return any(re.fullmatch(_NAME, part, re.IGNORECASE) for part in re.split(r"[.\[\]]", name))


def redact(settings: Any, key: str = "") -> Any:
    """The settings with every value under a name like password, token or api_key, and in URLs, replaced by "***"."""
    if isinstance(settings, Mapping):
        below = key if is_secret(key) else ""
        return {name: redact(value, below or str(name)) for name, value in settings.items()}
    if isinstance(settings, (list, tuple)):
        return [redact(value, key) for value in settings]
    if settings not in (None, "") and is_secret(key):
        return "***"
    return redact_urls(settings) if isinstance(settings, str) else settings


def redact_urls(text: str) -> str:
    """The text with the user and the password of every URL, and secrets in its query, replaced by "***".

    A password may hold a slash, so what follows a colon counts as one up to the last @ of the word.
    """
    text = re.sub(r"://(?:[^/@\s:]*:\S*|[^/@\s]+)@", "://***@", text)
    return re.sub(r"(?i)([?&;][\w.-]*(?:password|passwd|pwd|secret|token|credential|key)\w*=)[^&;\s]+", r"\1***", text)


def redact_text(text: str) -> str:
    """YAML, or overrides as they are typed, as `redact` would have the settings in them."""
    return redact_urls(_IN_TEXT.sub(r"\1\2'***'", _BLOCK.sub(r"\1\2 '***'", text)))
