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
# # What long memory is worth
#
# A desk feeds its model the last hundred events, because a longer context costs more and "what happened two hundred
# events ago is in the price anyway".
#
# **Is anything lost by cutting the context, and can one know how much?** On a real market nobody can say what the best
# forecast would have been. So we take a made one whose law is known, and hold encoders to it.

# %%
import functools
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from quantattn.data.market.prepare import prepare_market
from quantattn.data.merges import FIRST_CODE
from quantattn.data.pack import Decisions, SequenceSet
from quantattn.data.protocol import MidLabel
from quantattn.data.schema import EXECUTE_HIDDEN, MARKER
from quantattn.data.synthetic import SyntheticMarket
from quantattn.data.tokens import Tokenizer
from quantattn.learn.datamodule import PreparedData
from quantattn.learn.fit import fit
from quantattn.learn.module import Training
from quantattn.learn.optimisers import Schedule
from quantattn.learn.predict import predict
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import Encoder, Model, Outcome

# %% [markdown]
# ## A market with a memory
#
# Streams of order-book events. Now and then a large order prints (a *marker*, with a side and a number of lots), and
# at least 200 events later, at a *decision* of the same number of lots, the mid price goes up with probability
#
# P(up) = σ(0.6 · flow + 3 · marker)
#
# where *flow* is the sum of the signs of the last eight orders and *marker* the sign of that print. Signs are fair
# coins, so everything expected is a finite sum: the best possible log loss of somebody who sees the last *n* events
# is computed, not estimated (`docs/synthetic.md`).

# %%
market = SyntheticMarket(
    marker_distance=200, entities=48, events_per_entity=32_768, channels=4, copies=4, flow_weight=0.6, marker_weight=3.0
)
nearest, farthest = int(market.distances.min()), int(market.distances.max())
best, blind = market.bayes().log_loss, market.bayes(nearest).log_loss
print(f"markers lie {nearest} to {farthest} events before their decisions")
print(f"best log loss with everything in view {best:.4f}, without the marker {blind:.4f}, of a coin {math.log(2):.4f}")

# %%
lengths = np.arange(1, farthest + 60)
law = np.array([market.bayes(int(n)).log_loss for n in lengths])
figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
axes.plot(lengths, law, color="black", linewidth=1.5)
axes.axvspan(nearest, farthest, color="#d55e00", alpha=0.15, linewidth=0)
axes.annotate("markers lie here", (nearest - 4, 0.45), ha="right", color="#d55e00")
axes.annotate("only the last orders help", (60, blind - 0.03), va="top")
axes.set(xlabel="events in view", ylabel="log loss, nats", title="The best that anybody can do")
plt.show()

# %% [markdown]
# The curve falls over the first nine events, then there is a plain on which more context buys **nothing**. Whoever
# tries 50, 100 and 150 events finds no gain and stops. The gain is behind the plain.
#
# ## Two encoders
#
# The same encoder twice: two layers, width 64, the same settings and data. One is given sequences in which each
# decision sees at least as far as its marker; the other the desk's hundred events, more or less: 64 to 128.

# %%
label = MidLabel(horizon=1, method=0, classes=2, rule="fixed", theta=0)
fields = ("kind", "side", "size", "price", "mid_move")
prepare = functools.partial(
    prepare_market, market, label=label, decision_kinds=(EXECUTE_HIDDEN,), fields=fields, layout="chunks"
)
data = {
    "far": prepare(max_seq_len=512, min_context=farthest + 1),
    "near": prepare(max_seq_len=128, min_context=64),
}
bound = {name: prepared.bayes_in_context.log_loss for name, prepared in data.items()}
for name, prepared in data.items():
    decisions = [len(part.decisions) for part in (prepared.train, prepared.valid, prepared.test)]
    print(f"{name}: decisions {decisions}; the best for what its sequences hold: {bound[name]:.4f}")
assert math.isclose(bound["far"], best, rel_tol=1e-9)
assert math.isclose(bound["near"], blind, rel_tol=1e-9)

# %%
steps, objective, models = {"far": 260, "near": 200}, Outcome(), {}
for name, prepared in data.items():
    torch.manual_seed(0)
    encoder = Encoder("tiny", codes=prepared.codes, values=prepared.values, causal=True)
    training = Training(
        Model(encoder, objective.heads(encoder.config, prepared.classes)),
        objective,
        optimizer=functools.partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.1),
        schedule=Schedule(steps[name], 0.05, 0.0),
    )
    batches = PreparedData(prepared.train, prepared.valid, max_tokens=3_072, seed=0, batches=steps[name])
    settings = TrainerSettings(max_steps=steps[name], validate_every=50, lr_floor=0.0)
    with tempfile.TemporaryDirectory() as folder:
        fitted = fit(training, batches, Path(folder), settings, total_steps=steps[name])
    models[name] = training.model.eval()
    print(f"{name}: best validation loss {fitted.best_value:.4f} at step {fitted.best_step}")

# %% [markdown]
# ## What they do on later data
#
# Both are asked about the same decisions, those of the last fifth of the time. Behind each loss stands its standard
# error, over streams.

# %%
losses, outcome = {}, data["far"].test.decisions.targets["label"]
assert np.array_equal(outcome, data["near"].test.decisions.targets["label"])
for name, prepared in data.items():
    probability = predict(models[name], prepared.test, 8_192)["prob"].double().numpy()
    losses[name] = -np.log(probability[np.arange(len(outcome)), outcome])
streams = np.unique(data["far"].entity["test"], return_inverse=True)[1]
by_stream = {name: np.bincount(streams, loss) / np.bincount(streams) for name, loss in losses.items()}
error = {name: values.std(ddof=1) / math.sqrt(len(values)) for name, values in by_stream.items()}
for name, loss in losses.items():
    print(f"{name:5} {loss.mean():.4f} ± {error[name]:.4f}, the best possible {bound[name]:.4f}")
