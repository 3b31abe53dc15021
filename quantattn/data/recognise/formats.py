"""What a format is to the doctor: a name, how its files are told, how its times are to be shown, what it has to ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from quantattn.data.recognise.look import Look


@dataclass(frozen=True)
class Claim:
    """That a file is of a format.

    Attributes:
        why: what in the file says so; continues "because …".
        settings: of the source, that the file itself tells.
        unread: why no source reads it as it is, in one sentence; "" where one does.
    """

    why: str
    settings: Mapping[str, str] = field(default_factory=dict)
    unread: str = ""


@dataclass(frozen=True)
class Format:
    """One kind of file.

    Attributes:
        name: that of the configuration, `data=NAME`; "" for a kind that goes with data and is none.
        title: what people call it.
        sniff: a claim on a file, or None.
        source: its name in `quantattn.data.sources.SOURCES`.
        zone: time zone in which its people tell the time.
        calendar: exchange whose sessions bound its labels; None: no sessions.
        asks: settings that its files may lack → what they are, with an example.
        beside: titles of other formats whose files may lie in its folder and belong to it.
    """

    name: str
    title: str
    sniff: Callable[[Look], Claim | None]
    source: str = ""
    zone: str = "UTC"
    calendar: str | None = None
    asks: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    beside: tuple[str, ...] = ()
