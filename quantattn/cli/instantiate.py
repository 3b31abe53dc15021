"""From plain settings to the objects they name: `_target_` behind an allow-list, and dataclasses with exact keys."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import hydra
from hydra.errors import HydraException

from quantattn.cli.errors import UsageError, nearest

T = TypeVar("T")
ALLOWED = ("quantattn.", "torch.optim.", "lightning.")
"""Prefixes of everything a `_target_` may name, unless the user adds some in `allow_targets`."""

EXTRAS = {"TensorBoardLogger": "tensorboard", "MLFlowLogger": "mlflow", "WandbLogger": "wandb"}
"""Class that a target may name → the extra that it needs."""


def instantiate(node: Mapping[str, Any], where: str, allow: Sequence[str] = (), **extra: Any) -> Any:
    """The object that `node` names by `_target_`, made with its other keys and `extra`.

    Raises:
        UsageError: a target outside the allow-list, one that does not exist, an argument it does not take, or a value
            it refuses; the sentence names the setting.
    """
    check_targets(node, where, allow)
    target = node.get("_target_")
    if not isinstance(target, str):
        raise UsageError(f"{where} needs a _target_, got {sorted(node)}")
    made = _located(target, where, allow)
    _check_arguments(made, node, where, extra)
    try:
        return hydra.utils.instantiate(dict(node), **extra)
    except HydraException as error:
        cause = error.__cause__ or error
        if isinstance(cause, TypeError):
            _check_numbers(made, node, where)
        needed = EXTRAS.get(target.rpartition(".")[2])
        if isinstance(cause, ModuleNotFoundError) and needed is not None:
            raise UsageError(f"{where} needs a package that is not here: pip install 'quantattn[{needed}]'") from error
        raise UsageError(f"{where}: {cause}") from error


def check_targets(node: Any, where: str, allow: Sequence[str] = ()) -> None:
    """Raise UsageError unless every `_target_` below `node` may be named and can be imported."""
    if isinstance(node, Mapping):
        target = node.get("_target_")
        if target is not None:
            _located(str(target), where, allow)
        for key, value in node.items():
            check_targets(value, f"{where}.{key}", allow)
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            check_targets(value, f"{where}[{index}]", allow)


def _located(target: str, where: str, allow: Sequence[str]) -> Any:
    """What a target names. Of our own packages it is defined in them too, and not what some module there has imported.

    Raises:
        UsageError: its prefix is not allowed, it is not there, or it is no class or function.
    """
    if not target.startswith((*ALLOWED, *allow)):
        allowed = ", ".join((*ALLOWED, *allow))
        raise UsageError(f"{where}._target_={target} is not allowed; targets start with {allowed}")
    try:
        made = pkgutil.resolve_name(target)
    except Exception as error:  # a module that is imported may raise anything
        raise UsageError(f"{where}._target_={target} cannot be imported: {error}") from error
    if not callable(made):
        raise UsageError(f"{where}._target_={target} is no class or function")
    if not target.startswith(tuple(allow)) and not str(made.__module__).startswith(ALLOWED):
        raise UsageError(f"{where}._target_={target} is not allowed: it is {made.__module__}.{made.__qualname__}")
    return made


def _check_arguments(made: Any, node: Mapping[str, Any], where: str, extra: Mapping[str, Any]) -> None:
    if not hasattr(made, "__post_init__"):  # what looks at its numbers itself says more
        _check_numbers(made, node, where)
    parameters = inspect.signature(made).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    given = [key for key in node if not (key.startswith("_") and key.endswith("_"))]
    for key in [*given, *extra]:
        if key not in parameters:
            raise UsageError(f"unknown setting {where}.{key}{nearest(key, parameters)}")


def _check_numbers(made: Any, node: Mapping[str, Any], where: str) -> None:
    """Refuse text where a number belongs; what others have written would say that text cannot be compared with one."""
    if not made.__module__.startswith(("quantattn.", "torch.optim.")):
        return  # hints of others may name what only a type checker knows
    hints = typing.get_type_hints(made if inspect.isfunction(made) else made.__init__)
    for key, value in node.items():
        hint = hints.get(key)
        options = {hint, *typing.get_args(hint)} if isinstance(value, str) else set()
        if options & {int, float} and str not in options:
            raise UsageError(f"{where}.{key} must be {_said(float if float in options else int)}, got {value!r}")


def settings(cls: type[T], node: Any, where: str) -> T:
    """The dataclass `cls` filled from `node`: unknown keys, missing keys and values of another type are refused.

    Integers are taken where floats are expected; nothing else is converted. Nested dataclasses are filled likewise.

    Raises:
        UsageError: naming the setting, what was found and what is expected.
    """
    if not isinstance(node, Mapping):
        raise UsageError(f"{where} must be a group of settings, got {node!r}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in node:
        if key not in fields:
            raise UsageError(f"unknown setting {_join(where, str(key))}{nearest(str(key), fields)}")
    values: dict[str, Any] = {}
    for name, spec in fields.items():
        place = _join(where, name)
        if name in node:
            values[name] = _convert(hints[name], node[name], place)
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise UsageError(f"{place} is missing")
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        named = not where or str(error).startswith(where)
        raise UsageError(str(error) if named else f"{where}: {error}") from error


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return _convert_union(arguments, value, where, hint)
    if origin is typing.Literal:
        if value not in arguments:
            raise UsageError(f"{where}={value!r}{nearest(str(value), map(str, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise UsageError(f"{where} must be a list, got {value!r}")
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        if not isinstance(value, Mapping):
            raise UsageError(f"{where} must be a group of settings, got {value!r}")
        return dict(value)
    if dataclasses.is_dataclass(hint):
        return settings(typing.cast("type[Any]", hint), value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise UsageError(f"{where} must be {_said(hint)}, got {value!r}")
    return value


def _convert_union(arguments: tuple[Any, ...], value: Any, where: str, hint: Any) -> Any:
    if value is None and type(None) in arguments:
        return None
    for option in arguments:
        if option is type(None):
            continue
        try:
            return _convert(option, value, where)
        except UsageError as error:
            last = error
            if len([a for a in arguments if a is not type(None)]) == 1:
                raise
    raise UsageError(f"{where} must be {_said(hint)}, got {value!r}") from last


def _said(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, str(hint))
