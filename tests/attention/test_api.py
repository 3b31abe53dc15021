"""The public edge: what cannot be done is said in one sentence, before anything runs; auto can be asked why."""

from __future__ import annotations

import inspect

import pytest
import torch

from quantattn import Mask, attention
from quantattn.attention import choose_backend


def qkv(n: int = 6, h: int = 2, d: int = 8, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(n, h, d, dtype=dtype) for _ in range(3)]


def offsets(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[0], k, v), r"\(T, H, D\).*got q \(2, 8\)"),
        (lambda q, k, v: (q, k[:-1], v), "k and v must have one shape"),
        (lambda q, k, v: (q, k[..., :4], v[..., :4]), "one head size"),
        (lambda q, k, v: (q[:, :1], k, v), "multiple of the key heads"),
        (lambda q, k, v: (q, k[:, :0], v[:, :0]), "multiple of the key heads"),
        (lambda q, k, v: (q[..., :0], k[..., :0], v[..., :0]), "at least 1"),
        (lambda q, k, v: (q[None].expand(2, -1, -1, -1), k[None], v[None]), "same batch size"),
    ],
)
def test_shapes_that_do_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        attention(*change(*qkv()))


def test_dtypes_that_do_not_fit():
    q, k, v = qkv()
    with pytest.raises(TypeError, match="one dtype"):
        attention(q, k.half(), v)
    with pytest.raises(TypeError, match="int64"):
        attention(q.long(), k.long(), v.long())


@pytest.mark.parametrize(
    ("cu", "cu_k", "message"),
    [
        (offsets(0, 4, 3, 6), None, "must rise from 0 to the 6 rows"),
        (offsets(0, 5), None, "must rise from 0 to the 6 rows"),
        (offsets(1, 6), None, "must rise from 0 to the 6 rows"),
        (offsets(0, 6).long(), None, r"int32.*got \(2,\) torch.int64"),
        (offsets(0, 6), offsets(0, 3, 6), "1 sequences and cu_seqlens_k 2"),
        (None, offsets(0, 6), "without cu_seqlens"),
    ],
)
def test_offsets_that_do_not_fit(cu, cu_k, message):
    with pytest.raises(ValueError, match=message):
        attention(*qkv(), cu, cu_k)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": float("nan")}, r"scale must be a finite number or a tensor \(H,\), got nan"),
        (
            {"scale": 1e-50},
            "scale must be 0 or a normal number of float32, from 1.18e-38 to 3.4e\\+38 in size, got 1e-50",
        ),
        ({"scale": -1e39}, "scale must be 0 or a normal number of float32, .*, got -1e\\+39"),
        ({"scale": torch.tensor(0.3)}, r"scale must be \(2,\), one number a head, .*; got \(\) torch.float32"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"dropout": 0.1, "dropout_seed": 2**63}, "dropout_seed must be an int of 64 bits"),
        ({"dropout": 0.1, "dropout_seed": torch.zeros(2)}, r"dropout_seed must be an int or \(1,\) int64 .*got \(2,\)"),
        ({"softcap": 0.0}, "softcap must be a finite number > 0, at most 1e30, or None, got 0.0"),
        ({"softcap": float("inf")}, "softcap must be a finite number > 0, at most 1e30, or None, got inf"),
        ({"sinks": torch.zeros(3)}, r"sinks must be \(2,\), one number a head, .*; got \(3,\) torch.float32"),
        ({"alibi": torch.zeros(2, dtype=torch.int32)}, "alibi must be .* floating .*; got .*int32"),
        ({"alibi": torch.zeros(2, requires_grad=True)}, "alibi needs a gradient, which only backend 'exact' gives"),
        ({"segments": torch.zeros(5, dtype=torch.int32)}, r"segments must be \(6,\) int32 .*got \(5,\)"),
        ({"segments_k": torch.zeros(6, dtype=torch.int32)}, "segments_k was given without segments"),
        ({"deterministic": "bach"}, "True, False or 'batch'"),
        ({"backend": "flash"}, "one of auto, hopper, triton, sdpa, tiled, exact"),
        ({"bias": torch.zeros(5)}, r"does not broadcast to \(N, H, Nq, Nk\) = \(1, 2, 6, 6\)"),
        ({"bias": torch.zeros(6, dtype=torch.long)}, "must be floating .* or bool"),
        ({"mask": Mask(window=(1, 1)), "backend": "sdpa"}, "window"),
    ],
)
def test_options_that_cannot_be_met(options, message):
    with pytest.raises(ValueError, match=message):
        attention(*qkv(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": None}, "mask must be a Mask .*got NoneType"),
        ({"mask": torch.ones(6, 6, dtype=torch.bool)}, "mask must be a Mask .*got Tensor"),
        ({"bias": [0.0]}, "bias must be a tensor, got list"),
        ({"cu_seqlens": [0, 6]}, "cu_seqlens must be a tensor, got list"),
        ({"k": None}, "k must be a tensor, got NoneType"),
        ({"q": torch.ones(6, 2, 8).to_sparse()}, r"q must be a dense \(strided\) tensor, got torch.sparse_coo"),
        ({"bias": torch.zeros(6, 6).to_sparse()}, r"bias must be a dense \(strided\) tensor, got torch.sparse_coo"),
    ],
)
def test_things_of_another_kind(options, message):
    q, k, v = qkv()
    with pytest.raises(TypeError, match=message):
        attention(**{"q": q, "k": k, "v": v} | options)


