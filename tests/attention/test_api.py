"""The public edge: what cannot be done is said in one sentence, before anything runs; auto can be asked why."""

from __future__ import annotations

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
        ({"scale": float("nan")}, "scale must be finite"),
        ({"dropout": 0.1}, "dropout is not offered"),
        ({"softcap": 3.0}, "softcap is not offered"),
        ({"deterministic": "batch"}, "True or False"),
        ({"backend": "flash"}, "one of auto, triton, sdpa, tiled, exact"),
        ({"bias": torch.zeros(5)}, r"does not broadcast to \(N, H, Nq, Nk\) = \(1, 2, 6, 6\)"),
        ({"bias": torch.zeros(6, dtype=torch.long)}, "must be floating"),
        ({"mask": Mask(window=(1, 1)), "backend": "sdpa"}, "window"),
    ],
)
def test_options_that_cannot_be_met(options, message):
    with pytest.raises(ValueError, match=message):
        attention(*qkv(), **options)


@pytest.mark.parametrize("window", [(-1, 0), (1,), (0.5, 1), (True, None)])
def test_windows_that_mean_nothing(window):
    with pytest.raises(ValueError, match="window"):
        Mask(window=window)


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


def test_an_explicit_triton_never_falls_back(monkeypatch):
    from quantattn.attention import choose

    monkeypatch.setattr(choose, "_INTERPRETED", False)
    with pytest.raises(ValueError, match="need a CUDA device and q is on cpu"):
        attention(*qkv(), backend="triton")
    monkeypatch.setattr(choose, "_INTERPRETED", True)
    with pytest.raises(ValueError, match="float64"):
        attention(*qkv(dtype=torch.float64), backend="triton")
