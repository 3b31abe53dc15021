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
# # From events to batches
#
# A risk officer reads that a model of an order book forecasts better than chance, and has one question:
#
# **Does anything that the model is shown depend on what came later?** We follow one event from the table to the batch:
# a book, a label, a token, a pack. Then we change the future and look at what moves.

# %%
import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from quantattn.data.market.encode import collect_events, decision_rows, token_table
from quantattn.data.market.features import FEATURES, book_features
from quantattn.data.pack import Decisions, SequenceSet, plan
from quantattn.data.protocol import MidMove, Threshold, mid_moves, past_only, perturb_future
from quantattn.data.schema import EXECUTE_HIDDEN
from quantattn.data.synthetic import SyntheticMarket
from quantattn.data.tokens import Tokenizer

# %% [markdown]
# ## Events
#
# The library's own market, three streams with five levels of the book. A real feed gives the same table:
# `scan_lobster`, `scan_itch` and the others of `quantattn.data.sources` return it, with prices as integers and times in
# nanoseconds UTC.

# %%
market = SyntheticMarket(entities=3, events_per_entity=6_000, levels=5, seed=1)
source = market.source()
events = collect_events(source)
tick = source.instruments[0].tick
shown = ("entity", "available_time", "kind", "side", "price", "size", "bid_price_1", "ask_price_1")
events.select(shown).slice(1_000, 5)

# %% [markdown]
# ## A book
#
# Two hundred events of one stream, before a decision. Colour is the size that waits at a price, on a logarithmic scale;
# the white line is the mid. Row i of the table is the book **after** event i.

# %%
first = 1_000
part = events.slice(first, 200)
prices = np.concatenate([part[f"{side}_price_{level}"].to_numpy() for side in ("bid", "ask") for level in range(1, 6)])
sizes = np.concatenate([part[f"{side}_size_{level}"].to_numpy() for side in ("bid", "ask") for level in range(1, 6)])
x = np.tile(np.arange(200), 10)
rows = (prices - prices.min()) // tick
image = np.full((int(rows.max()) + 1, 200), np.nan)
image[rows.astype(int), x] = np.log10(np.maximum(sizes, 1))
mid = (part["bid_price_1"] + part["ask_price_1"]).to_numpy() / 2
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.set_facecolor("#222222")
drawn = axes.imshow(image, aspect="auto", origin="lower", cmap="viridis", interpolation="nearest")
axes.plot((mid - prices.min()) / tick, color="white", linewidth=1)
axes.set(xlabel=f"event, from number {first}", ylabel="ticks above the lowest price", title="A book")
figure.colorbar(drawn, label="log₁₀ of the size")
plt.show()

# %% [markdown]
# ## A label
#
# A decision is made after some events, here executions of hidden orders. Its label says where the mid stands one event
# later, and carries the interval that it looks at, open at its start: what is known at the decision is no part of it.

