"""Models of transformers that nobody changed, with this attention, against themselves in float64 and with sdpa."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from quantattn import Mask, attention
from quantattn.attention.huggingface import Visibility, attention_of_module, register_with_transformers, visibility
from quantattn.attention.testing import Budget, check, errors

transformers = pytest.importorskip(
    "transformers", reason="transformers is an extra: pip install 'quantattn[transformers]' to test its adapter"
)
made = transformers.masking_utils

LENGTHS = (11, 17, 4)
IDS = [torch.randint(1, 50, (n,), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def modernbert() -> Any:
    """Its second layer sees four tokens on each side."""
    special = {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 8}
    return transformers.ModernBertModel(transformers.ModernBertConfig(**SIZES, **special))


def llama() -> Any:
    return transformers.LlamaModel(transformers.LlamaConfig(**SIZES, num_key_value_heads=2))


def qwen() -> Any:
    """Causal; its second layer sees five tokens, the query's own among them."""
    window = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    return transformers.Qwen2Model(transformers.Qwen2Config(**SIZES, num_key_value_heads=1, **window))


MODELS = [modernbert, llama, qwen]


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    register_with_transformers()


def build(make: Callable[[], Any], dtype: torch.dtype, implementation: str) -> Any:
    torch.manual_seed(0)
    model = make().to(torch.bfloat16).to(dtype).eval()  # weights that every dtype can hold
    model.set_attn_implementation(implementation)
    return model