def test_a_bias_shorter_than_the_longest_sequence():
    with pytest.raises(ValueError, match=r"axes \(1, 3\) of bias do not broadcast .* = \[4, 4\]"):
        attention(*qkv(), offsets(0, 4, 6), bias=torch.zeros(3))


@pytest.mark.parametrize("window", [(-1, 0), (1,), (0.5, 1), (True, None), 3, "ab"])
def test_windows_that_mean_nothing(window):
    with pytest.raises(ValueError, match="window"):
        Mask(window=window)


def test_causal_is_a_bool():
    with pytest.raises(TypeError, match="causal must be True or False, got 'no'"):
        Mask(causal="no")


def test_a_mask_is_a_value():
    assert Mask(window=[2, 1]) == Mask(window=(2, 1))
    assert len({Mask(window=[2, 1]), Mask(window=(2, 1))}) == 1


@pytest.mark.parametrize("bound", [2**30, 2**31 - 1, 2**63, 10**30])
def test_a_window_wider_than_any_sequence_is_none(bound):
    q, k, v = qkv()
    wide = Mask(window=(bound, bound))
    assert torch.equal(wide.visible(3, 5), torch.ones(3, 5, dtype=torch.bool))
    assert choose_backend(q, k, v, mask=wide).backend == "sdpa"
    for backend in ("exact", "tiled", "sdpa"):
        for mask, same in ((wide, Mask()), (Mask(True, (bound, bound)), Mask(causal=True))):
            a, b = (attention(q, k, v, mask=m, backend=backend) for m in (mask, same))
            assert torch.equal(a.out, b.out)


def test_masks_combine_as_sets():
    masks = [Mask(), Mask(causal=True), Mask(window=(2, 1)), Mask(window=(None, 3)), Mask(window=(4, None))]
    for a in masks:
        for b in masks:
            for n_q, n_k in ((5, 5), (3, 7), (7, 3)):
                seen_a, seen_b = a.visible(n_q, n_k), b.visible(n_q, n_k)
                assert torch.equal((a & b).visible(n_q, n_k), seen_a & seen_b)
                # Intervals that all hold 0: their union is the interval of the outer bounds.
                assert torch.equal((a | b).visible(n_q, n_k), seen_a | seen_b)


def test_auto_says_why():
    q, k, v = qkv()
    assert choose_backend(q, k, v).backend == "sdpa"
    assert "not on a CUDA device" in choose_backend(q, k, v).reason
    windowed = choose_backend(q, k, v, mask=Mask(window=(1, 1)))
    assert windowed.backend == "tiled"
    assert "window" in windowed.reason


