"""What an exported model says of itself: its inputs and outputs as plain values, and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from quantattn.nn.model import Model

_WHAT = {
    "time": "nanoseconds UTC at which the token became available",
    "cu_seqlens": "rows cu_seqlens[n] … cu_seqlens[n + 1] − 1 are sequence n; from 0 to T",
    "positions": "rows at which a decision is made, ascending",
}
_LENGTHS = {"time": "T", "cu_seqlens": "N + 1", "positions": "Q"}


def described(model: Model, given: Mapping[str, Tensor], scores: Mapping[str, Tensor]) -> dict[str, Any]:
    """The inputs and outputs of an exported model, and whether it reads the past alone, as plain values."""
    config = model.encoder.config
    what = {name: f"codes 0 … {count - 1}; 0 is missing, 1 masked" for name, count in config.codes.items()}
    what |= dict.fromkeys(config.values, "scaled value; NaN is missing") | _WHAT
    lengths = dict(_LENGTHS)
    for name in config.vectors:
        lengths |= {f"{name}_rows": "K", f"{name}_values": "K"}
        what |= {f"{name}_rows": "rows that carry a vector, ascending", f"{name}_values": "their vectors"}
    heads = model.decision_heads()
    outputs = []
    for name, value in scores.items():
        owner = next((head for head in heads if len(heads) == 1 or name.startswith(f"{head}_")), None)
        row: dict[str, Any] = {"name": name, "dtype": _dtype(value), "shape": ["Q", *value.shape[1:]]}
        if owner is not None and name.endswith("prob"):
            row["classes"] = list(heads[owner].config.classes)  # type: ignore[union-attr]
        outputs.append(row)
    inputs = [
        {"name": name, "dtype": _dtype(x), "shape": [lengths.get(name, "T"), *x.shape[1:]], "what": what[name]}
        for name, x in given.items()
    ]
    return {"causal": config.causal, "parameters": config.n_parameters, "inputs": inputs, "outputs": outputs}


def readme(document: Mapping[str, Any]) -> str:
    """The page of an exported model."""
    sees = (
        "A token sees the past of its sequence alone, so decisions may stand anywhere in it."
        if document["causal"]
        else "A token sees all of its sequence, so a decision must be the last row of its own; elsewhere it gets NaN."
    )
    lines = [
        f"# {document['file']}",
        "",
        f"Model `{document['model']}` of quantattn {document['made_by']['quantattn']}, for other runtimes.",
        "",
        "T tokens of N sequences are laid end to end, with no padding; Q decisions are asked for. " + sees,
        "Offsets, positions or codes that make no pack give NaN everywhere. Memory grows with T²: give few sequences",
        "at a time.",
        "",
        "| input | dtype | shape | what |",
        "|---|---|---|---|",
        *(f"| {row['name']} | {row['dtype']} | {_shape(row)} | {row['what']} |" for row in document["inputs"]),
        "",
        "| output | dtype | shape | columns | error | library's | allowed |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, held in zip(document["outputs"], document["checked"]["outputs"], strict=True):
        errors = " | ".join(f"{held[name]:.2g}" for name in ("worst", "library_worst", "allowed_worst"))
        columns = ", ".join(row.get("classes", []))
        lines.append(f"| {row['name']} | {row['dtype']} | {_shape(row)} | {columns} | {errors} |")
    lines += [
        "",
        f"Errors are the largest against the model in float64, over {len(document['checked']['packs'])} packs; all",
        "figures stand in `export.json`, the sha256 of every file in `manifest.json`, the tokenizer in",
        "`vocabulary.json`, and one pack with the library's answer in `example.safetensors`:",
        "",
        "```python",
        *(_ONNX if document["format"] == "onnx" else _TORCH),
        "```",
        "",
    ]
    if document["format"] == "torch":
        lines += [
            "`torch.export.load` may run code from a file that somebody has changed: compare its sha256 first.",
            "",
        ]
    return "\n".join(lines)


_ONNX = (
    "import numpy as np",
    "import onnxruntime",
    "from safetensors.numpy import load_file",
    "",
    'example = load_file("example.safetensors")',
    'given = {name[6:]: value for name, value in example.items() if name.startswith("input.")}',
    'session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])',
    "read = {node.name for node in session.get_inputs()}",
    "found = session.run(None, {name: value for name, value in given.items() if name in read})",
    "for node, value in zip(session.get_outputs(), found):",
    '    print(node.name, value.shape, np.abs(value - example[f"output.{node.name}"]).max())',
)
_TORCH = (
    "import torch",
    "from safetensors.torch import load_file",
    "",
    'example = load_file("example.safetensors")',
    'given = {name[6:]: value for name, value in example.items() if name.startswith("input.")}',
    'model = torch.export.load("model.pt2").module()',
    "for name, value in model(given).items():",
    '    print(name, tuple(value.shape), (value - example[f"output.{name}"]).abs().max().item())',
)


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _shape(row: Mapping[str, Any]) -> str:
    return f"({', '.join(map(str, row['shape']))}{',' if len(row['shape']) == 1 else ''})"
