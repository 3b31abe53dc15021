"""The reference, written while the site is built: public names, commands and settings, each from where it stands.

A page of docs/reference holds comments, and what they ask for takes their place:

    <!-- names of quantattn.nn -->      every public name of a module, with a table in front
    <!-- names of quantattn.x: f, C --> those of its names
    <!-- commands -->                   what each command takes
    <!-- settings -->                   every file of every group of conf/
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import os
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ASKED = re.compile(r"^<!-- (names|commands|settings)(?: of ([\w.]+))?(?:: ([\w, ]+))? -->$", re.MULTILINE)
LONGEST_VALUE = 60


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls to take this in."""
    app.connect("source-read", _fill)
    app.connect("autodoc-process-docstring", _to_rst, priority=400)  # before napoleon, at 500, sees it
    app.connect("autodoc-skip-member", _without_aliases)
    return {"parallel_read_safe": True}


def _fill(app: Any, name: str, source: list[str]) -> None:
    if name.startswith("reference/"):
        source[0] = filled(source[0])


def _without_aliases(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Fields of a named tuple say "Alias for field number 0"; what they are stands in the class's docstring."""
    return True if (inspect.getdoc(obj) or "").startswith("Alias for field number") else None


def filled(page: str) -> str:
    """The page with its comments replaced by what they ask for.

    Raises:
        ValueError: a comment names a module without a public name.
    """
    makers = {"names": names, "commands": commands, "settings": settings}
    return ASKED.sub(lambda found: makers[found[1]](*filter(None, found.groups()[1:])), page)


# ---- names -----------------------------------------------------------------------------------------------------------


def names(module_name: str, some: str = "") -> str:
    """A table of a module's public names, or of `some`, and after it each of them from its docstring; Markdown."""
    module = importlib.import_module(module_name)
    public = re.split(r", *", some) if some else sorted(public_names(module), key=str.lower)
    if strange := [name for name in public if not hasattr(module, name)] or not public:
        raise ValueError(f"{module_name} has no public name" + (f" {strange[0]}" if public else ""))
    rows, entries = [], []
    for name in public:
        value = getattr(module, name)
        kind = _kind(value)
        text = inspect.getdoc(value) if kind != "data" else constant_docstring(module, name)
        rows.append(f"   * - :py:obj:`~{module_name}.{name}`\n     - {to_rst(_first_sentence(text or ''))}")
        entries.append(
            _data(module_name, name, value, text or "") if kind == "data" else _auto(kind, module_name, name)
        )
    table = ".. list-table::\n   :widths: 35 65\n   :class: names\n\n" + "\n".join(rows)
    body = "\n\n".join([f".. py:module:: {module_name}", table, *entries])
    return f"````{{eval-rst}}\n{body}\n````"


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or where there is none what the module defines and documents under a name without an underscore."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("_")]
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__ and inspect.getdoc(value)
    ]
    return own + [name for name in _documented_constants(module) if name not in own and not name.startswith("_")]


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if inspect.isroutine(value) else "data"


def _auto(kind: str, module: str, name: str) -> str:
    return f".. auto{kind}:: {module}::{name}" + ("\n   :members:" if kind in ("class", "exception") else "")


def _data(module: str, name: str, value: Any, text: str) -> str:
    shown = repr(value)
    lines = [f".. py:data:: {module}.{name}"]
    if len(shown) <= LONGEST_VALUE:
        lines.append(f"   :value: {shown}")
    return "\n".join([*lines, "", *(f"   {line}" for line in to_rst(text).splitlines())])


def constant_docstring(module: ModuleType, name: str) -> str:
    """The string under the assignment of a constant, in this module or in the one that it is imported from."""
    while name not in (here := _documented_constants(module)):
        origins = [
            node.module
            for node in ast.walk(_tree(module))
            if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names)
        ]
        if not origins or origins[0] is None:
            return ""
        module = importlib.import_module(origins[0])
    return here[name]


def _documented_constants(module: ModuleType) -> dict[str, str]:
    found, body = {}, _tree(module).body
    for before, after in pairwise(body):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            target = before.targets[0] if isinstance(before, ast.Assign) else getattr(before, "target", None)
            if isinstance(target, ast.Name):
                found[target.id] = inspect.cleandoc(after.value.value)
    return found


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.?!])\s", paragraph)[0]


def _to_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_rst("\n".join(lines)).splitlines()


def to_rst(text: str) -> str:
    """A docstring as reStructuredText reads it.

    An indented block under a paragraph is code. Elsewhere, outside of backticks, what is a mark there and none in plain
    text is escaped.
    """
    blocks: list[tuple[bool, list[str]]] = [(False, [])]
    last = ""
    for line in text.splitlines():
        (is_code, block), indented = blocks[-1], line.startswith("    ")
        if is_code and line and not indented:
            blocks.append((False, [line]))
        elif not is_code and indented and block and not block[-1] and last[:1].strip():
            blocks.append((True, ["::", "", line]))
        else:
            block.append(line)
        last = line or last
    return "\n".join("\n".join(block) if is_code else _escaped("\n".join(block)) for is_code, block in blocks)


def _escaped(text: str) -> str:
    """Stars, bars and closing underscores stand for themselves; a letter may follow a backtick ("`Mask`s")."""
    pieces = re.split(r"(`+[^`]+`+)", text)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", re.sub(r"([*|])", r"\\\1", pieces[i]))
    return re.sub(r"(`[^`]+`)(?=\w)", r"\1\\ ", "".join(pieces))


# ---- commands and settings -------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command: what it is for and what it takes; Markdown."""
    from quantattn.cli.dispatch import COMMANDS

    parts = []
    for name, command in COMMANDS.items():
        parts += [f"## {name}", f"{command.summary[0].upper()}{command.summary[1:]}."]
        root = ROOT / "conf" / f"{name}.yaml"
        parts.append(_fence("yaml", root.read_text("utf-8")) if root.is_file() else _fence("text", _help(command.run)))
        if root.is_file():
            parts.append(f"These are settings: `quantattn {name} key=value group=option`, see [settings](settings.md).")
    return "\n\n".join(parts)


def _help(run: Callable[[list[str]], int]) -> str:
    said = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            run(["--help"])
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return said.getvalue()


def settings() -> str:
    """Every file of every group of conf/, its comments with it; Markdown."""
    parts = []
    for group, files in groups():
        parts.append(f"## {group}")
        for file in files:
            parts += [f"`{group}={file.stem}`", _fence("yaml", file.read_text("utf-8"))]
    return "\n\n".join(parts)


def groups() -> Iterator[tuple[str, list[Path]]]:
    """Names of the folders of conf/, and the files of each."""
    for folder in sorted(path for path in (ROOT / "conf").iterdir() if path.is_dir()):
        yield folder.name, sorted(folder.glob("*.yaml"))


def _fence(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
