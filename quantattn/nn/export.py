"""A model for other runtimes: a folder with `torch.export` or ONNX, held against the library before it is written.

    model.onnx | model.pt2   the graph and its weights
    export.json              inputs, outputs, hashes of the model, and how far from float64 the file was found
    vocabulary.json          the tokenizer, as in the model's folder
    example.safetensors      one pack and the library's answer, so that any runtime can be held against it
    README.md  manifest.json

The error budget is that of attention, for the outputs of the whole model. The truth is the model in float64, and over
all packs, for each output, in the largest and in the mean error,

    error of the file  ≤  2 · error of the library in float32  +  floor       floor = 2 · |(truth + 0.3 − 0.3) − truth|
"""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch.export import ExportedProgram

from quantattn import __version__
from quantattn.batch import PackedBatch, Vectors
from quantattn.nn.config import EncoderConfig
from quantattn.nn.ensemble import Ensemble
from quantattn.nn.export_page import described, readme
from quantattn.nn.folder import write_folder
from quantattn.nn.model import Model
from quantattn.nn.portable import inputs_of, portable
from quantattn.nn.pretrained import VOCABULARY, load_model

FORMATS = {"torch": "model.pt2", "onnx": "model.onnx"}
"""Format → name of its file."""
OPSET = 20
"""Version of ONNX operators that a file asks for; onnxruntime has it since 1.17."""

LENGTHS = ((1,), (97,), (5, 1, 33, 2, 64), (2, 0, 3), tuple(range(1, 33)))
"""Lengths of the sequences of the packs that are drawn: a token, a sequence, few, an empty one among them, many."""
_LARGEST_ONNX = (1 << 31) - (1 << 24)

