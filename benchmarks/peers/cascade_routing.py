"""Cascade routing: after every answer, the set of models that is expected to be best for its bill is gone on with.

Dekoninck, Baader, Vechev 2024 (arXiv 2410.10347), section 4. A supermodel is a set of models that holds all that have
been asked. Its quality is E[max q̂_i] over its models, q̂_i being normal around what is expected of model i now, with
the variance that asking it would add; its value is the quality less λ times its bill. Where the best supermodel holds
further models, the cheapest of them is asked; else the answer of the highest q̂ is given. λ comes from the labels.

What is expected of a model is a logistic regression on the confidences of the models asked so far, which is the
estimator of the paper's experiments on real logs without features of the query; before any answer it is a mean.
Mixtures of two λ are left out: all others get one policy for a budget, too.
"""

import itertools
from typing import NamedTuple

import numpy as np

from benchmarks.methods import Columns

LARGEST = 6  # models; there are 3^k pairs of a set and one that holds it
RIDGE, STEPS, DRAWS = 1.0, 8, 32
LAMBDAS = np.geomspace(0.01, 100.0, 41)  # over the dearest model's mean bill

Models = tuple[int, ...]


class Values(NamedTuple):
    """Of the queries where some models have been asked: what is expected of each, and of each larger set."""

    expected: np.ndarray  # (n, k)
    larger: list[Models]
    quality: np.ndarray  # (n, number of larger sets)


def features(data: Columns, asked: Models) -> np.ndarray:
    """(n, 1 + |asked|) an intercept, and log-odds of the confidences; cut at ±7, where all are as good as certain."""
    confidence = np.exp(data.logprob[:, list(asked)])
    return np.column_stack([np.ones(len(data.wrong)), np.clip(np.log(confidence) - np.log1p(-confidence), -7, 7)])


def logistic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Coefficients of a logistic regression with a ridge on all but the intercept, by Newton's method."""
    penalty = np.diag([1e-3] + [RIDGE] * (x.shape[1] - 1))
    beta = np.zeros(x.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-x @ beta))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + penalty
        beta = beta + np.linalg.solve(hessian, x.T @ (y - p) - penalty @ beta)
    return beta


def values_by_asked(train: Columns, test: Columns) -> list[dict[Models, Values]]:
    """For both logs, by the models asked: what is expected, learnt on the first."""
    k = train.wrong.shape[1]
    sets = [s for size in range(k + 1) for s in itertools.combinations(range(k), size)]
    expected: list[dict[Models, np.ndarray]] = [{}, {}]
    with np.errstate(divide="ignore"):
        for asked in sets:
            xs = [features(data, asked) for data in (train, test)]
            betas = np.stack([logistic(xs[0], 1 - train.wrong[:, j]) for j in range(k)], axis=1)
            for place, x in enumerate(xs):
                expected[place][asked] = 1 / (1 + np.exp(-x @ betas))
    deviation = {
        (asked, j): np.std(expected[0][tuple(sorted((*asked, j)))][:, j] - expected[0][asked][:, j])
        for asked in sets
        for j in set(range(k)) - set(asked)
    }
    normal = np.random.default_rng(0).standard_normal((DRAWS, k))
    normal = np.concatenate([normal, -normal])
    tables: list[dict[Models, Values]] = []
    for table in expected:
        tables.append({})
        for asked, mean in table.items():
            spread = np.array([deviation.get((asked, j), 0.0) for j in range(k)])
            larger = [s for s in sets if set(asked) <= set(s) and s]
            drawn = mean[:, None, :] + spread * normal
            quality = np.stack([drawn[:, :, list(s)].max(2).mean(1) for s in larger], axis=1)
            tables[-1][asked] = Values(mean, larger, quality)
    return tables


def walk(data: Columns, values: dict[Models, Values], bill: np.ndarray, lam: float) -> tuple[float, float]:
    """(error, bill) of the strategy at a price λ of the expected bills (k,) of the models."""
    wrong, cost = np.zeros(len(data.wrong)), np.zeros(len(data.wrong))
    waiting: dict[Models, np.ndarray] = {(): np.arange(len(data.wrong))}
    while waiting:
        asked = min(waiting, key=len)
        rows, now = waiting.pop(asked), values[asked]
        prices = np.array([bill[list(s)].sum() for s in now.larger])
        best = np.argmax(now.quality[rows] - lam * prices, axis=1)
        for place in np.unique(best):
            some, further = rows[best == place], set(now.larger[place]) - set(asked)
            if not further:
                chosen = np.array(asked)[np.argmax(now.expected[some][:, list(asked)], axis=1)]
                wrong[some] = data.wrong[some, chosen]
                continue
            cheapest = min(further, key=lambda j: bill[j])
            cost[some] += data.cost[some, cheapest]
            after = tuple(sorted((*asked, cheapest)))
            waiting[after] = np.concatenate([waiting.get(after, np.zeros(0, int)), some])
    return float(wrong.mean()), float(cost.mean())


def cascade_routing(train: Columns, test: Columns) -> np.ndarray:
    """(P, 4) figures of the strategies of all λ; none for more models than there is time for."""
    if train.wrong.shape[1] > LARGEST:
        return np.zeros((0, 4))
    bill = train.cost.mean(0)
    tables = values_by_asked(train, test)
    rows = [[*walk(train, tables[0], bill, lam), *walk(test, tables[1], bill, lam)] for lam in LAMBDAS / bill.max()]
    return np.array(rows)
