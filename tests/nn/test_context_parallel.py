"""An encoder whose rows are spread over processes is the encoder of one process, loss and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from context_cases import PROCESSES, Case, cases, computed, run

from quantattn import Encoder
from quantattn.nn.encoder import share_rows


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the processes computed, by case."""
    folder = tmp_path_factory.mktemp("context")
    run(folder)
    return [torch.load(folder / f"{process}.pt", weights_only=True) for process in range(PROCESSES)]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.label)
def test_shared_rows_give_the_loss_and_the_gradients_of_one_process(case: Case, of_ranks: list[dict[str, Any]]) -> None:
    expected = computed(case)
    assert expected["loss"] > 0
    for found in (of_ranks[rank][case.label] for rank in range(case.world)):
        assert found.keys() == {*expected, "rows"}
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.label)
def test_every_rank_computes_its_own_rows_alone(case: Case, of_ranks: list[dict[str, Any]]) -> None:
    """What grows with layers is spread: no layer of any rank sees more than its part, nor does a row go missing."""
    rows = torch.stack([of_ranks[rank][case.label]["rows"][:3] for rank in range(case.world)])  # (W, layers)
    assert (rows.sum(0) == sum(case.lengths)).all()
    assert rows.max() <= 2 * -(-sum(case.lengths) // case.world)


def test_what_cannot_be_shared_is_refused(of_ranks: list[dict[str, Any]]) -> None:
    for found in of_ranks:
        assert "is not compiled; make it with compile=False (model.compile=false)" in found["compiled"]
        assert found["too few"] == "each of 3 chunks needs a row, got 2 rows"
    with pytest.raises(ValueError, match="need a process group: call init_process_group first"):
        share_rows(Encoder("tiny", codes={"kind": 3}))
