# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention is a merge
#
# A colleague keeps the tiled kernel off on a model whose quality matters, because "approximate attention changes the
# outputs". A tiled kernel never sees all keys of a query at once, and a softmax needs the sum over all of them.
#
# **Is the tiled kernel an approximation?** We do one example by hand, look at ways to get it wrong, and then measure.

# %%
import importlib.util
import os

import matplotlib.pyplot as plt
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # the kernel runs on the CPU, slowly; must be set before triton is imported

from quantattn.attention import AttentionState, Mask, attention
from quantattn.attention.examples import worked_examples
from quantattn.attention.problems import random_problem
from quantattn.attention.testing import check, error_budget, run
from quantattn.attention.tiled import tiled_attention

# %% [markdown]
# ## One query, three keys
#
# The scores are (0, ln 2, ln 3), the values (1, 2, 4). The exponentials are (1, 2, 3), the weights (1, 2, 3)/6, and the
# answer is (1·1 + 2·2 + 3·4)/6 = 17/6.

# %%
scores = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64).log()
values = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
direct = torch.softmax(scores, dim=-1) @ values
print(f"softmax over all keys {direct.item():.6f}, by hand {17 / 6:.6f}")

# %% [markdown]
# ## The same in two blocks
#
# The first two keys are block A, the third is block B. What a block must remember is its state: a reference m (its
# largest score), the mass l = Σ exp(s − m), and the weighted sum u = Σ exp(s − m)·v.

# %%
a = AttentionState.of_block(scores[:, :2], values[:2])
b = AttentionState.of_block(scores[:, 2:], values[2:])
for name, state in (("A", a), ("B", b)):
    print(f"{name}: m = ln {state.m.exp().item():.0f}, l = {state.l.item():.4g}, u = {state.u.item():.4g}")

# %% [markdown]
# A measures its exponentials from ln 2 and B from ln 3. Numbers with different references cannot be added. Moving A's
# reference from ln 2 up to ln 3 multiplies its l and its u by exp(ln 2 − ln 3) = 2/3. Then they add:
#
# l = 3/2 · 2/3 + 1 = 2 and u = 5/2 · 2/3 + 4 = 17/3, so u/l = 17/6.

# %%
merged = a.merge(b)
print(f"l = {merged.l.item():.6f}, u = {merged.u.item():.6f}, u/l = {merged.finish().out.item():.6f}")
assert abs(merged.finish().out.item() - 17 / 6) < 1e-15

# %%
reference = torch.cat([a.m, a.m, b.m])
own = torch.exp(scores[0] - reference)
panels = {
    "all at once": torch.exp(scores[0] - scores.max()),
    "each block from its own maximum": own,
    "block A multiplied by 2/3": own * torch.exp(reference - merged.m),
}
fig, axes = plt.subplots(1, 3, figsize=(10, 2.8), sharey=True, layout="constrained")
for axis, (title, heights) in zip(axes, panels.items(), strict=True):
    bars = axis.bar(["key 1", "key 2", "key 3"], heights, color=["C0", "C0", "C1"])
    axis.bar_label(bars, fmt="%.2f")
    axis.set_title(title)
axes[0].set(ylabel="exp(score − reference)", ylim=(0, 1.2))
plt.show()

# %% [markdown]
# In the middle the bars of A (blue) are too tall beside that of B (orange). Rescaled, they are those on the left.
#
# ## Ways to get it wrong
#
# Adding the sums as they stand gives 2.6. Averaging the outputs of the blocks loses their masses: with the scores
# (0, ln 3, ln 2) and the values (2, 6, 10) the blocks answer 5 and 10 with masses 4 and 2, and the right answer is
# (4·5 + 2·10)/6 = 20/3, not 7.5. Without the maximum, the exponentials of large scores are no numbers at all.

# %%
print(f"sums added without rescaling {((a.u + b.u) / (a.l + b.l)).item():.4f}, right is {17 / 6:.4f}")
practice = worked_examples()[1]
outputs = [float(block.out) for block in practice.blocks]
print(f"block outputs averaged {sum(outputs) / 2:.4f}, right is {practice.out.item():.4f}")
large = torch.tensor([1e4, 1e4, -1e4])
naive = large.exp() / large.exp().sum()
print(f"without the maximum {naive.tolist()}, right is {torch.softmax(large, -1).tolist()}")

# %% [markdown]
# ## The order does not matter
#
# The merge is commutative and associative, and the empty state (−∞, 0, 0) changes nothing. So any tiling, any split of
# the keys over processors, any order of arrival gives the same softmax. A block that is masked completely is the empty
# state.

# %%
torch.manual_seed(0)
many_scores, many_values = torch.randn(4, 1000, dtype=torch.float64) * 10, torch.randn(1000, 8, dtype=torch.float64)
whole = torch.softmax(many_scores, dim=-1) @ many_values
for size in (1, 7, 128, 999):
    state = AttentionState.empty(4, 8, dtype=torch.float64)
    for start in torch.randperm(-(-1000 // size)) * size:
        keys = slice(start, start + size)
        state = state.merge(AttentionState.of_block(many_scores[:, keys], many_values[keys]))
    print(f"blocks of {size:3d} in random order: largest difference {(state.finish().out - whole).abs().max():.1e}")

# %% [markdown]
# ## What is left is rounding
#
# In 16 bits nothing is exact, standard attention included. The honest question is how far each is from the truth, the
# dense formula in float64 on the same inputs. *Ratio* is the error in units of what standard attention loses in the
# same dtype; about 2 is allowed for outputs and about 3 for gradients.

# %%
for dtype in (torch.float32, torch.bfloat16):
    problem = random_problem(0, (300,), heads=2, d=64, mask=Mask(causal=True), dtype=dtype)
    for row in check(run(tiled_attention, problem), error_budget(problem)):
        print(f"{dtype!s:15} {row.name:4} worst error {row.worst:.1e}   ratio {row.ratio:.2f}   within: {row.ok}")
        assert row.ok

# %% [markdown]
# ## The kernel
#
# The same merge is what the Triton kernel does on chip: for a block of queries it walks over the blocks of keys, keeps
# m, l and u in registers, and writes one output. The N × N matrix is never written. On a machine without a GPU the
# kernel below runs under Triton's interpreter, if Triton is installed.

# %%
device = "cuda" if torch.cuda.is_available() else "cpu"
problem = random_problem(1, (70,), heads=1, d=32, mask=Mask(causal=True), device=device)
if importlib.util.find_spec("triton") is None:
    print("Triton is not installed here (it is for Linux): no kernel to compare with.")
else:
    kernel = attention(problem.q, problem.k, problem.v, mask=problem.mask, backend="triton")
    dense = attention(problem.q, problem.k, problem.v, mask=problem.mask, backend="exact")
    (row,) = check({"out": kernel.out}, error_budget(problem, backward=False))
    print(f"largest difference from the dense formula on {device}: {(kernel.out - dense.out).abs().max():.1e}")
    print(f"error against float64 {row.worst:.1e}, {row.ratio:.2f} times that of standard attention")
    assert row.ok

# %% [markdown]
# ## The answer
#
# **No, it is not an approximation.** Every allowed key enters the softmax of its query with its full weight; the kernel
# adds in parts what the formula adds at once, after bringing the parts to one reference. What differs is the rounding
# of sums in another order, and that is of the size of what standard attention loses in the same dtype. What *would* be
# an approximation, adding sums with different references or averaging outputs, misses by tenths and is seen at once.
#
# `python -m quantattn validate` repeats this for every backend, dtype and worked example, and fails if one strays.