closed = (blind - losses["far"].mean()) / (blind - best)
gain = by_stream["near"] - by_stream["far"]
t = gain.mean() / (gain.std(ddof=1) / math.sqrt(len(gain)))
better = (gain > 0).mean()
print(f"far closes {closed:.0%} of the gap that the marker makes; better in {better:.0%} of streams, t {t:.0f}")
assert closed > 0.6
assert t > 10
assert losses["near"].mean() < math.log(2) - 4 * error["near"]
assert losses["near"].mean() > blind - 4 * error["near"]  # nobody beats the law: that would be a leak

# %% [markdown]
# ## Cutting the one that can see
#
# Now the far encoder keeps its weights, and only its view is cut: of each decision it is given the last *n* events.
# Theory says what the best forecaster with that view would lose; no point may lie below the curve by more than
# chance.

# %%
test, some = data["far"].test, slice(0, 600)
rows = Decisions(test.decisions.row[some], {"label": outcome[some]})
views = (4, 9, 50, 150, nearest, (nearest + farthest) // 2, farthest + 1, 300)
cut = {}
for n in views:
    probability = predict(models["far"], SequenceSet(test.table, rows, n, "each"), 16_384)["prob"].double().numpy()
    cut[n] = -np.log(probability[np.arange(len(rows)), outcome[some]])
    allowed = market.bayes(n).log_loss - 4 * cut[n].std() / math.sqrt(len(rows))
    assert cut[n].mean() > allowed
assert cut[farthest + 1].mean() < blind - 0.5 * (blind - best) < cut[150].mean()

# %%
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
axes.plot(lengths, law, color="black", linewidth=1.5, label="the best possible")
axes.errorbar(
    views,
    [cut[n].mean() for n in views],
    [2 * cut[n].std() / math.sqrt(len(rows)) for n in views],
    fmt="o",
    color="#0072b2",
    label="far, its view cut",
)
axes.plot([128], [losses["near"].mean()], "s", color="#d55e00", label="near, trained on 64 to 128")
axes.set(xlabel="events in view", ylabel="log loss, nats", title="What a cut costs", ylim=(0, None))
axes.legend()
plt.show()

# %% [markdown]
# Where the view is cut short of the marker, the far encoder is worse than the near one: it is sure of a marker that it
# is not shown. A model for a short view has to be trained with one.
#
# ## Is it the marker?
#
# Skill could come from elsewhere. So we change the markers and nothing else, and ask for the same decisions again.
# First only the side that is written on them; then their price too, for a sell prints at another price than a buy, and
# so the price tells the side. Where no marker is in view, not one bit may change.

# %%
kinds = Tokenizer.from_json(data["far"].vocabulary_json).categories["kind"]
marked = test.table.fields["kind_code"] == FIRST_CODE + kinds.index(MARKER)
side = test.table.fields["side_code"]
sell, buy = (np.flatnonzero(marked & (side == code))[0] for code in np.unique(side[marked]))
tables = {"as drawn": test.table}
for what, names in {"the side": ("side_code",), "side and price": ("side_code", "price_code", "price_value")}.items():
    fields = dict(test.table.fields)
    for name in names:
        column = fields[name]
        fields[name] = np.where(marked, np.where(side == side[buy], column[sell], column[buy]), column)
    tables[what] = replace(test.table, fields=fields)
up = {}
for name, view in (("far", farthest + 1), ("near", 100)):
    for what, table in tables.items():
        probability = predict(models[name], SequenceSet(table, rows, view, "each"), 16_384)["prob"]
        up[name, what] = probability[:, 1].double().numpy()
    same = {what: round(float(np.corrcoef(up[name, "as drawn"], up[name, what])[0, 1]), 2) for what in tables}
    print(f"{name}: correlation of P(up) with that as drawn: {same}")
assert all(np.array_equal(up["near", "as drawn"], up["near", what]) for what in tables)
assert np.corrcoef(up["far", "as drawn"], up["far", "side and price"])[0, 1] < -0.5

# %%
figure, axes = plt.subplots(1, 2, figsize=(7, 3.4), sharey=True, layout="constrained")
for axis, what in zip(axes, ("the side", "side and price"), strict=True):
    axis.plot(up["far", "as drawn"], up["far", what], ".", markersize=3, color="#0072b2", alpha=0.5)
    axis.set(xlabel="P(up) as drawn", title=f"far, {what} turned", xlim=(0, 1), ylim=(0, 1), aspect="equal")
axes[0].set_ylabel("P(up) with markers changed")
plt.show()

# %% [markdown]
# Turning the side alone turns some forecasts and leaves others: this encoder reads a marker off its price as well.
# Turning all that a marker *says* turns the forecast. What a model uses is found by changing its input, and a test that
# changes half of the input can miss it. Nearly all forecasts are one of two: the encoder has found the marker, and in
# these few steps not much of the flow. That is what is left of the gap.
#
# ## The answer
#
# Cutting the context loses exactly what lies beyond the cut, and here one can say how much. The encoder that sees as
# far as its marker closes most of the gap to the best possible forecast; the one that is cut stays above what the
# law allows for its view, which is far more, and no amount of training could take it below. Trying slightly longer
# contexts would not have shown it: between the last orders and the marker lies a plain where more context buys nothing.
#
# What it does not say: that a real market has such a memory. It says that if there is one, an encoder with an exact
# view of the whole window finds it, and how to test that yours does. `python train.py data.max_seq_len=64` is the
# same cut on the default market; `python benchmarks/long_memory.py` goes to 50,000 events.
