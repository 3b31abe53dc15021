"""Models as folders: weights in safetensors, everything else in JSON and Markdown, hashes of all in a manifest.

    model.safetensors  config.json  vocabulary.json  card.md  manifest.json

Loading one runs no code from it: nothing is unpickled, nothing is imported by a name that stands in a file, and no file
is opened but these five.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

from quantattn import __version__
from quantattn.nn.config import EncoderConfig
from quantattn.nn.encoder import Encoder
from quantattn.nn.ensemble import MOST_MEMBERS, Ensemble
from quantattn.nn.folder import parse_json, read_folder, told, write_folder
from quantattn.nn.heads import HeadConfig, head_from_dict, head_to_dict
from quantattn.nn.model import Artefact, Model

WEIGHTS, CONFIG, VOCABULARY, CARD = "model.safetensors", "config.json", "vocabulary.json", "card.md"

_LARGEST = {WEIGHTS: 1 << 40, CONFIG: 1 << 22, VOCABULARY: 1 << 28, CARD: 1 << 22}
_LARGEST_HEADER = 1 << 24
_CLASS, _ENSEMBLE = "Model", "Ensemble"
_DRAWS = (init.normal_, init.uniform_, init.kaiming_uniform_)


def save_pretrained(
    model: Model,
    folder: str | os.PathLike[str],
    *,
    vocabulary_json: str = "{}",
    card: str = "",
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model as a folder; an earlier one of the same name goes after the new one was read back.

    Args:
        model: its parameters must be float32 on any device; they are stored bit for bit.
        folder: to be made, with its parents; what else stands there already is never deleted.
        vocabulary_json: the tokenizer's JSON.
        card: Markdown about what the model is and is not good for.
        extra: plain JSON values to keep with the model.

    Returns:
        The folder's path.

    Raises:
        ValueError: parameters of another dtype, `extra` or `vocabulary_json` that are no JSON, or a folder that holds
            something else than a model.
    """
    folder = Path(folder)
    config: dict[str, Any] = {
        "class": _CLASS,
        "encoder": model.encoder.config.to_dict(),
        # A list, because the order of heads is part of the model and the order of keys is not part of JSON.
        "heads": [{"name": name, **head_to_dict(head)} for name, head in model.head_configs.items()],
        "extra": dict(extra or {}),
    }
    if isinstance(model, Ensemble):
        config |= {"class": _ENSEMBLE, "members": len(model.members)}
    try:
        config_json = json.dumps(config, indent=2, allow_nan=False) + "\n"
        parse_json(Path(CONFIG), config_json.encode())
    except (TypeError, ValueError) as error:
        raise ValueError(f"extra must hold plain JSON values: {error}") from error
    parse_json(Path(VOCABULARY), vocabulary_json.encode())
    files = {
        WEIGHTS: safetensors.torch.save(_weights(model)),
        CONFIG: config_json.encode(),
        VOCABULARY: vocabulary_json.encode(),
        CARD: card.encode(),
    }
    write_folder(folder, files, __version__, check=load_model)
    return folder


def load_model(
    folder: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    attention_backend: str | None = None,
    compile: bool | None = None,
) -> Model:
    """Read a model, or an ensemble of models, that `save_pretrained` wrote, in evaluation mode.

    Args:
        folder: where it stands.
        device: where its parameters go.
        attention_backend: backend to use in place of the one that it was saved with.
        compile: whether to run its encoder through `torch.compile`, in place of what it was saved with.

    Raises:
        ValueError: one sentence naming the file and what is wrong with it.
    """
    folder = Path(folder)
    contents, library, sha = read_folder(folder, _LARGEST)
    encoder_config, heads, extra, members = _read_config(folder / CONFIG, contents[CONFIG])
    shapes = _check_header(folder / WEIGHTS, contents[WEIGHTS])
    stored = sum(map(prod, shapes.values()))
    # Before anything is built: a description may ask for more memory than the weights beside it could ever fill.
    described = encoder_config.n_parameters * (members or 1)
    if described > stored:
        what = "an encoder" if members is None else f"{members} encoders"
        raise ValueError(
            f"{folder / CONFIG} describes {what} of {described} parameters, {folder / WEIGHTS} holds {stored}"
        )
    # One large tensor could stand for millions of small layers; each layer and each head has several of its own.
    pieces = (encoder_config.n_layers + len(heads)) * (members or 1)
    if pieces > len(shapes):
        raise ValueError(
            f"{folder / CONFIG} describes {pieces} layers and heads, {folder / WEIGHTS} holds {len(shapes)} tensors"
        )
    changes = {"attention_backend": attention_backend, "compile": compile}
    encoder_config = encoder_config.with_changes(**{name: v for name, v in changes.items() if v is not None})
    with torch.device("meta"), _Undrawn():
        try:
            built = [Model(Encoder(encoder_config), heads) for _ in range(members or 1)]
            model = built[0] if members is None else Ensemble(built)
        except ValueError as error:
            raise ValueError(f"{folder / CONFIG} describes no model: {told(error)}") from error
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if shapes != expected:
        raise ValueError(f"{folder / WEIGHTS} does not fit {folder / CONFIG}: {_difference(shapes, expected)}")
    model.load_state_dict(safetensors.torch.load(contents[WEIGHTS]), assign=True)
    try:
        card = contents[CARD].decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{folder / CARD} is not UTF-8: {error}") from error
    parse_json(folder / VOCABULARY, contents[VOCABULARY])
    model.artefact = Artefact(contents[VOCABULARY].decode(), card, extra, library, sha)
    return model.to(device).eval()


