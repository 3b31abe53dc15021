"""The encoder as a function of a pack: what may change its output, and what may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quantattn.attention import Attended, ops
from quantattn.attention import attention as real_attention
from quantattn.nn import Encoder, EncoderConfig
from quantattn.nn import encoder as encoder_module

VARIANTS = [
    {},
    {"causal": True},
    {"local_window": 3, "global_every": 2, "local_rotary_base": 100.0, "n_layers": 3},
    {"causal": True, "local_window": 3, "global_every": 2, "n_layers": 3},
    {"time_rotary": 0.5, "qk_norm": True, "value_frequencies": 2, "value_edges": {"gap_value": (-1.0, 0.0, 0.5)}},
    {"n_heads": 4, "n_kv_heads": 2, "time_rotary": 1.0},
]


@pytest.mark.parametrize("options", VARIANTS)
def test_a_sequence_packed_with_others_is_the_sequence_alone(packs: Any, tiny: Any, options: dict[str, Any]) -> None:
    encoder = tiny(**options).double()
    batch = packs.random([5, 1, 0, 17, 9])
    together = encoder(batch).split([5, 1, 0, 17, 9])
    for n in (0, 1, 3, 4):
        alone = encoder(packs.take(batch, [n]))
        torch.testing.assert_close(together[n], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", VARIANTS)
def test_permuting_sequences_permutes_outputs_to_the_bit(packs: Any, tiny: Any, options: dict[str, Any]) -> None:
    encoder, lengths, order = tiny(**options), [8, 16, 24, 16], [2, 0, 3, 1]
    batch = packs.random(lengths)
    rows = encoder(batch).split(lengths)
    permuted = encoder(packs.take(batch, order)).split([lengths[n] for n in order])
    assert all(torch.equal(permuted[i], rows[n]) for i, n in enumerate(order))


def test_nan_of_a_neighbour_goes_nowhere(packs: Any, tiny: Any) -> None:
    encoder, batch = tiny(), packs.random([6, 11, 4])
    clean = encoder(batch)
    poisoned = batch.fields["size_value"].clone()
    poisoned[6:17] = torch.inf
    hidden = encoder(replace(batch, fields={**batch.fields, "size_value": poisoned}))
    assert torch.isnan(hidden[6:17]).any(dim=-1).all()
    assert torch.equal(hidden[:6], clean[:6])
    assert torch.equal(hidden[17:], clean[17:])


@pytest.mark.parametrize("options", [{}, {"local_window": 4, "global_every": 2}, {"time_rotary": 1.0, "qk_norm": True}])
def test_a_causal_encoder_ignores_the_future_to_the_bit(packs: Any, tiny: Any, options: dict[str, Any]) -> None:
    batch, other = packs.random([12, 10], seed=1), packs.random([12, 10], seed=2)
    rows = torch.tensor([*range(7, 12), *range(17, 22)])
    fields = {name: value.index_copy(0, rows, other.fields[name][rows]) for name, value in batch.fields.items()}
    changed = replace(batch, fields=fields, time=batch.time.index_add(0, rows, torch.full((10,), 3_000_000_000)))
    past = [*range(7), *range(12, 17)]
    causal = tiny(causal=True, **options)
    assert torch.equal(causal(batch)[past], causal(changed)[past])
    both_ways = tiny(**options)
    assert not torch.equal(both_ways(batch)[past], both_ways(changed)[past])


def test_a_constant_added_to_the_times_of_a_sequence_changes_no_bit(packs: Any, tiny: Any) -> None:
    encoder, batch = tiny(time_rotary=0.5), packs.random([9, 14])
    moved = batch.time.clone()
    moved[:9] += 123_456_789_012_345_678
    moved[9:] -= 1_700_000_000_000_000_001
    assert torch.equal(encoder(batch), encoder(replace(batch, time=moved)))
    stretched = batch.time.clone()
    stretched[3:9] += 1_000_000_000
    assert not torch.equal(encoder(batch), encoder(replace(batch, time=stretched)))


def test_without_time_rotary_the_clock_is_not_read(packs: Any, tiny: Any) -> None:
    encoder, batch = tiny(), packs.random([9, 14])
    assert torch.equal(encoder(batch), encoder(replace(batch, time=torch.zeros_like(batch.time))))


def test_order_matters_because_of_the_rotation(packs: Any, tiny: Any) -> None:
    encoder, batch = tiny().double(), packs.random([10])
    swapped = torch.tensor([0, 5, 2, 3, 4, 1, 6, 7, 8, 9])
    mixed = replace(batch, fields={name: value[swapped] for name, value in batch.fields.items()})
    assert (encoder(batch)[0] - encoder(mixed)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_as_long_as_the_sequence_is_no_window(packs: Any, tiny: Any, causal: bool) -> None:
    batch = packs.random([13, 7])
    everywhere = tiny(n_layers=3, causal=causal)(batch)
    assert torch.equal(tiny(n_layers=3, causal=causal, local_window=13, global_every=3)(batch), everywhere)
    narrow = tiny(n_layers=3, causal=causal, local_window=2, global_every=3)(batch)
    assert (narrow - everywhere).abs().max() > 1e-3


def test_a_local_layer_hides_what_is_far(packs: Any, tiny: Any) -> None:
    # One global layer at the bottom would show everything, so the layers here are: global, local, local. The first is
    # made blind by a zero output, and two local layers reach 2 · 3 rows.
    encoder = tiny(n_layers=3, local_window=3, global_every=3, causal=False)
    torch.nn.init.zeros_(encoder.blocks[0].attention.project_out.weight)
    batch, other = packs.random([20], seed=1), packs.random([20], seed=2)
    fields = {name: torch.cat([value[:19], other.fields[name][19:]]) for name, value in batch.fields.items()}
    same = (encoder(batch) == encoder(replace(batch, fields=fields))).all(dim=-1)
    assert same.tolist() == [True] * 13 + [False] * 7


def test_grouped_heads_with_equal_keys_are_separate_heads(packs: Any, tiny: Any) -> None:
    grouped, separate, batch = tiny(n_heads=4, n_kv_heads=2).double(), tiny(n_heads=4).double(), packs.random([6, 9])
    weights = grouped.state_dict()
    for name in [name for name in weights if name.endswith("attention.project_in.weight")]:
        q, k, v = weights[name].split([64, 32, 32])
        k, v = (x.view(2, 16, 64).repeat_interleave(2, dim=0).flatten(0, 1) for x in (k, v))
        weights[name] = torch.cat([q, k, v])
    separate.load_state_dict(weights)
    torch.testing.assert_close(grouped(batch), separate(batch), rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"local_window": 3, "causal": True, "time_rotary": 0.5}])
def test_checkpointing_changes_no_gradient(packs: Any, tiny: Any, options: dict[str, Any]) -> None:
    batch = packs.random([6, 9])
    gradients = []
    for saving in (False, True, "feed_forward"):
        encoder = tiny(gradient_checkpointing=saving, attention_backend="auto", **options).train()
        encoder(batch).square().sum().backward()
        gradients.append([p.grad for p in encoder.parameters()])
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*gradients, strict=True))


@pytest.mark.parametrize(("saving", "twice"), [(False, False), ("feed_forward", False), (True, True)])
def test_attention_is_computed_again_with_its_block_only(
    packs: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch, saving: bool | str, twice: bool
) -> None:
    calls = []

    def counted(backend: str) -> Any:
        calls.append(backend)
        return plain(backend)

    plain = ops._plain
    monkeypatch.setattr(ops, "_plain", counted)
    encoder = tiny(gradient_checkpointing=saving, attention_backend="tiled").train()
    states = encoder(packs.random([4, 9]))
    assert len(calls) == encoder.config.n_layers
    states.sum().backward()
    assert len(calls) == (3 if twice else 2) * encoder.config.n_layers  # the backward asks once a layer, too


def test_checkpointing_recomputes_the_blocks(packs: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*args: Any, **kwargs: Any) -> Attended:
        calls.append(1)
        return real_attention(*args, **kwargs)

    monkeypatch.setattr(encoder_module, "attention", counted)
    encoder = tiny(gradient_checkpointing=True).train()
    encoder(packs.random([4])).sum().backward()
    assert len(calls) == 2 * encoder.config.n_layers


def test_dropout_acts_in_training_only(packs: Any, tiny: Any) -> None:
    batch = packs.random([8])
    encoder, plain = tiny(dropout=0.5), tiny()
    assert not torch.equal(encoder.train()(batch), encoder(batch))
    assert torch.equal(encoder.eval()(batch), plain(batch))


def test_attention_takes_the_dtype_of_autocast_and_the_stream_stays_float32(
    packs: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watched(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Attended:
        seen.append((q.dtype, k.dtype, v.dtype))
        return real_attention(q, k, v, *args, **kwargs)

    monkeypatch.setattr(encoder_module, "attention", watched)
    encoder, batch = tiny(qk_norm=True), packs.random([8, 3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = encoder(batch)
    assert set(seen) == {(torch.bfloat16,) * 3}
    assert hidden.dtype == torch.float32
    assert (hidden - encoder(batch)).abs().max() < 0.2


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 3], [1]])
def test_packs_with_little_in_them(packs: Any, tiny: Any, lengths: list[int]) -> None:
    encoder = tiny(local_window=2, time_rotary=0.5).train()
    hidden = encoder(packs.random(lengths))
    hidden.sum().backward()
    assert hidden.shape == (sum(lengths), 64)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in encoder.parameters())


@pytest.mark.parametrize(
    ("size", "options"),
    [("tiny", o) for o in VARIANTS] + [("small", {}), ("small", {"n_kv_heads": 2, "qk_norm": True})],
)
def test_the_number_of_parameters_follows_from_the_sizes(tiny: Any, size: str, options: dict[str, Any]) -> None:
    encoder = tiny(size, **options)
    assert encoder.config.n_parameters == sum(p.numel() for p in encoder.parameters())


def test_base_and_long_have_the_size_of_their_model() -> None:
    for size in ("base", "long"):
        with torch.device("meta"):
            encoder = Encoder(size, codes={"token": 32_768})
        c, layers, hidden = 768, 22, 1152
        blocks = layers * (4 * c * c + 3 * c * hidden + 2 * c)
        assert sum(p.numel() for p in encoder.parameters()) == 32_768 * c + blocks + c == encoder.config.n_parameters
    assert [i for i, block in enumerate(encoder.blocks) if not block.local] == [0, 8, 16]


def test_variance_of_the_stream_does_not_grow_with_depth(packs: Any, tiny: Any) -> None:
    batch = packs.random([200, 100])
    for depth in (1, 24):
        encoder = tiny(n_layers=depth)
        encoder.norm = torch.nn.Identity()
        assert 0.5 < encoder(batch).std() < 2.0


def test_order_of_fields_is_no_part_of_the_function(packs: Any, tiny: Any) -> None:
    encoder, batch = tiny(), packs.random([6, 5])
    other = Encoder(encoder.config.with_changes(codes=dict(reversed(packs.codes.items()))))
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(encoder(batch), other(batch))


def test_missing_values_are_a_vector_of_their_own(packs: Any, tiny: Any) -> None:
    encoder, batch = tiny(), packs.random([6])
    zero, missing = (torch.full((6,), x) for x in (0.0, torch.nan))
    as_zero = encoder(replace(batch, fields={**batch.fields, "size_value": zero}))
    as_missing = encoder(replace(batch, fields={**batch.fields, "size_value": missing}))
    assert torch.isfinite(as_missing).all()
    assert (as_zero - as_missing).abs().max() > 1e-2


def test_fields_are_refused_in_one_sentence(packs: Any, tiny: Any) -> None:
    encoder, batch = tiny(), packs.random([6])
    fewer = {name: value for name, value in batch.fields.items() if name not in ("side", "gap_value")}
    with pytest.raises(ValueError, match=r"^the batch lacks side, gap_value; its fields are gap, kind, size_value$"):
        encoder(replace(batch, fields=fewer))
    with pytest.raises(ValueError, match="'side' holds codes"):
        encoder(replace(batch, fields={**batch.fields, "side": torch.zeros(6)}))
    with pytest.raises(ValueError, match="'gap_value' holds values"):
        encoder(replace(batch, fields={**batch.fields, "gap_value": torch.zeros(6, dtype=torch.int64)}))
    for code in (9, -1):
        wrong = batch.fields["kind"].clone()
        wrong[2] = code
        with pytest.raises(ValueError, match=rf"^field 'kind' holds codes from .*{code}.*, this encoder knows 0 to 8$"):
            encoder(replace(batch, fields={**batch.fields, "kind": wrong}))
    more = {**batch.fields, "unknown": torch.zeros(6)}
    assert torch.equal(encoder(replace(batch, fields=more)), encoder(batch))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"width": 66, "n_heads": 4}, ValueError, "multiple of 2"),
        ({"n_heads": 2, "n_kv_heads": 3}, ValueError, "n_kv_heads must divide"),
        ({"n_layers": 0}, ValueError, "n_layers must be at least 1, got 0"),
        ({"n_layers": True}, TypeError, "n_layers must be an integer, got True"),
        ({"causal": 1}, TypeError, "causal must be true or false"),
        ({"dropout": 1.5}, ValueError, "dropout must be finite and in"),
        ({"rotary_base": float("nan")}, ValueError, "rotary_base"),
        ({"rotary_base": 10**400}, ValueError, "rotary_base must be finite"),
        ({"codes": {"kind": 1}}, ValueError, "at least 2"),
        ({"values": ("kind",)}, ValueError, "given as both"),
        ({"time_periods": (2.0, 1.0)}, ValueError, "shortest ≤ longest"),
        ({"depth": 3}, TypeError, "no setting depth"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        EncoderConfig.of_size("tiny", **{"codes": {"kind": 9}, **changes})


def test_sizes_are_named() -> None:
    with pytest.raises(ValueError, match="tiny, small, base, long, got 'huge'"):
        Encoder("huge", codes={"kind": 9})
    with pytest.raises(ValueError, match="at least one field"):
        Encoder("tiny")


def test_the_configuration_survives_its_own_dictionary(tiny: Any) -> None:
    for options in VARIANTS:
        config = tiny(**options).config
        assert EncoderConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("saving", [False, True, "feed_forward"])
def test_states_at_decisions_are_rows_of_all_states(
    packs: Any, tiny: Any, options: dict[str, Any], saving: bool | str
) -> None:
    places = [2, 2, 7, 16] if options.get("causal") else [4, 4, 16]
    batch = packs.random([5, 0, 9, 3], positions=places)
    gradients = []
    for at_decisions in (False, True):
        encoder = tiny(gradient_checkpointing=saving, **options).double().train()
        states = encoder(batch, at_decisions=True) if at_decisions else encoder(batch)[batch.positions]
        states.sin().sum().backward()
        gradients.append([states, *(p.grad for p in encoder.parameters())])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-11)


def test_states_at_decisions_cost_few_queries(packs: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []

    def counted(q: Tensor, *args: Any, **kwargs: Any) -> Attended:
        rows.append(q.shape[0])
        return real_attention(q, *args, **kwargs)

    monkeypatch.setattr(encoder_module, "attention", counted)
    tiny()(packs.random([5, 9]), at_decisions=True)
    assert rows == [14, 2]
