"""What runs on sm_90 is a matter of shapes: which backward, and which configuration of the forward."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from quantattn.attention.kernels.hopper.configs import FORWARD, SHORT, forward_config
from quantattn.attention.kernels.hopper.launch import has_backward
from quantattn.attention.kernels.launch import Problem


@pytest.mark.parametrize(
    ("shape", "sequences", "fills"),
    [
        ((1, 16384, 4, 64), None, True),
        ((16, 128, 4, 64), None, True),  # a block of 128 rows each
        ((16, 32, 4, 64), None, True),  # four times the rows
        ((16, 31, 4, 64), None, False),
        ((16, 16, 4, 128), None, True),  # blocks of 64 rows
        ((16, 15, 4, 128), None, False),
        ((1, 4096, 4, 64), 32, True),
        ((1, 4096, 4, 64), 96, True),
        ((1, 4096, 4, 64), 98, False),  # 32 + 97 tiles of 128 rows
        ((16, 1, 4, 256), None, True),  # whose sums do not leave the program
    ],
)
def test_blocks_are_filled(shape: tuple[int, ...], sequences: int | None, fills: bool) -> None:
    q = torch.empty(shape, dtype=torch.bfloat16)
    cu = None if sequences is None else torch.zeros(sequences + 1, dtype=torch.int32)
    assert has_backward(q, Problem(1.0, None, None, cu, cu)) is fills


@pytest.mark.parametrize(
    ("n_q", "n_k", "left", "right", "short"),
    [
        (512, 512, None, None, True),
        (513, 513, None, None, False),
        (4096, 512, None, None, True),  # keys count, not queries
        (2048, 2048, None, 0, True),
        (2049, 2049, None, 0, False),
        (32768, 32768, 128, 128, True),  # a query sees 257 keys however long the sequence is
        (32768, 32768, 1023, 1024, True),
        (32768, 32768, 1024, 1024, False),
        (32768, 32768, 64, None, False),
    ],
)
def test_few_visible_keys_have_a_configuration_of_their_own(
    n_q: int, n_k: int, left: int | None, right: int | None, short: bool
) -> None:
    assert forward_config(64, n_q, n_k, left, right) is (SHORT if short else FORWARD)[64]
    assert forward_config(256, n_q, n_k, left, right) is FORWARD[256]  # where there is none


def test_a_pack_whose_sequences_have_less_than_a_key_on_average_has_a_configuration_too() -> None:
    for columns, table in FORWARD.items():
        assert forward_config(columns, 0, 0, None, None) in (table, SHORT.get(columns))
        assert forward_config(columns, 0, 0, None, 0) in (table, SHORT.get(columns))


def test_wider_heads_take_it_for_fewer_keys() -> None:
    assert forward_config(128, 256, 256, None, None) is SHORT[128]
    assert forward_config(128, 257, 257, None, None) is FORWARD[128]
    assert forward_config(128, 1024, 1024, None, 0) is SHORT[128]
    assert forward_config(128, 1025, 1025, None, 0) is FORWARD[128]
