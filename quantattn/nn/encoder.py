"""The encoder: packed tokens in, one vector a token out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from quantattn.attention import Mask, attention, by_kernel, rotate, rotate_heads, swiglu_linear
from quantattn.batch import PackedBatch
from quantattn.nn.config import EncoderConfig
from quantattn.nn.context import Attending, Ranks, Share
from quantattn.nn.embed import Embedding
from quantattn.nn.invariant import Linear, as_product, elementwise, linear
from quantattn.nn.norm import RMSNorm
from quantattn.nn.rotary import rotary_table
from quantattn.nn.rows import offsets_of_decisions


class Rotation(NamedTuple):
    """What queries and keys are multiplied by, see `rotary_table`."""

    cos: Tensor  # (T, 1, D)
    sin: Tensor


class SelfAttention(nn.Module):
    """Multi-head attention of a packed batch over itself, with rotary positions, behind `project_in`.

    Its input is what `project_in` makes of the rows, since the norm before it multiplies them itself (`Block`). `at`
    answers for some rows alone, ascending; under a bidirectional encoder each of them must be the last row of its
    sequence. Given a `share`, input and result are this rank's rows of a pack that several hold, or whatever else has
    attention of its own.
    """

    batch_invariant = False

    def __init__(self, config: EncoderConfig, local: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = config.n_heads, config.kv_heads, config.head_size
        self.backend = config.attention_backend
        self.mask = layer_mask(config, local)
        self.project_in = Linear(config.width, (self.heads + 2 * self.kv_heads) * self.size, bias=False)
        self.project_out = Linear(config.width, config.width, bias=False)
        self.normalised = config.qk_norm
        self.norm_q = RMSNorm(self.size, config.norm_eps) if config.qk_norm else nn.Identity()
        self.norm_k = RMSNorm(self.size, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(self, qkv: Tensor, cu_seqlens: Tensor, rotation: Rotation, share: Attending | None = None) -> Tensor:
        """(T, (H + 2 Hkv) D) → (T, C); the dtype of attention is that of the projection, so it follows autocast."""
        out = self._all_rows(self._by_head(qkv), cu_seqlens, rotation, share)
        return self.project_out(out.flatten(1))  # type: ignore[no-any-return]

    def at(self, rows: Tensor, x: Tensor, cu_seqlens: Tensor, rotation: Rotation) -> Tensor:
        """(Q, C) for the given rows alone, from normalised x (T, C)."""
        if self.mask == Mask():
            out = self._last_rows(x, cu_seqlens, rotation, rows)
        else:
            out = self._all_rows(self._by_head(self.project_in(x)), cu_seqlens, rotation, None)[rows]
        return self.project_out(out.flatten(1))  # type: ignore[no-any-return]

    def _all_rows(self, qkv: Tensor, cu_seqlens: Tensor, rotation: Rotation, share: Attending | None) -> Tensor:
        """(T, H, D) from (T, H + 2 Hkv, D)."""
        if self.normalised:
            q, k, v = torch.split(qkv, [self.heads, self.kv_heads, self.kv_heads], dim=1)
            q, k = rotate(self.norm_q(q), *rotation), rotate(self.norm_k(k), *rotation)
        else:
            q, k, v = rotate_heads(qkv, *rotation, self.heads)
        if share is not None:
            return share.attend(q, k, v, self.mask, self.backend)
        return self._attend(q, k, v, cu_seqlens, cu_seqlens)

    def _last_rows(self, x: Tensor, cu_seqlens: Tensor, rotation: Rotation, rows: Tensor) -> Tensor:
        """(Q, H, D): the last row of a sequence sees all of it, so few queries over all keys are the same function."""
        in_q, in_kv = torch.split(self.project_in.weight, [self.heads * self.size, 2 * self.kv_heads * self.size])
        q = self._by_head(linear(x[rows], in_q, None, self.batch_invariant))
        k, v = torch.split(self._by_head(linear(x, in_kv, None, self.batch_invariant)), self.kv_heads, dim=1)
        q = rotate(self.norm_q(q), rotation.cos[rows], rotation.sin[rows])
        return self._attend(q, rotate(self.norm_k(k), *rotation), v, offsets_of_decisions(rows, cu_seqlens), cu_seqlens)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1] // self.size, self.size)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor) -> Tensor:
        order: bool | Literal["batch"] = "batch" if self.batch_invariant else True
        return attention(q, k, v, cu_q, cu_k, mask=self.mask, deterministic=order, backend=self.backend).out


class FeedForward(nn.Module):
    """SwiGLU: W₂ (silu(a) · b) with (a, b) = W₁ x (Shazeer 2020, arXiv 2002.05202), behind W₁, its `project_in`."""

    batch_invariant = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.project_in = Linear(config.width, 2 * config.hidden, bias=False)
        self.project_out = Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(T, 2 F), gates and values as one product gives them, → (T, C)."""
        if by_kernel(x):
            return swiglu_linear(x, as_product(self.project_out.weight), batch_invariant=self.batch_invariant)
        gate, value = x.chunk(2, dim=-1)
        return self.project_out(elementwise(functional.silu, gate, self.batch_invariant) * value)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm residual block: x + attention(norm(x)), then x + feed_forward(norm(x)).

    It takes and gives the stream as a sum that is yet to be made, of x and of the branch that was computed last: the
    norm that comes next adds them, in the same pass over memory.
    """

    def __init__(self, config: EncoderConfig, local: bool) -> None:
        super().__init__()
        self.local = local
        self.dropout = config.dropout
        self.norm_attention = RMSNorm(config.width, config.norm_eps)
        self.attention = SelfAttention(config, local)
        self.norm_feed_forward = RMSNorm(config.width, config.norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x: Tensor,
        cu_seqlens: Tensor,
        rotation: Rotation,
        rows: Tensor | None = None,
        share: Attending | None = None,
        lean: bool = False,
        branch: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(T, C) → (T, C), or (Q, C) for the given rows; `lean` computes in backward again what is cheap to compute."""
        if rows is None and by_kernel(x) and not (lean and self.attention.normalised):
            x, qkv = self.norm_attention.project(x, branch, self.attention.project_in)
            branch = self._drop(self.attention(qkv, cu_seqlens, rotation, share))
        else:
            x = x if branch is None else x + branch
            arguments = (x, cu_seqlens, rotation, rows, share)
            branch = _keeping_products(self._attend, *arguments) if lean else self._attend(*arguments)
            x = x if rows is None else x[rows]
        return checkpoint(self._feed, x, branch, use_reentrant=False) if lean else self._feed(x, branch)

    def _attend(
        self, x: Tensor, cu_seqlens: Tensor, rotation: Rotation, rows: Tensor | None, share: Attending | None
    ) -> Tensor:
        if rows is not None:
            _, normed = self.norm_attention.added(x, None, self.attention.project_in)
            return self._drop(self.attention.at(rows, normed, cu_seqlens, rotation))
        _, qkv = self.norm_attention.project(x, None, self.attention.project_in)
        return self._drop(self.attention(qkv, cu_seqlens, rotation, share))

    def _feed(self, x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
        x, inner = self.norm_feed_forward.project(x, branch, self.feed_forward.project_in, keep_parts=True)
        return x, self._drop(self.feed_forward(inner))

    def _drop(self, branch: Tensor) -> Tensor:
        return functional.dropout(branch, self.dropout, self.training) if self.dropout else branch


class Encoder(nn.Module):
    """A transformer encoder over packed event sequences.

    Args:
        size: a name of `SIZES` ("tiny", "small", "base", "long"), or a whole `EncoderConfig`.
        codes: field → number of codes; needed with a name.
        values: names of the float fields.
        causal: whether a token sees the past only.
        **overrides: any other attribute of `EncoderConfig`.

    Calling it with a `PackedBatch` gives (T, C), one vector a token; the sequences never see each other, and
    positions begin anew with each of them. The result is float32 unless the parameters are of another dtype; matrix
    products and attention follow `torch.autocast`. Inside `batch_invariant(encoder)` a sequence's states have the same
    bits whatever else is in the batch. After `share_rows(encoder)` several processes compute a batch together.

    Example:
        >>> encoder = Encoder("tiny", codes={"kind": 9, "side": 5}, values=("size_value",))
        >>> hidden = encoder(batch)  # (T, 64)
    """

    batch_invariant = False
    ranks: Ranks | None = None

    def __init__(
        self,
        size: str | EncoderConfig = "base",
        *,
        codes: Mapping[str, int] | None = None,
        values: Sequence[str] | None = None,
        **overrides: Any,
    ) -> None:
        super().__init__()
        self.config = _config(size, codes, values, overrides)
        config = self.config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(Block(config, config.is_local(i)) for i in range(config.n_layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.reset_parameters()
        if config.compile:
            self.compile()

    def reset_parameters(self) -> None:
        """Draw the parameters from torch's global generator.

        Matrices have variance 1 / fan-in; those that write to the residual stream are smaller by √(2 · n_layers),
        so that its variance does not grow with depth (Radford et al. 2019, section 2.3).
        """
        self.embedding.reset_parameters()
        for name, module in self.blocks.named_modules():
            if isinstance(module, nn.Linear):
                depth = 2 * self.config.n_layers if name.endswith("project_out") else 1
                nn.init.normal_(module.weight, std=(module.in_features * depth) ** -0.5)
            elif isinstance(module, RMSNorm):
                nn.init.ones_(module.weight)
        nn.init.ones_(self.norm.weight)

    def __call__(self, batch: PackedBatch, at_decisions: bool = False) -> Tensor:
        """As `forward`; what `compile` makes of it serves every number of tokens, sequences and decisions."""
        if self.config.compile and not torch.compiler.is_compiling():
            # `dynamic=True` would also make variables of ε, the rotary bases and every other float.
            carried = [part for each in batch.vectors.values() for part in (each.rows, each.values)]
            for sized in (*batch.fields.values(), batch.time, batch.cu_seqlens, batch.positions, *carried):
                torch._dynamo.maybe_mark_dynamic(sized, 0)
        return super().__call__(batch, at_decisions)  # type: ignore[no-any-return]

    def forward(self, batch: PackedBatch, at_decisions: bool = False) -> Tensor:
        """(T, C) hidden states of a batch, after the final norm.

        With `at_decisions`, only the rows `batch.positions`, (Q, C): the last block is computed for those alone, which
        is nearly half of the work of two layers. A bidirectional encoder then needs every decision at the end of its
        sequence (`check_decisions`).

        Raises:
            ValueError: the batch lacks a field, or has it in another kind.
        """
        config, cu_seqlens = self.config, batch.cu_seqlens
        share = None if self.ranks is None else Share.of(batch, config.causal, self.ranks)
        x = self.embedding(*((batch.fields, batch.vectors) if share is None else share.inputs(batch)))
        held = None if share is None else share.rows
        wide, local = self.rotations(batch.time, cu_seqlens, held)
        again = config.gradient_checkpointing if self.training and torch.is_grad_enabled() else False
        branch: Tensor | None = None
        for i, block in enumerate(self.blocks):
            last = at_decisions and share is None and i == len(self.blocks) - 1
            arguments = (cu_seqlens, local if block.local else wide, batch.positions if last else None, share)
            if again is True:  # what is kept is then one tensor a block
                x, branch = checkpoint(block, x if branch is None else x + branch, *arguments, use_reentrant=False)
            else:
                x, branch = block(x, *arguments, lean=again == "feed_forward", branch=branch)
        x = self.norm(x + branch)
        if share is not None:
            return share.at(x, batch.positions) if at_decisions else share.whole(x)
        return x  # type: ignore[no-any-return]

    def rotations(self, time: Tensor, cu_seqlens: Tensor, rows: Tensor | None = None) -> tuple[Rotation, Rotation]:
        """That of global and that of local layers, see `rotary_table`."""
        config = self.config

        def turned(base: float) -> Rotation:
            return Rotation(*rotary_table(config, base, time, cu_seqlens, rows, batch_invariant=self.batch_invariant))

        wide = turned(config.rotary_base)
        if config.local_window is None or config.local_rotary_base is None:
            return wide, wide
        return wide, turned(config.local_rotary_base)


def share_rows(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Let every encoder in `model` compute the rows of its batches together with the other ranks of `group`.

    None is all processes. From then on every rank calls it with the same batch at the same place of its program, in
    forward and in backward: `quantattn.nn.context`.

    Raises:
        ValueError: no process group, or a compiled encoder.
    """
    if not dist.is_initialized():
        raise ValueError("ranks that share the rows of a batch need a process group: call init_process_group first")
    for module in model.modules():
        if isinstance(module, Encoder):
            if module.config.compile:
                raise ValueError(
                    "an encoder whose rows are shared by several ranks is not compiled; "
                    "make it with compile=False (model.compile=false)"
                )
            module.ranks = Ranks(group)


def layer_mask(config: EncoderConfig, local: bool) -> Mask:
    """What a token sees in a local or a global layer."""
    if not local:
        return Mask(causal=config.causal)
    window = config.local_window
    return Mask(causal=True, window=(window, 0)) if config.causal else Mask(window=(window, window))


def _keeping_products(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """`function`, of which backward computes again all but matrix products and attention."""
    contexts = partial(create_selective_checkpoint_contexts, _keep)
    return checkpoint(function, *arguments, use_reentrant=False, context_fn=contexts)  # type: ignore[no-any-return]


def _keep(_: Any, op: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    turned = op is torch.ops.quantattn.rotate_heads.default
    product = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default) or op.namespace == "quantattn"
    return CheckpointPolicy.MUST_SAVE if product and not turned else CheckpointPolicy.PREFER_RECOMPUTE


def _config(
    size: str | EncoderConfig, codes: Mapping[str, int] | None, values: Sequence[str] | None, overrides: dict[str, Any]
) -> EncoderConfig:
    if isinstance(size, EncoderConfig):
        given = {"codes": codes, "values": None if values is None else tuple(values)}
        return size.with_changes(**{name: value for name, value in given.items() if value is not None}, **overrides)
    return EncoderConfig.of_size(size, codes=codes or {}, values=values or (), **overrides)
