"""The encoders that are timed beside each other: one width, one depth, one vocabulary, one head.

A peer is a module from tokens (B, N) int64 to logits (B · N, V). Every sequence has N tokens, so no peer pads. A peer
that cannot be made here raises ImportError, ValueError or RuntimeError with the reason.

Dimensions: B sequences of N tokens, C model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from quantattn.batch import PackedBatch
from quantattn.nn import Encoder, EncoderConfig

GLOBAL_BASE, LOCAL_BASE = 160_000.0, 10_000.0
"""Rotary bases of ModernBERT's global and local layers (Warner et al. 2024, arXiv 2412.13663, table 4)."""

LONGFORMER_WINDOW = 512
"""Tokens that a token of Longformer sees around itself, half on each side (Beltagy et al. 2020, arXiv 2004.05150)."""

FIELD = "token"
"""The one field of the events that are drawn."""

Compiled = Literal["model", "blocks", "none"]
COMPILED: tuple[Compiled, ...] = get_args(Compiled)


@dataclass(frozen=True)
class Task:
    """What every peer of one comparison has in common.

    Attributes:
        config: width, depth, heads, window and feed-forward width; `config.codes[FIELD]` is V.
        n: tokens of a sequence.
        batch: sequences.
        compile: "model" compiles it whole, "blocks" each block once, "none" not at all.
    """

    config: EncoderConfig
    n: int
    batch: int
    compile: Compiled = "model"

    @property
    def vocabulary(self) -> int:
        """V, number of codes."""
        return self.config.codes[FIELD]


class WithHead(nn.Module):
    """An encoder (B, N) → (B · N, C) or (B, N, C), and logits of every token."""

    def __init__(self, encoder: nn.Module, width: int, vocabulary: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.project = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.project.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B · N, V)."""
        logits: Tensor = self.project(self.encoder(tokens).flatten(0, -2))
        return logits


class Packed(nn.Module):
    """Our encoder under tokens of equal lengths, as one pack."""

    def __init__(self, encoder: Encoder, n: int, batch: int) -> None:
        super().__init__()
        self.encoder, self.n = encoder, n
        self.offsets = nn.Buffer(torch.arange(batch + 1, dtype=torch.int32) * n, persistent=False)
        self.time = nn.Buffer(torch.arange(n * batch), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B · N, C)."""
        ends = self.offsets[1:].long() - 1
        fields = {FIELD: tokens.flatten()}
        hidden: Tensor = self.encoder(PackedBatch(fields, self.time, self.offsets, self.n, ends, ends))
        return hidden


class FirstOutput(nn.Module):
    """The last hidden states (B, N, C) of a model of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, C)."""
        hidden: Tensor = self.model(input_ids=tokens)[0]
        return hidden


def ours(checkpointing: bool | str, task: Task) -> nn.Module:
    """`quantattn.Encoder`, packed."""
    encoder = Encoder(task.config.with_changes(compile=task.compile == "model", gradient_checkpointing=checkpointing))
    if task.compile == "blocks":
        for block in encoder.blocks:
            block.compile()
    return WithHead(Packed(encoder, task.n, task.batch), task.config.width, task.vocabulary)


def modernbert(implementation: str, compiled: bool, task: Task) -> nn.Module:
    """Hugging Face ModernBERT with weights drawn by its own rule."""
    model = FirstOutput(modernbert_model(implementation, task.config, task.n))
    if compiled and task.compile != "none":
        model.compile(dynamic=False)
    return WithHead(model, task.config.width, task.vocabulary)


def modernbert_model(implementation: str, config: EncoderConfig, longest: int) -> nn.Module:
    """`ModernBertModel` of the shape that `config` describes, for `longest` positions; its padding has code 0."""
    from transformers import ModernBertConfig, ModernBertModel

    if implementation == "quantattn":
        from quantattn.attention.huggingface import register_with_transformers

        register_with_transformers()
    described = ModernBertConfig(
        vocab_size=config.codes[FIELD],
        hidden_size=config.width,
        intermediate_size=config.hidden,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        max_position_embeddings=longest,
        local_attention=2 * (config.local_window or longest),
        global_attn_every_n_layers=config.global_every if config.local_window else 1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        cls_token_id=1,
        sep_token_id=1,
        attn_implementation=implementation,
    )
    model: nn.Module = ModernBertModel(described)
    return model


def longformer_model(config: EncoderConfig, longest: int) -> nn.Module:
    """`LongformerModel` of the width and depth that `config` describes, for `longest` positions and code 0 as padding.

    Its feed-forward matrices of 1.5 × `hidden` have our three's size; its global tokens have projections of their own.
    """
    from transformers import LongformerConfig, LongformerModel

    described = LongformerConfig(
        vocab_size=config.codes[FIELD],
        hidden_size=config.width,
        intermediate_size=3 * config.hidden // 2,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        max_position_embeddings=-(-longest // LONGFORMER_WINDOW) * LONGFORMER_WINDOW + 2,
        attention_window=LONGFORMER_WINDOW,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=0,
    )
    model: nn.Module = LongformerModel(described, add_pooling_layer=False)
    return model


def transformer(task: Task) -> nn.Module:
    """`nn.TransformerEncoder`, pre-norm, without biases; its two matrices of 1.5 × `hidden` have our three's size."""
    config = task.config
    if config.local_window is not None:
        raise ValueError(
            "nn.TransformerEncoder has no windows but as a matrix N × N; it is measured with full attention"
        )
    layer: Any = nn.TransformerEncoderLayer(
        config.width, config.n_heads, 3 * config.hidden // 2, dropout=0.0, activation="gelu",
        batch_first=True, norm_first=True, bias=False,
    )  # fmt: skip
    last = nn.LayerNorm(config.width, bias=False)
    encoder = nn.TransformerEncoder(layer, config.n_layers, norm=last, enable_nested_tensor=False)
    for name, parameter in encoder.named_parameters():  # its layers are copies of one
        if parameter.dim() == 2:
            depth = 2 * config.n_layers if "out_proj" in name or "linear2" in name else 1
            nn.init.normal_(parameter, std=(parameter.shape[1] * depth) ** -0.5)
    if task.compile == "model":
        encoder.compile(dynamic=False)
    elif task.compile == "blocks":
        for block in encoder.layers:
            block.compile(dynamic=False)
    table = nn.Embedding(task.vocabulary, config.width)
    return WithHead(nn.Sequential(table, encoder), config.width, task.vocabulary)


PEERS: dict[str, Callable[[Task], nn.Module]] = {
    "quantattn": partial(ours, False),
    "quantattn_lean": partial(ours, "feed_forward"),
    "quantattn_checkpointed": partial(ours, True),
    "modernbert_flex": partial(modernbert, "flex_attention", False),
    "modernbert_sdpa": partial(modernbert, "sdpa", False),
    "modernbert_sdpa_compiled": partial(modernbert, "sdpa", True),
    "modernbert_flash4": partial(modernbert, "flash_attention_4", False),
    "modernbert_quantattn": partial(modernbert, "quantattn", False),
    "transformer": transformer,
}
"""Name in the results → how it is made; flex compiles its attention by itself. `gradient_checkpointing` of the lean one
is "feed_forward", of the checkpointed one true."""