class _Undrawn(TorchFunctionMode):
    """No parameter is drawn in the block: those of a file replace them, and to draw on `meta` imports a compiler."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        return given["tensor"] if function in _DRAWS else function(*args, **given)


def _weights(model: Model) -> dict[str, Tensor]:
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    other = sorted({str(value.dtype) for value in weights.values() if value.dtype != torch.float32})
    if other:
        raise ValueError(f"a model is saved in float32, its parameters are {', '.join(other)}")
    return weights


def _read_config(where: Path, raw: bytes) -> tuple[EncoderConfig, dict[str, HeadConfig], dict[str, Any], int | None]:
    """Encoder, heads, what was stored with them, and of an ensemble the number of its members."""
    config = parse_json(where, raw)
    members = config.pop("members", None) if isinstance(config, dict) and config.get("class") == _ENSEMBLE else None
    if not isinstance(config, dict) or set(config) != {"class", "encoder", "heads", "extra"}:
        raise ValueError(f"{where} must be an object with the keys class, encoder, heads and extra")
    if config["class"] not in (_CLASS, _ENSEMBLE):
        raise ValueError(
            f"{where} describes a {config['class']!r:.80}; this library knows {_CLASS!r} and {_ENSEMBLE!r}"
        )
    if config["class"] == _ENSEMBLE and not (type(members) is int and 1 <= members <= MOST_MEMBERS):
        raise ValueError(f"{where} must give members, 1 to {MOST_MEMBERS}, of an ensemble, got {members!r:.40}")
    if not all(isinstance(config[name], dict) for name in ("encoder", "extra")) or not isinstance(
        config["heads"], list
    ):
        raise ValueError(f"{where} must hold objects under encoder and extra and a list under heads")
    try:
        encoder = EncoderConfig.from_dict(config["encoder"])
        heads: dict[str, HeadConfig] = {}
        for plain in config["heads"]:
            if not isinstance(plain, dict) or not isinstance(plain.get("name"), str) or plain["name"] in heads:
                raise ValueError(f"every head needs a name of its own, got {plain!r}")
            heads[plain["name"]] = head_from_dict({k: v for k, v in plain.items() if k != "name"})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where} describes no model: {told(error)}") from error
    return encoder, heads, config["extra"], members


def _check_header(where: Path, raw: bytes) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a safetensors file of float32 tensors that lie end to end and fill it."""
    size = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or size > min(len(raw) - 8, _LARGEST_HEADER):
        raise ValueError(f"{where} announces a header of {size} bytes, it has {len(raw)} in all")
    header = parse_json(where, raw[8 : 8 + size])
    if not isinstance(header, dict):
        raise ValueError(f"{where} must begin with an object that describes its tensors")
    shapes, spans = {}, []
    for name, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"} or entry["dtype"] != "F32":
            raise ValueError(f"{where} must give dtype F32, shape and data_offsets of {name!r:.80}, got {entry!r:.200}")
        shape, span = entry["shape"], entry["data_offsets"]
        if not all(isinstance(part, list) and all(type(n) is int and n >= 0 for n in part) for part in (shape, span)):
            raise ValueError(
                f"{where} must give sizes and offsets of {name!r:.80} as lists of counts, got {entry!r:.200}"
            )
        if len(span) != 2 or span[1] - span[0] != 4 * prod(shape):
            raise ValueError(f"{where} gives {name!r:.80} of shape {shape!s:.80} the bytes {span!s:.80}")
        shapes[name] = tuple(shape)
        spans.append(span)
    end = 0
    for begin, stop in sorted(spans):
        if begin != end:
            raise ValueError(f"{where} has a gap or an overlap at byte {end} of its data")
        end = stop
    if end != len(raw) - 8 - size:
        raise ValueError(f"{where} has {len(raw) - 8 - size} bytes of data, its header describes {end}")
    return shapes


def _difference(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> str:
    for name in sorted(set(found) | set(expected)):
        if found.get(name) != expected.get(name):
            is_now, wanted = str(found.get(name, "missing")), str(expected.get(name, "none"))
            return f"{told(name[:80])} is {is_now:.80}, expected {wanted:.80}"
    return "nothing differs"