# %%
moves = mid_moves(events, MidMove(horizon=1))
labelled = Threshold.fixed(0).classify(moves, classes=2)
rows = decision_rows(events, kinds=(EXECUTE_HIDDEN,))
seen = labelled[rows].with_columns(interval_us=(pl.col("label_end") - pl.col("label_start")) // 1000)
seen.select("entity", "available_time", "interval_us", "label", "label_reason").head(4)

# %% [markdown]
# ## A token
#
# One event is one token: a code for each field (0 is kept for what is missing, 1 for what an objective hides) and, for
# numbers, a scaled value too. Bins and scales are fitted on training rows alone, here on the first half of the time.

# %%
half = int(events["available_time"].quantile(0.5, "lower"))
tokenizer = Tokenizer.fit(events.lazy(), source.instruments, fitted_until=half)
tokens = tokenizer.transform(events.lazy()).collect()
row = int(rows[100])
fields = [name.removesuffix("_code") for name in tokenizer.codes]
values = [tokens[f"{field}_value"][row] if f"{field}_value" in tokenizer.values else None for field in fields]
one = {"field": fields, "code": [tokens[name][row] for name in tokenizer.codes], "of": list(tokenizer.codes.values())}
with pl.Config(tbl_rows=20):
    print(pl.DataFrame(one | {"value": values}))

# %% [markdown]
# ## A pack
#
# Every decision gets a sequence of the tokens up to itself. Sequences lie end to end in a batch, which the offsets
# `cu_seqlens` part; attention never crosses them, so nothing is padded. Below: eight batches, a sequence a colour.

# %%
table = token_table(events, tokenizer)
kept = rows[::3]
kept = kept[labelled["label"].gather(kept).is_not_null().to_numpy()]
targets = {"label": labelled["label"].gather(kept).to_numpy().astype(np.int64)}
sequences = SequenceSet(table, Decisions(kept, targets), max_seq_len=2_000)
batches = plan(sequences.lengths, 8_192, seed=0)
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
for line, batch in enumerate(batches[:8]):
    left = 0
    for place, length in enumerate(sequences.lengths[batch]):
        axes.barh(line, length, left=left, color=plt.get_cmap("tab20")(place % 20), edgecolor="white", linewidth=0.3)
        left += length
axes.axvline(8_192, color="grey", linestyle=":")
axes.set(xlabel="tokens; the dotted line is the budget", ylabel="batch", title="Packs")
axes.invert_yaxis()
plt.show()
filled = np.mean([sequences.lengths[batch].sum() for batch in batches[:-1]]) / 8_192
print(f"{len(sequences)} sequences in {len(batches)} batches; {filled:.1%} of the room is used, no token is padding")

# %%
batch = sequences.pack(batches[0])
print(batch.cu_seqlens[:6].tolist(), "…: where sequences begin")
print(batch.positions[:5].tolist(), "…: the tokens at which decisions are made, the last of their sequences")
assert (batch.positions + 1 == batch.cu_seqlens[1:]).all()
assert (np.diff(batch.time.numpy()[: batch.cu_seqlens[1]]) >= 0).all()

# %% [markdown]
# ## Another future
#
# `perturb_future` keeps every event known by a moment and replaces all later ones: other sizes, other prices, other
# times, some of them gone. What the model is shown of the past must not move by one bit.

# %%
other = perturb_future(events, half)
known = (events["available_time"] <= half).to_numpy()
inputs = {"tokens": lambda frame: tokenizer.transform(frame.lazy()).select(tokenizer.codes.keys()).collect()}
inputs["features"] = lambda frame: book_features(frame.lazy(), source.instruments).select(FEATURES).collect()
for name, compute in inputs.items():
    before, after = compute(events).filter(known), compute(other).filter((other["available_time"] <= half).to_numpy())
    print(f"{name}: {before.height} events of {before.width} columns, equal: {before.equals(after)}")
    assert before.equals(after)
print(f"while {(~known).sum()} later events became {other.height - known.sum()} others")

# %% [markdown]
# ## And a leak
#
# Would it be noticed? A feature that reads the next event's size looks harmless in a table. The audit of every training
# run computes the inputs again without their future, and names the first event whose input was another.

# %%
features = {
    "passed": lambda frame: {"this size": frame["size"]},
    "failed": lambda frame: {"next size": frame["size"].shift(-1)},
}
for expected, compute in features.items():
    check = past_only(compute, events, compute(events), half)
    print(f"{check.verdict}: {check.leaks} of {check.looked_at} values. {check.sentence}")
    assert check.verdict == expected

# %% [markdown]
# ## The answer
#
# No. A label's interval begins after the decision; a token is a function of its event, the one before it and bins that
# training rows gave; a sequence ends with its decision, and attention stays inside it. Changing every later event moved
# no bit of what was shown, and a feature that did look ahead was caught, by name and with the event that shows it.
# `python train.py` runs the same checks on your data, and fails the run with that sentence.
