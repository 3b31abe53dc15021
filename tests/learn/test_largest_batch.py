"""The largest budget of tokens that fits into memory, under limits of memory that are real."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forked import answer
from hypothesis import given
from hypothesis import strategies as st
from little_memory import CPU, LENGTH, limit, module
from toy import sequences

from quantattn.cli.errors import FAILED, exit_code
from quantattn.learn.budget import find_budget, largest, require_limit, within_memory
from quantattn.learn.settle import BUDGET, settled_budget
from quantattn.nn.memory import OutOfMemory, is_out_of_memory

SCRIPT = Path(__file__).with_name("little_memory.py")


@given(st.integers(1, 5000), st.integers(0, 100_000), st.integers(0, 200_000))
def test_the_search_finds_the_threshold_up_to_a_sixteenth(least: int, more: int, threshold: int) -> None:
    most, asked = least + more, []

    def fits(tokens: int) -> bool:
        asked.append(tokens)
        return tokens <= threshold

    found = largest(fits, least, most)
    assert all(least <= tokens <= most for tokens in asked)
    assert len(asked) <= 30
    if threshold < least:
        assert found is None
    else:
        assert found is not None
        assert fits(found)
        assert found >= min(threshold, most) - found // 16 - 1


def test_trying_changes_neither_weights_nor_generators() -> None:
    tried, train = module(), sequences(30)
    weights = {name: value.clone() for name, value in tried.state_dict().items()}
    state, said = torch.get_rng_state(), []
    assert find_budget(tried, train, CPU, said.append) == 150  # all tokens: nothing is out of memory here
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, weights[name]) for name, value in tried.state_dict().items())
    assert all(parameter.grad is None for parameter in tried.parameters())
    assert said == [f"a batch of {n} tokens fits" for n in (5, 10, 20, 40, 80, 150)]


def test_half_of_what_is_found_trains_and_four_times_as_much_does_not(tmp_path: Path) -> None:
    """In a process with 64 MiB left, tokens are counted by what torch can allocate; with 10, not one sequence fits."""
    command = [sys.executable, SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    found, sentence = answer["found"], answer["said"]
    assert answer["step"] == 3
    assert LENGTH < found < 6000 * LENGTH
    assert sentence.startswith(f"memory is out at a batch of at most {4 * found:,} tokens (")
    named = int(sentence.split("data.max_tokens_per_batch=")[1].split()[0])
    assert found // 2 <= named <= 2 * found  # what is left differs by a few MiB from try to try
    assert "model.gradient_checkpointing=true" in sentence
    assert answer["of_none"] is None


def test_only_a_lack_of_memory_is_called_one() -> None:
    assert is_out_of_memory(MemoryError())
    assert exit_code(MemoryError()) == exit_code(OutOfMemory()) == FAILED  # a sentence, not a traceback
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))

    def broken() -> None:
        raise RuntimeError("another failure")

    with pytest.raises(RuntimeError, match=r"^another failure$"):
        within_memory(broken, 1, 1, None)


def test_the_budget_that_was_found_stays_with_the_run(tmp_path: Path) -> None:
    """Who goes on with it has the same order of batches, whatever would fit now."""
    assert settled_budget(tmp_path / "a", None, lambda: 640, LENGTH) == 640
    last = tmp_path / "a" / "checkpoints" / "last.ckpt"
    assert settled_budget(tmp_path / "a", last, lambda: 1280, LENGTH) == 640
    assert settled_budget(tmp_path / "b", last, lambda: 1280, LENGTH) == 640
    assert (tmp_path / "a" / BUDGET).read_text() == (tmp_path / "b" / BUDGET).read_text()
    with pytest.raises(ValueError, match=r"c/budget\.json is not there: .* give data\.max_tokens_per_batch the same"):
        settled_budget(tmp_path / "b", tmp_path / "c" / "checkpoints" / "last.ckpt", lambda: 1280, LENGTH)
    with pytest.raises(OutOfMemory, match="not even one sequence of 50 tokens fits"):
        settled_budget(tmp_path / "d", None, lambda: None, LENGTH)
    (tmp_path / "a" / BUDGET).write_text("{}")
    with pytest.raises(ValueError, match=r"a/budget\.json does not hold max_tokens_per_batch as a whole number"):
        settled_budget(tmp_path / "a", last, lambda: 1280, LENGTH)


def test_a_cpu_without_a_limit_is_not_tried() -> None:
    def with_a_limit() -> str:
        limit(100_000)
        require_limit(CPU)
        return "taken"

    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        with pytest.raises(ValueError, match=r"a CPU process without a limit is killed for that; set one \(ulimit -v"):
            require_limit(CPU)
    assert answer(with_a_limit) == "taken"
