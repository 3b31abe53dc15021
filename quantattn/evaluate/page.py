"""Pages that need nothing but themselves: templates, the sorting script and its hash, and how a page is written."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined

from quantattn.evaluate.drawing import Figure


def render_page(template: str, **values: Any) -> str:
    """Fill a template; every value is escaped except the script and drawings that passed `drawn`.

    The page gets the table-sorting script, and its hash for the content security policy, as `script` and `script_hash`.
    """
    environment = Environment(
        loader=PackageLoader("quantattn.evaluate", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = environment.get_template("sort.html.j2").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template).render(script=script, script_hash=digest, **values)


def drawn(figure: Figure) -> str:
    """The SVG of a figure, fit to stand in a page as it is.

    Raises:
        ValueError: the SVG could do more than be seen: scripts, handlers, links, foreign markup, entities.
    """
    if "<!" in figure.svg:
        raise ValueError(f"the SVG of figure {figure.name!r} holds a declaration or comment, expected elements only")
    try:
        root = ElementTree.fromstring(figure.svg)
    except ElementTree.ParseError as error:
        raise ValueError(f"the SVG of figure {figure.name!r} is not well-formed: {error}") from error
    allowed = {"svg", "title", "desc", "g", "path", "defs", "clipPath", "rect", "text", "tspan", "use"}
    for element in root.iter():
        tag = element.tag.removeprefix("{http://www.w3.org/2000/svg}")
        if tag not in allowed:
            raise ValueError(f"the SVG of figure {figure.name!r} holds <{tag}>, expected one of {sorted(allowed)}")
        for attribute, value in element.attrib.items():
            name = attribute.rpartition("}")[2].lower()
            if name.startswith("on") or (name == "href" and not value.startswith("#")) or "url(h" in value.lower():
                raise ValueError(f"the SVG of figure {figure.name!r} holds {name}={value!r} in <{tag}>")
    return figure.svg


def write_page(path: str | os.PathLike[str], page: str) -> Path:
    """Write `page` beside `path`, flush it, and rename it, so that a reader never sees half a page."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(page.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return target