Runner = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Inputs by name → outputs by name."""


@dataclass(frozen=True)
class Agreement:
    """One output of an exported model held against its budget, over all packs.

    Attributes:
        name: of the output.
        worst: largest error of the file against the model in float64.
        mean: mean error of the file.
        library_worst: largest error of the library in float32.
        library_mean: mean error of the library in float32.
        allowed_worst: largest error within the budget.
        allowed_mean: mean error within the budget.
    """

    name: str
    worst: float
    mean: float
    library_worst: float
    library_mean: float
    allowed_worst: float
    allowed_mean: float

    @property
    def ok(self) -> bool:
        """Whether both errors are within the budget; an error that is NaN is not."""
        return self.worst <= self.allowed_worst and self.mean <= self.allowed_mean


def export_model(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    format: str,
    *,
    packs: Sequence[PackedBatch] = (),
    watch: Callable[[str], None] = lambda _: None,
) -> tuple[Agreement, ...]:
    """Write the model of a folder for other runtimes, once it agrees with the library on every pack.

    Args:
        source: folder of the model.
        folder: to be made; an earlier export of this format there is replaced, and nothing else.
        format: "torch" or "onnx".
        packs: to compare on, beside those that are drawn (`drawn_packs`).
        watch: told what is being done.

    Returns:
        How far each output is from float64.

    Raises:
        ValueError: the folder holds no model, there is no such format, or the file does not agree with the library:
            nothing is written then.
        ImportError: a package that ONNX needs is not here; the sentence says how to get it.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if format == "onnx":
        require_onnx()
    model = load_model(source, attention_backend="tiled", compile=False)
    if isinstance(model, Ensemble):
        raise ValueError(f"{source} is an ensemble; export its members, and take the mean of what they say")
    artefact, config = model.artefact, model.encoder.config
    assert artefact is not None
    model.requires_grad_(False)
    every = (*drawn_packs(config), *packs)
    watch(f"tracing {config.n_parameters:,} parameters of {source}")
    program = portable(model, every[2])
    given, example = inputs_of(config, every[2]), model.score(every[2])
    content = _torch_file(program) if format == "torch" else onnx_file(program, list(given), list(example))
    found = held_against(model, opened(format, content), every, watch)
    if bad := [row for row in found if not row.ok]:
        raise ValueError(
            f"the {format} file of {source} does not agree with the library: {bad[0].name} is up to {bad[0].worst:.3g} "
            f"from float64 where {bad[0].allowed_worst:.3g} is allowed; nothing was written"
        )
    document = described(model, given, example) | {
        "format": format,
        "file": FORMATS[format],
        "model": artefact.sha,
        "certificate": artefact.extra.get("certificate"),
        "made_by": _versions(format),
        "checked": {
            "packs": [{"lengths": pack.cu_seqlens.diff().tolist(), "decisions": len(pack.keys)} for pack in every],
            "outputs": [asdict(row) for row in found],
        },
    }
    kept = {f"input.{name}": value.clone() for name, value in given.items()}
    kept |= {f"output.{name}": value.clone() for name, value in example.items()}
    files = {
        FORMATS[format]: content,
        "export.json": (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode(),
        VOCABULARY: artefact.vocabulary_json.encode(),
        "example.safetensors": safetensors.torch.save(kept),
        "README.md": readme(document).encode(),
    }
    # Its bytes, which are compared with those on the disk, have been run.
    write_folder(Path(folder), files, __version__, check=lambda _: None)
    return found


def require_onnx() -> None:
    """Raise ImportError unless the packages that write and run ONNX are installed."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"format=onnx needs {error.name}: pip install 'quantattn[export]'", name=error.name
        ) from error
    onnxruntime.set_default_logger_severity(3)


def drawn_packs(config: EncoderConfig) -> tuple[PackedBatch, ...]:
    """Packs of random tokens an encoder reads: every code may come, a tenth of the values is missing, one is far away.

    A causal encoder decides at every third token, another at the ends of sequences.
    """
    draw = torch.Generator().manual_seed(0)
    packs = []
    for lengths in LENGTHS:
        n, ends = sum(lengths), torch.tensor(lengths).cumsum(0)
        fields = {name: torch.randint(0, count, (n,), generator=draw) for name, count in config.codes.items()}
        for name in config.values:
            values = torch.randn(n, generator=draw)
            values[torch.rand(n, generator=draw) < 0.1] = torch.nan
            values[-1] = 30.0
            fields[name] = values
        vectors = {
            name: Vectors(rows := torch.arange(0, n, 4), torch.randn(len(rows), len(pairs), generator=draw))
            for name, pairs in config.vectors.items()
        }
        gaps = 10 ** (
            9 * torch.rand(n, generator=draw, dtype=torch.float64) + 3
        )  # from a microsecond to a quarter hour
        last = torch.tensor([int(end) - 1 for end, length in zip(ends, lengths, strict=True) if length])
        rows = torch.arange(0, n, 3) if config.causal else last
        packs.append(
            PackedBatch(
                fields=fields,
                time=1_700_000_000_000_000_000 + gaps.long().cumsum(0),
                cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.int64), ends]).int(),
                max_seqlen=max(lengths),
                positions=rows,
                keys=torch.arange(len(rows)),
                vectors=vectors,
            ).check()
        )
    return tuple(packs)


def held_against(
    model: Model, run: Runner, packs: Sequence[PackedBatch], watch: Callable[[str], None] = lambda _: None
) -> tuple[Agreement, ...]:
    """How far from the model in float64 the outputs of `run` are, over all packs, and how far they may be.

    The model computes attention by "tiled". The library's own error is the larger of those of its two orders of sums,
    `deterministic=True` and "batch".
    """
    exact, config = deepcopy(model).double(), model.encoder.config
    theirs: dict[str, list[Tensor]] = {}
    ours: dict[str, list[tuple[Tensor, Tensor]]] = {}
    truths: dict[str, list[Tensor]] = {}
    for number, pack in enumerate(packs, start=1):
        watch(f"pack {number} of {len(packs)}: {pack.n_sequences} sequences, {pack.n_tokens:,} tokens")
        answers, library, again = (
            run(inputs_of(config, pack)),
            model.score(pack),
            model.score(pack, deterministic="batch"),
        )
        if list(answers) != list(library):
            raise ValueError(f"the exported model gives {list(answers)}, the library {list(library)}")
        for name, truth in exact.score(_doubled(pack)).items():
            truths.setdefault(name, []).append(truth.double().flatten())
            theirs.setdefault(name, []).append(answers[name].double().flatten())
            ours.setdefault(name, []).append((library[name].double().flatten(), again[name].double().flatten()))
    rows = []
    for name, pieces in truths.items():
        truth = torch.cat(pieces)
        worst, mean = _errors(torch.cat(theirs[name]), truth)
        losses = [_errors(torch.cat(order), truth) for order in zip(*ours[name], strict=True)]
        library_worst, library_mean = (max(column) for column in zip(*losses, strict=True))
        single = truth.float()
        noise = _errors((single + 0.3 - 0.3).double(), single.double())
        allowed = (2 * library_worst + 2 * noise[0], 2 * library_mean + 2 * noise[1])
        rows.append(Agreement(name, worst, mean, library_worst, library_mean, *allowed))
    return tuple(rows)


def opened(format: str, content: bytes) -> Runner:
    """What runs a file that this process has made. `torch.export.load` may unpickle: give it no other's."""
    if format == "torch":
        module = torch.export.load(io.BytesIO(content)).module()
        return lambda given: module(dict(given))
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    read, names = {i.name for i in session.get_inputs()}, [o.name for o in session.get_outputs()]

    def run(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = session.run(None, {name: value.numpy() for name, value in given.items() if name in read})
        return dict(zip(names, map(torch.from_numpy, found), strict=True))

    return run


def onnx_file(program: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """The program as ONNX, its inputs and outputs under their own names.

    Raises:
        ValueError: it would be larger than a protobuf message can be.
    """
    size = sum(value.numel() * value.element_size() for value in program.state_dict.values())
    if size > _LARGEST_ONNX:
        raise ValueError(f"the model has {size:,} bytes of weights and one ONNX file holds 2 GiB; use format=torch")
    with _quietly():
        made = torch.onnx.export(program, dynamo=True, opset_version=OPSET, input_names=inputs, verbose=False)
    assert made is not None
    graph = made.model.graph
    # A value inside may have got the name that an input or an output is to have.
    for number, value in enumerate(value for node in graph for value in node.outputs):
        value.name = f"value_{number}"
    for value, name in zip(graph.outputs, outputs, strict=True):
        value.name = name
    return bytes(made.model_proto.SerializeToString())


def _torch_file(program: ExportedProgram) -> bytes:
    program.example_inputs = None  # they would be pickled beside the graph
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch's exporter warns and logs about itself and about packages that nothing here needs."""
    logger = logging.getLogger("torch.onnx._internal.exporter")
    before = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(before)


def _doubled(pack: PackedBatch) -> PackedBatch:
    fields = {name: x.double() if x.is_floating_point() else x for name, x in pack.fields.items()}
    return replace(pack, fields=fields)


def _errors(value: Tensor, truth: Tensor) -> tuple[float, float]:
    gap = (value - truth).abs()
    return float(gap.max()), float(gap.mean())


def _versions(format: str) -> dict[str, Any]:
    packages = ("torch", "onnxscript", "onnxruntime") if format == "onnx" else ("torch",)
    found: dict[str, Any] = {"quantattn": __version__, **{name: metadata.version(name) for name in packages}}
    return found | ({"opset": OPSET} if format == "onnx" else {})
