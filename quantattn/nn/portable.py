"""A model as a graph of plain operations, which other runtimes have: `torch.export` with our operators written out.

Three operators of the library stand in the graph of an encoder: attention, the rotation of heads, and the table of its
angles. Here each is written in operations that every runtime has. Attention becomes torch's
`scaled_dot_product_attention` over the whole pack, with a mask that lets a token see its own sequence alone, so memory
grows with T².

Dimensions: N sequences, T packed tokens, Q decisions, H query heads, Hkv key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from quantattn.attention import rotate
from quantattn.batch import PackedBatch, Vectors
from quantattn.nn.config import EncoderConfig
from quantattn.nn.model import Model
from quantattn.nn.rotary import position_frequencies, time_frequencies

_PACK = ("time", "cu_seqlens", "positions")


def inputs_of(config: EncoderConfig, batch: PackedBatch) -> dict[str, Tensor]:
    """Name → tensor: what a portable model reads of a batch.

    Its fields (T,), int64 codes and float32 values; `<name>_rows` (K,) int64 and `<name>_values` (K, E) float32 of
    vectors; `time` (T,) int64, `cu_seqlens` (N + 1,) int32 and `positions` (Q,) int64, as in `PackedBatch`.

    Raises:
        ValueError: the batch lacks a field or vectors, or two inputs would have the same name.
    """
    lacking = sorted({*config.codes, *config.values} - set(batch.fields) | set(config.vectors) - set(batch.vectors))
    if lacking:
        raise ValueError(f"the batch lacks {', '.join(lacking)}, which the model reads")
    names = [*config.codes, *config.values, *_PACK, *(f"{n}_{w}" for n in config.vectors for w in ("rows", "values"))]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two inputs of the exported model would be called {twice[0]!r}; give that field another name")
    found = {name: batch.fields[name] for name in (*config.codes, *config.values)}
    for name in config.vectors:
        found |= {f"{name}_rows": batch.vectors[name].rows, f"{name}_values": batch.vectors[name].values}
    return found | {name: getattr(batch, name) for name in _PACK}


def portable(model: Model, batch: PackedBatch) -> ExportedProgram:
    """The model as an exported program of plain operations, for any number of tokens, sequences and decisions.

    It takes one mapping, that of `inputs_of`, and gives one, that of `Model.score`. What the library would refuse
    becomes NaN, because a graph cannot raise: everything, where offsets, positions or codes below zero make no pack;
    and, under a bidirectional encoder, a decision that has tokens of its sequence after it and would see its future.

    Args:
        model: in float32 on the CPU, in evaluation mode; attention backend "tiled", as `load_model` can set it.
        batch: a sound pack of at least two sequences, with decisions; it decides no size.

    Raises:
        ValueError: inputs that cannot be named apart.
    """
    config = model.encoder.config
    given = inputs_of(config, batch)
    dynamic = {name: {0: Dim.DYNAMIC} for name in given}
    with torch.no_grad():
        plain = torch.export.export(_Portable(model), (given,), dynamic_shapes=(dynamic,), strict=False)
    left = sorted({str(node.target) for node in plain.graph.nodes if "quantattn" in str(node.target)})
    if left:
        raise NotImplementedError(f"operators of the library that are not written out: {', '.join(left)}")
    return plain


class _Portable(nn.Module):
    """`Model.score` of inputs by name."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.written_out = _WrittenOut(model.encoder.config)  # before anything is traced: its tables are constants

    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        config, (time, cu_seqlens, positions) = self.model.encoder.config, (given[name] for name in _PACK)
        vectors = {name: Vectors(given[f"{name}_rows"], given[f"{name}_values"]) for name in config.vectors}
        fields = {name: given[name] for name in (*config.codes, *config.values)}
        # The longest sequence and the keys are of no use to the encoder.
        batch = PackedBatch(fields, time, cu_seqlens, 0, positions, positions, vectors=vectors)
        with self.written_out:
            found = self._scores(batch)
        sound = _sound(config, fields, cu_seqlens, positions)
        return {name: _else_nan(value, sound) for name, value in found.items()}

    def _scores(self, batch: PackedBatch) -> dict[str, Tensor]:
        hidden, heads = self.model.encoder(batch), self.model.decision_heads()
        if not heads:
            return {"embedding": hidden[batch.positions]}
        found: dict[str, Tensor] = {}
        for name, head in heads.items():
            for what, value in head.scores(head(head.pooling(hidden, batch))).items():
                found[what if len(heads) == 1 else f"{name}_{what}"] = value
        return found


def _sound(config: EncoderConfig, fields: Mapping[str, Tensor], cu_seqlens: Tensor, positions: Tensor) -> Tensor:
    """(Q,) whether the library would answer for each decision."""
    offsets, some = cu_seqlens.long(), next(iter(fields.values()))
    end = offsets[-1:]
    pack = (offsets[:1] == 0) & (end == some.shape[0]) & _rises(offsets)
    pack = pack & _rises(positions)
    for name in config.codes:
        pack = pack & (fields[name] >= 0).all()
    sound = pack & (positions >= 0) & (positions < end)
    if config.causal:
        return sound
    # A decision is the last row of its sequence where the row after it begins another one.
    return sound & (offsets[None, :] == positions[:, None] + 1).any(dim=-1)