def padded(left: bool = False) -> tuple[dict[str, Tensor], Tensor]:
    """The sequences as rows, and which places are tokens."""
    longest = max(LENGTHS)
    tokens = torch.stack([torch.arange(longest) < n for n in LENGTHS])
    tokens = tokens.flip(1) if left else tokens
    ids = torch.full(tokens.shape, 7).masked_scatter(tokens, torch.cat(IDS))  # padding that would be seen if it could
    positions = (tokens.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": tokens.long(), "position_ids": positions}, tokens


def packed() -> tuple[dict[str, Tensor], Tensor]:
    """The sequences end to end in one row."""
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    ids = torch.cat(IDS)[None]
    return {"input_ids": ids, "position_ids": positions}, torch.ones_like(ids, dtype=torch.bool)


def offsets() -> dict[str, Any]:
    cu = torch.tensor([0, *itertools.accumulate(LENGTHS)], dtype=torch.int32)
    return {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": max(LENGTHS), "max_length_k": max(LENGTHS)}


def results(model: Any, calls: list[tuple[dict[str, Any], Tensor]]) -> dict[str, Tensor]:
    """Hidden states of the tokens in the order of the sequences, and the gradients by embeddings and weights."""
    model.zero_grad()
    states, leaves = [], []
    for inputs, tokens in calls:
        inputs = dict(inputs)
        leaf = model.get_input_embeddings()(inputs.pop("input_ids")).detach().requires_grad_()
        states.append(model(inputs_embeds=leaf, use_cache=False, **inputs).last_hidden_state[tokens])
        leaves.append((leaf, tokens))
    out = torch.cat(states)
    seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out.backward(seed.to(out.dtype))
    weights = [w.grad.flatten() for name, w in model.named_parameters() if "attn" in name and w.grad is not None]
    embeddings = torch.cat([leaf.grad[tokens] for leaf, tokens in leaves])
    return {"out": out.detach(), "by_embedding": embeddings, "by_weight": torch.cat(weights)}


def budget(truth: dict[str, Tensor], standard: dict[str, Tensor]) -> Budget:
    """Twice what the model's own sdpa loses, thrice for gradients, and the noise of two additions."""
    losses, allowed = {name: errors(standard[name], truth[name]) for name in truth}, {}
    for name, loss in losses.items():
        rounded = truth[name].to(standard[name].dtype)
        noise = errors(rounded + 0.3 - 0.3, rounded.double())
        factor = 2 if name == "out" else 3
        allowed[name] = factor * loss[0] + 2 * noise[0], factor * loss[1] + 2 * noise[1]
    return Budget(truth, losses, allowed)


def alone() -> list[tuple[dict[str, Tensor], Tensor]]:
    return [({"input_ids": ids[None]}, torch.ones(1, len(ids), dtype=torch.bool)) for ids in IDS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", MODELS)
def test_padded_and_packed_models_are_as_near_to_each_sequence_alone_as_their_own_sdpa(make, dtype) -> None:
    truth = results(build(make, torch.float64, "eager"), alone())
    sdpa, ours = build(make, dtype, "sdpa"), build(make, dtype, "quantattn")
    layouts = {"left": [padded(left=True)], "right": [padded()], "packed": [packed()], "alone": alone()}
    for name, calls in layouts.items():
        by_offsets = make is modernbert and name == "packed"  # it packs for flash attention only, by offsets
        allowed = budget(truth, results(sdpa, alone() if by_offsets else calls))
        inputs, tokens = calls[0]
        rows = check(results(ours, [(inputs | offsets(), tokens)] if by_offsets else calls), allowed)
        assert all(row.ok for row in rows), (name, rows)
        if name == "alone" or (name == "right" and make is not modernbert):
            continue  # causal order alone hides what is padded on the right
        one_long = {"position_ids": torch.arange(tokens.shape[1])[None]}
        blind = one_long if name == "packed" else {"attention_mask": torch.ones_like(tokens)}
        rows = check(results(ours, [(inputs | blind, tokens)]), allowed)
        assert not any(row.ok for row in rows), (name, rows)


PATTERNS = {
    "full": made.bidirectional_mask_function,
    "causal": made.causal_mask_function,
    "causal window": made.sliding_window_causal_mask_function(3),
    "window": made.sliding_window_bidirectional_mask_function(2),
    "chunks": made.chunked_causal_mask_function(3, torch.zeros(3, dtype=torch.int64)),
    "of a model": lambda batch, head, q, k: (q + k) % 3 != batch,
}
PLACES = [(6, 6, 0, 0), (1, 6, 5, 0), (2, 6, 4, 0), (2, 9, 4, 0), (2, 5, 6, 3), (3, 7, 0, 0), (7, 3, 0, 0)]
"""(Nq, Nk, first query, first key): alone, decoding, in two parts, with room to spare, a sliding cache, two axes."""
PADDINGS = [None, "1111111111", "0011111111", "1111110000", "1101011010", "0000000000"]


def seen_by_attention(found: Visibility | Tensor, shape: tuple[int, int, int]) -> Tensor:
    """(B, Nq, Nk): with equal scores and each key's value a direction of its own, what is not 0 was seen."""
    batch, n_q, n_k = shape
    q, k = torch.zeros(batch, 1, n_q, n_k), torch.zeros(batch, 1, n_k, n_k)
    out, _ = attention_of_module(torch.nn.Module(), q, k, torch.eye(n_k).expand(batch, 1, n_k, n_k), found)
    return out[:, :, 0] > 0


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_query_sees_what_transformers_would_let_it_see(pattern) -> None:
    for (n_q, n_k, q_offset, kv_offset), padding in itertools.product(PLACES, PADDINGS):
        tokens = None
        if padding is not None:
            others = ("1111111111", "0111100000"[: n_k + kv_offset])  # shorter than the keys is padded on the right
            rows = [[c == "1" for c in (row + "0" * 10)[:10]] for row in (padding, *others)]
            tokens = torch.tensor(rows)[:, : n_k + kv_offset - (n_k == 9)]
        arguments = {"mask_function": PATTERNS[pattern], "attention_mask": tokens, "device": "cpu"}
        place = (3, n_q, n_k, q_offset, kv_offset)
        found = visibility(*place, **arguments)
        expected = made.sdpa_mask(*place, **arguments, allow_is_causal_skip=False)[:, 0]
        seen = seen_by_attention(found, (3, n_q, n_k))
        if isinstance(found, Visibility) and found.packing is not None and found.packing.rows is not None:
            queries = tokens[:, q_offset : q_offset + n_q]  # padded ones see nothing
            expected = expected & torch.nn.functional.pad(queries, (0, n_q - queries.shape[1]))[:, :, None]
        assert torch.equal(seen, expected), (pattern, place, padding)


@pytest.mark.parametrize(("pattern", "mask"), [
    ("full", Mask()),
    ("causal", Mask(causal=True)),
    ("causal window", Mask(causal=True, window=(2, 0))),
    ("window", Mask(window=(2, 2))),
])  # fmt: skip
def test_known_patterns_are_never_written_out(pattern, mask) -> None:
    """So that a model's masks take O(N); a release of transformers that hides them from us is noticed here."""
    tokens = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False] + [True] * 5])
    for attention_mask in (None, tokens):
        found = visibility(3, 6, 6, mask_function=PATTERNS[pattern], attention_mask=attention_mask)
        assert isinstance(found, Visibility)
        assert found.mask == mask
    positions = torch.tensor([[0, 1, 2, 3, 0, 1]])
    function = made.packed_sequence_mask_function(made.find_packed_sequence_indices(positions))
    inner = PATTERNS[pattern]
    if hasattr(made, "remap_positions_for_packed_sequence"):  # newer releases count places within each sequence
        inner = made.remap_positions_for_packed_sequence(inner, positions)
    function = made.and_masks(inner, function)
    found = visibility(1, 6, 6, mask_function=function)
    assert isinstance(found, Visibility)
    assert found.mask == mask
    assert found.packing.cu_q.tolist() == [0, 4, 6]
    expected = made.sdpa_mask(1, 6, 6, mask_function=function, allow_is_causal_skip=False)[:, 0]
    assert torch.equal(seen_by_attention(found, (1, 6, 6)), expected)


