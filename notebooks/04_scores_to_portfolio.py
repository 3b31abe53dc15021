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
# # From scores to a portfolio
#
# Somebody hands over a table of scores and says that trading on them makes money. The investment committee asks:
#
# **Is there skill in it, how sure is that, and what is left after costs?** We make a table in which the skill is known,
# judge it, and then take the skill away.

# %%
import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from quantattn.evaluate import Columns, Terms, assess, judge_ranking, read_scores
from quantattn.evaluate.assessment import shuffled
from quantattn.evaluate.sharpe import deflated_sharpe, expected_best

# %% [markdown]
# ## The table
#
# 500 days, 80 securities. The score of a day knows a little of the next day's return and changes slowly; all securities
# share a shock a day. A row is a security on a day: who, when, the score, and what came after.

# %%
days, names = 500, 80
rng = np.random.default_rng(7)
own = rng.standard_t(5, size=(days, names)) * 0.015
outcome = own + rng.normal(size=(days, 1)) * 0.01
score = 0.06 * own / 0.015 + rng.normal(size=(days, names))
for day in range(1, days):
    score[day] = 0.7 * score[day - 1] + np.sqrt(1 - 0.7**2) * score[day]
day, name = (grid.ravel() for grid in np.indices(score.shape))
table = pl.DataFrame(
    {
        "entity": [f"S{i:02d}" for i in name],
        "time": (np.datetime64("2023-01-02T21:00", "ns") + day * np.timedelta64(1, "D")),
        "score": score.ravel(),
        "outcome": outcome.ravel(),
        "volume": np.exp(rng.normal(size=name.size) + 17),
    }
)
table.head(3)

# %% [markdown]
# ## Does it order what comes after?
#
# On each day, the rank correlation of score and outcome across securities; over days, its mean with an interval that
# allows for days that resemble their neighbours. Baselines are made from the same rows, from outcomes that were known.

# %%
tables = read_scores(table, "return", Columns(volume="volume"))
found = assess(tables, Terms(trials=25, cost_bps=5.0))
for one in (found.model, *found.baselines):
    test = one.ranking.test
    print(f"{one.name:12} rank IC {test.value:+.4f}  ({test.low:+.4f} … {test.high:+.4f})  t {test.t:5.2f}")
for baseline, test in found.differences.items():
    print(f"better than {baseline:12} by {test.value:.4f}, p {test.p:.4f}")

# %% [markdown]
# ## How fast does it age?
#
# The score of some days ago with the outcome of today. What is old is worth little here: it has to be traded at once.

# %%
figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
places = range(len(found.ages))
for place, test in zip(places, found.ages.values(), strict=True):
    axes.plot([place, place], [test.low, test.high], color="#0072b2", linewidth=2, alpha=0.5)
    axes.plot([place], [test.value], "o", color="#0072b2")
axes.axhline(0, color="grey", linewidth=1)
axes.set_xticks(places, [str(age) for age in found.ages])
axes.set(xlabel="age of the score, days", ylabel="rank IC", title="How fast it ages")
plt.show()

# %% [markdown]
# ## What is left after costs?
#
# Long the best fifth, short the worst, one unit a side. The cost at which nothing is left says more than any assumed
# one; and the square-root law says how much money it can carry.

# %%
book = found.model.book
figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
for label, returns in (("before costs", book.gross), (f"after {book.cost_bps:g} bp a unit traded", book.net)):
    axes.plot(100 * returns.cumsum(), label=label)
axes.set(xlabel="day", ylabel="total return, % of one side", title="Long the best fifth, short the worst")
axes.legend()
plt.show()
net = found.model.net
print(f"a day: {1e4 * book.gross.mean():.1f} bp before costs, {1e4 * net.value:.1f} after", end="")
print(f" ({1e4 * net.low:.1f} … {1e4 * net.high:.1f}); {book.turnover:.0%} of the book is replaced")
print(f"costs of {book.break_even_bps:.1f} bp eat it all; deepest fall {found.model.fall.depth:.1%}")
print(f"with market impact nothing is left at {found.capacity.most:,.0f} a side")

# %% [markdown]
# ## How many were tried?
#
# The best of many worthless scores has a handsome Sharpe ratio. The number that was tried, and not the number that was
# shown, decides what a ratio is worth.

# %%
ratio = found.model.sharpe
print(f"Sharpe ratio {ratio.ratio:.3f} a day over {ratio.n} days, {ratio.ratio * np.sqrt(365):.1f} a year")
for trials in (1, 25, 1_000, 1_000_000):
    luck = expected_best(trials, 1 / (ratio.n - 1))
    print(f"{trials:9,} tried: luck alone {luck:.3f}; above zero with probability {deflated_sharpe(ratio, trials):.3f}")

# %% [markdown]
# ## Without skill
#
# The outcomes of each day are dealt out anew among its securities, twenty times: the same scores, the same returns,
# nothing to find. About one p-value in twenty may still be below 0.05.

# %%
below = []
for seed in range(20):
    chance = shuffled(tables[1], seed)
    below.append(judge_ranking(chance.data, chance.score).test.p < 0.05)
print(f"{sum(below)} of {len(below)} shuffled tables have a rank IC that is called significant")
assert sum(below) <= 4
assert found.model.ranking.test.p < 1e-6
assert found.differences[found.best.name].low > 0

# %% [markdown]
# ## The answer
#
# There is skill: the rank IC is far from zero, it is better than every baseline from the same rows, and on shuffled
# outcomes nothing is found. Whether money is left is another question, and the answer is a price: the page states the
# cost that eats it all, how fast the score must be traded, how much capital it carries, and how many tries it survives.
# `quantattn evaluate table.parquet --kind return` writes all of it as one page.