def _rises(x: Tensor) -> Tensor:
    """Each with the one before it, the first with itself: differences would be of size 0 or 1 for one sequence."""
    return (x >= x[(torch.arange(x.shape[0]) - 1).clamp(min=0)]).all()


def _else_nan(value: Tensor, sound: Tensor) -> Tensor:
    return value.where(sound.view(-1, *[1] * (value.dim() - 1)), torch.nan)


class _WrittenOut(TorchFunctionMode):
    """For the time of the block, operators of the library, and those of torch that ONNX lacks, are written out."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        ours = torch.ops.quantattn
        pairs, turning = config.head_size // 2, config.time_pairs
        bases = {config.rotary_base, config.local_rotary_base or config.rotary_base}
        # Made here and put in as tensors: ONNX would keep a Python number in float32, and angles need float64.
        places = {base: position_frequencies(pairs - turning, base) for base in bases}
        times = time_frequencies(turning, config.time_periods) * 1e-9  # radians a nanosecond
        self.plain: dict[Any, Callable[..., Any]] = {
            ours.rotary_table.default: partial(_rotary_table, places, times),
            ours.rotate_heads.default: _rotate_heads,
            ours.packed_attention.default: self._attention,
            torch.searchsorted: _searchsorted,
            Tensor.index_add: _index_add,
        }
        self._masks: dict[tuple[Any, ...], tuple[Tensor, Tensor, Tensor]] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self.plain.get(function, function)(*args, **(kwargs or {}))

    def _attention(
        self, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, bias: None, scale: float,
        left: int | None, right: int | None, *_: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Of q (T, H, D), k and v (Tk, Hkv, D) the out (T, H, D), and zeros for the lse, which nothing reads."""
        asked = (id(cu_q), id(cu_k), left, right)
        if asked not in self._masks:  # the offsets are kept beside it, so that their ids are nobody else's
            self._masks[asked] = (_seen(cu_q, cu_k, q.shape[0], k.shape[0], left, right), cu_q, cu_k)
        seen, group = self._masks[asked][0], q.shape[1] // k.shape[1]
        k, v = (x.transpose(0, 1).repeat_interleave(group, dim=0)[None] for x in (k, v))  # (1, H, Tk, D)
        q = q.transpose(0, 1)[None]
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[None, None], scale=scale)
        return out[0].transpose(0, 1).contiguous(), q.new_zeros(out.shape[2], out.shape[1])


def _rotary_table(
    places: Mapping[float, Tensor], times: Tensor, time: Tensor, cu_seqlens: Tensor,
    pairs: int, time_pairs: int, base: float, *_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    row = torch.arange(time.shape[0])
    start = cu_seqlens.long()[_sequences(cu_seqlens, row)]
    angles = []
    if pairs > time_pairs:
        angles.append((row - start).double()[:, None] * places[base])
    if time_pairs:
        angles.append((time - time[start]).double()[:, None] * times)
    angle = torch.cat(angles, dim=-1).unsqueeze(1)  # (T, 1, D / 2)
    cos, sin = torch.cos(angle).float(), torch.sin(angle).float()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def _rotate_heads(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    kv_heads = (qkv.shape[1] - heads) // 2
    q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
    return rotate(q, cos, sin), rotate(k, cos, sin), v.clone()


def _seen(cu_q: Tensor, cu_k: Tensor, n_q: int, n_k: int, left: int | None, right: int | None) -> Tensor:
    """(T, Tk) bool, which rows of a pack of keys each row of a pack of queries sees."""
    query, key = torch.arange(n_q), torch.arange(n_k)
    of_query, of_key = _sequences(cu_q, query), _sequences(cu_k, key)
    # The last query of a sequence stands beside its last key.
    beside = query - cu_q.long()[of_query + 1] + cu_k.long()[of_query + 1]
    relative = key[None, :] - beside[:, None]
    seen = of_query[:, None] == of_key[None, :]
    seen = seen if left is None else seen & (relative >= -left)
    return seen if right is None else seen & (relative <= right)


def _sequences(cu_seqlens: Tensor, rows: Tensor) -> Tensor:
    """The sequence of each row; as `starts_of_rows` finds it, all offsets are searched."""
    return _searchsorted(cu_seqlens.long(), rows, right=True) - 1


def _searchsorted(where: Tensor, what: Tensor, *, right: bool = False) -> Tensor:
    """Of one dimension each."""
    below = where[None, :] <= what[:, None] if right else where[None, :] < what[:, None]
    return below.sum(dim=-1)


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Along the first axis, the only one that is asked for, at rows that differ."""
    return x.index_put((index,), x[index] + source)