def test_backends_agree_on_dense_and_packed_layouts():
    q, k, v = (x.double() for x in qkv(12))
    dense = [x.view(2, 6, 2, 8) for x in (q, k, v)]
    for backend in ("exact", "tiled", "sdpa"):
        packed = attention(q, k, v, offsets(0, 6, 12), backend=backend)
        batch = attention(*dense, backend=backend)
        assert batch.out.shape == (2, 6, 2, 8)
        assert torch.equal(batch.out.flatten(0, 1), packed.out)
        assert torch.equal(batch.lse.flatten(0, 1), packed.lse)


@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
def test_offsets_may_be_views(backend):
    q, k, v = qkv()
    spread = torch.tensor([0, 77, 4, 77, 6], dtype=torch.int32)[::2]
    a, b = attention(q, k, v, spread, backend=backend), attention(q, k, v, offsets(0, 4, 6), backend=backend)
    assert torch.equal(a.out, b.out)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 1e-50])
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True)], ids=str)
@pytest.mark.parametrize("backend", ["tiled", "sdpa"])
def test_any_sign_of_the_scale(backend, mask, scale):
    results = []
    for name in ("exact", backend):
        leaves = [x.double().requires_grad_() for x in qkv()]
        out, lse = attention(*leaves, offsets(0, 4, 6), offsets(0, 1, 6), mask=mask, scale=scale, backend=name)
        results.append([out, lse, *torch.autograd.grad(out.square().sum(), leaves)])
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
def test_autocast_chooses_the_dtype_of_the_inputs_and_nothing_else(backend, dtype):
    """Sums stay in float32, forward and backward: the bits are those of inputs that were rounded by hand."""

    def results(*inputs):
        out, lse = attention(*inputs, mask=Mask(causal=True), backend=backend)
        return out, lse, *torch.autograd.grad((out.float().square().sum() + lse.sum()), inputs)

    rounded = [x.to(dtype).requires_grad_() for x in qkv()]
    expected = results(*rounded)
    with torch.autocast("cpu", dtype):
        same = results(*rounded)
        out, lse = attention(*(x.float() for x in rounded), mask=Mask(causal=True), backend=backend)
    assert all(torch.equal(a, b) for a, b in zip(expected, same, strict=True))
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_an_explicit_triton_never_falls_back(monkeypatch):
    from quantattn.attention import choose

    monkeypatch.setattr(choose, "_INTERPRETED", False)
    with pytest.raises(ValueError, match="need a CUDA device and q is on cpu"):
        attention(*qkv(), backend="triton")
    monkeypatch.setattr(choose, "_INTERPRETED", True)
    with pytest.raises(ValueError, match="float64"):
        attention(*qkv(dtype=torch.float64), backend="triton")


def test_a_choice_for_tensors_that_are_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fakes on a device that this machine does not have."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from quantattn.attention import choose

    pytest.importorskip("triton")
    monkeypatch.setattr(choose, "_INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with FakeTensorMode():
        for dtype in (torch.bfloat16, torch.float32):
            q = torch.empty(2, 300, 4, 64, device="cuda", dtype=dtype)
            choice = choose_backend(q, q, q)
            assert choice.backend == "triton"
            assert "not hopper" in choice.reason


def test_who_asks_for_hopper_elsewhere_is_told_of_the_gpu_and_of_no_interpreter() -> None:
    q = torch.zeros(5, 2, 64, dtype=torch.float16)
    with pytest.raises(
        ValueError, match=r"'hopper' cannot run this: its (kernels need a GPU of|language has no interp)"
    ):
        attention(q, q, q, backend="hopper")


def test_the_function_has_the_name_of_its_package_and_modules_come_from_the_package() -> None:
    import quantattn
    from quantattn.attention import testing

    assert inspect.isfunction(quantattn.attention)
    assert inspect.ismodule(testing)
    assert testing.check.__module__ == "quantattn.attention.testing"


def test_a_compiler_finds_nothing_kept_on_its_way_to_the_kernels():
    """A traced `functools.cache` is a warning to every user of torch.compile, and warnings are errors here."""
    from quantattn.attention import choose

    def scaled(x):
        return x * (1 + choose._capability(torch.device("cuda", 0))[0])

    x = torch.ones(3)
    assert torch.equal(torch.compile(scaled, fullgraph=True, backend="eager")(x), scaled(x))