@pytest.mark.parametrize("make", MODELS)
def test_padding_reaches_nothing_whatever_stands_in_it(make) -> None:
    model, (inputs, tokens) = build(make, torch.float32, "quantattn"), padded()
    embeddings = model.get_input_embeddings()(inputs.pop("input_ids"))

    def states(embeddings: Tensor) -> Tensor:
        return model(inputs_embeds=embeddings, use_cache=False, **inputs).last_hidden_state[tokens]

    assert torch.equal(states(embeddings), states(embeddings.masked_fill(~tokens[..., None], torch.nan)))


@pytest.mark.parametrize("make", [llama, qwen])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_model_may_read_its_sequence_in_parts(make, cache) -> None:
    sdpa, ours = build(make, torch.float32, "sdpa"), build(make, torch.float32, "quantattn")
    truth = build(make, torch.float64, "eager")
    ids = IDS[1][None]

    def in_parts(model: Any, *lengths: int) -> Tensor:
        if cache == "static":
            kept = transformers.StaticCache(config=model.config, max_cache_len=24)
        else:
            kept = transformers.DynamicCache(config=model.config)
        newer = "cache" in inspect.signature(type(model).forward).parameters  # transformers 5.20 or so renames it
        name = "cache" if newer else "past_key_values"
        parts = ids.split(lengths, dim=1)
        return torch.cat([model(part, use_cache=True, **{name: kept}).last_hidden_state for part in parts], 1)

    with torch.no_grad():
        for lengths in ((17,), (9, 8), (14, 1, 1, 1)):
            allowed = budget({"out": truth(ids).last_hidden_state}, {"out": in_parts(sdpa, *lengths)})
            assert check({"out": in_parts(ours, *lengths)}, allowed)[0].ok, lengths


def test_offsets_and_positions_pack_alike() -> None:
    model, (inputs, _) = build(qwen, torch.float32, "quantattn"), packed()
    by_positions = model(**inputs, use_cache=False).last_hidden_state
    by_offsets = model(**inputs, **offsets(), use_cache=False).last_hidden_state
    assert torch.equal(by_positions, by_offsets)


def layer(heads: int = 4, heads_k: int = 2, d: int = 8, value_width: int | None = None) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    widths = ((heads, d), (heads_k, d), (heads_k, value_width or d))
    return [torch.randn(2, h, 6, width, generator=rng, dtype=torch.float64) for h, width in widths]


def test_values_of_another_width_and_a_bias_by_position() -> None:
    q, k, v = layer(value_width=5)
    bias = torch.linspace(-1, 1, 4 * 36, dtype=torch.float64).view(1, 4, 6, 6)
    tokens = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    found = visibility(2, 6, 6, mask_function=made.causal_mask_function, attention_mask=tokens)
    out, weights = attention_of_module(torch.nn.Module(), q, k, v, found, scaling=0.3, position_bias=bias)
    seen = made.sdpa_mask(2, 6, 6, attention_mask=tokens, allow_is_causal_skip=False)
    added = bias.expand(2, -1, -1, -1).masked_fill(~seen, -torch.inf)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, added, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(out, expected.transpose(1, 2), rtol=1e-12, atol=1e-12)
    assert weights is None


@pytest.mark.parametrize("options", [{"softcap": 5.0}, {"sinks": torch.zeros(4)}, {"dropout": 0.5}], ids=str)
def test_options_mean_what_attention_says_they_mean(options) -> None:
    q, k, v = layer()

    def outcome(call: Callable[[], Any]) -> Any:
        torch.manual_seed(0)
        try:
            return call()
        except ValueError as error:
            return str(error)

    theirs = {"s_aux" if name == "sinks" else name: value for name, value in options.items()}
    found = outcome(lambda: attention_of_module(torch.nn.Module(), q, k, v, None, is_causal=True, **theirs)[0])
    expected = outcome(
        lambda: attention(*(x.transpose(1, 2) for x in (q, k, v)), mask=Mask(causal=True), **options).out
    )
    assert torch.equal(found, expected) if isinstance(expected, Tensor) else found == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_attentions": True}, "weights, which are never formed"),
        ({"indices": torch.zeros(2, 6, 3)}, "indices changes what a query sees"),
        ({"block_table": torch.zeros(1)}, "block_table changes what a query sees"),
        ({"attention_mask": torch.ones(2, 6)}, r"attention_mask must be \(B, H, Nq, Nk\).* got \(2, 6\)"),
        ({"attention_mask": "causal"}, "got str"),
        ({"attention_mask": torch.zeros(2, 1, 6, 5)}, "does not broadcast"),
        (
            {"attention_mask": visibility(2, 5, 5, mask_function=made.causal_mask_function)},
            r"made for \(B, Nq, Nk\) = \(2, 5, 5\), got \(2, 6, 6\)",
        ),
        ({"attention_mask": torch.zeros(2, 1, 6, 6), "cu_seq_lens_q": torch.tensor([0, 12])}, "without padding"),
        ({"cu_seq_lens_q": torch.tensor([0, 11])}, "must rise from 0 to the 12 rows"),
    ],
)
def test_what_is_refused(options, message) -> None:
    q, k, v = layer()
    with pytest.raises(ValueError, match=message):
        attention_of_module(torch.nn.Module(), q, k, v, **({"attention_mask": None} | options))


def test_a_window_needs_to_know_where_the_queries_stand() -> None:
    q, k, v = layer()
    call = partial(attention_of_module, torch.nn.Module(), sliding_window=3, attention_mask=None)
    with pytest.raises(ValueError, match="a window of 3 between 4 queries and 6 keys"):
        call(q[:, :, :4], k, v, is_causal=False)
    last, _ = call(q[:, :, -1:], k, v)
    torch.testing.assert_close(last, call(q, k, v)[0][:, -1:], rtol=1e-12, atol=1e-12)


def test_an_exported_model_takes_padded_batches_of_any_length() -> None:
    model = build(modernbert, torch.float32, "quantattn")

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    (inputs, tokens), length = padded(), torch.export.Dim("length", min=4, max=512)
    given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    shapes, shorter = {name: {1: length} for name in given}, {name: x[:, :12].clone() for name, x in given.items()}
    program = torch.export.export(Encoder(), (), shorter, dynamic_shapes=shapes)
    expected = model(**given).last_hidden_state[tokens]
    torch.testing.assert_close(program.module()(**given)[tokens], expected, rtol=1e-4, atol=1e-5)


def test_a_compiled_model_computes_the_same() -> None:
    """Padding has no values to read then, and is written out."""
    model, (inputs, tokens) = build(qwen, torch.float32, "quantattn"), padded()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for given in (inputs, {"input_ids": inputs["input_ids"]}):
            expected = model(**given, use_cache=False).last_hidden_state[tokens]
            found = compiled(**given, use_cache=False).last_hidden_state[tokens]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
