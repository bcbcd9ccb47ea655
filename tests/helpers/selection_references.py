"""Logs made by hand, and plain numpy references for what is chosen by the labels of a log."""

import itertools

import jax.numpy as jnp
import numpy as np
from statsmodels.discrete.discrete_model import Logit
from statsmodels.tools.tools import add_constant

import rcjax
from rcjax.logs import Log
from rcjax.policy.spec import Spec
from rcjax.solving.frontier.frontier import Frontier, make_frontier
from rcjax.solving.frontier.points import LossTerms, Points, Policies

#: Mean costs of the models of a made log.
COSTS = (1.0, 10.0, 40.0, 120.0, 300.0)
#: Thresholds of the first of two models, for policies that are fixed; the last one never asks the second.
CUTS = np.array([0.9, 0.7, 0.5, 0.3, 0.0])
LAM = np.geomspace(1e-3, 0.1, len(CUTS))


def make_log(n: int, k: int, seed: int = 0, missing: float = 0.0, task: str = "generation", **changes) -> Log:
    """A log of n queries that differ in difficulty; `changes` replace matrices (n, k), or rows that broadcast to them.

    Confidences tie now and then, but no model states any, and every model is right and wrong at any confidence.
    """
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(size=(n, 1))
    skill = 2.5 * (np.linspace(0.0, 1.0, k) - difficulty)
    right = rng.uniform(size=(n, k)) < 1 / (1 + np.exp(-skill))
    belief = 1 / (1 + np.exp(-(skill + rng.normal(size=(n, k)))))
    matrices = {
        "logprob": np.log(np.round(belief, 3).clip(0.001, 0.999)),
        "correct": right,
        "query_cost": np.array(COSTS[:k]) * rng.uniform(0.5, 1.5, (n, 1)),
        "answered": rng.uniform(size=(n, k)) >= missing,
    }
    matrices = {name: np.broadcast_to(changes.get(name, each), (n, k)) for name, each in matrices.items()}
    answered = matrices["answered"]
    logprob = jnp.asarray(np.where(answered, matrices["logprob"], np.nan))
    query_cost = np.where(answered, matrices["query_cost"], 0.0)
    return Log(
        models=tuple(f"m{j}" for j in range(k)),
        logprob=logprob,
        correct=jnp.asarray(matrices["correct"] & answered),
        query_cost=jnp.asarray(query_cost),
        answered=jnp.asarray(answered),
        cost=jnp.asarray(query_cost.sum(0) / answered.sum(0)),
        queries=tuple(range(n)),
        task=task,  # type: ignore[arg-type]
        source="made by hand",
    )


def feature(logprob: np.ndarray) -> np.ndarray:
    """ξ of generated answers, for finite log-probabilities below 0."""
    p = np.exp(logprob)
    return np.where(p >= 0.5, -np.log(1 - p) - np.log(2), np.log(p) + np.log(2))


def logistic(logprob: np.ndarray, correct: np.ndarray, train: np.ndarray) -> np.ndarray:
    """(n,) probability of being right by logistic regression on the queries of a mask; 0.5 where logprob is NaN."""
    xi = feature(logprob)
    fitted = Logit(correct[train].astype(float), add_constant(xi[train])).fit(disp=0, tol=1e-12, maxiter=100)
    return np.where(np.isnan(xi), 0.5, 1 / (1 + np.exp(-fitted.params[0] - fitted.params[1] * np.nan_to_num(xi))))


def centred(expected: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """What is expected of labels, with their mean."""
    return expected - expected.mean() + labels.mean()


def figures_of_pair(rows, i: int, j: int, passed: np.ndarray, blend=(3 / 8, 3 / 8)):
    """(error, cost, error by the labels alone) of a pair that passes queries on.

    `rows` is (confidence, conditional, correct, present, query_cost), passed (n,) how likely a query is passed on;
    blend, the weights of what j's own confidence tells, and of what that of i does.
    """
    confidence, conditional, correct, present, query_cost = rows
    both = present[:, i] & present[:, j]
    spent, asked = np.broadcast_to(query_cost, confidence.shape), passed[both]
    y_i, y_j = (correct[both, m].astype(float) for m in (i, j))
    own, other = blend
    first = (1 - own - other) * y_i + (own + other) * centred(confidence[both, i], y_i)
    second = (1 - own - other) * y_j + own * centred(confidence[both, j], y_j)
    second = second + other * centred(conditional[i, j][both], y_j)
    error, counted = (1 - ((1 - asked) * a + asked * b).mean() for a, b in ((first, second), (y_i, y_j)))
    return error, spent[present[:, i], i].mean() + (asked * spent[both, j]).mean(), counted


def judge(confidence, conditional, correct, present, query_cost, blend=(3 / 8, 3 / 8)):
    """[(first, second, threshold, error, cost, counted)] of all single models and pairs, by loops over the definition.

    conditional[i, j] (n,) is the probability that j is right, by the confidence of i; query_cost is (n, k) or (k,).
    """
    k = confidence.shape[1]
    spent = np.broadcast_to(query_cost, confidence.shape)
    found = []
    for j in np.flatnonzero(present.any(0)).tolist():
        error = 1 - correct[present[:, j], j].mean()
        found.append((j, j, 0.0, error, spent[present[:, j], j].mean(), error))
    for i, j in itertools.combinations(range(k), 2):
        for low, high in itertools.pairwise(np.unique(confidence[present[:, i] & present[:, j], i])):
            threshold = (low + high) / 2
            passed = (confidence[:, i] <= threshold).astype(float)
            rows = confidence, conditional, correct, present, query_cost
            found.append((i, j, threshold, *figures_of_pair(rows, i, j, passed, blend)))
    return found


def best_by_labels(logprob, correct, train, cost, lam, blend=(3 / 8, 3 / 8)):
    """(confidence (n, k), the best single model, the best single model or pair, of each λ) on the queries of a mask."""
    k = logprob.shape[1]
    confidence = np.stack([logistic(logprob[:, j], correct[:, j], train[:, j]) for j in range(k)], axis=1)
    conditional = {
        (i, j): logistic(logprob[:, i], correct[:, j], train[:, i] & train[:, j])
        for i in range(k)
        for j in range(i + 1, k)
    }
    found = judge(confidence, conditional, correct, train, cost, blend)
    error, spent = (np.array([each[place] for each in found]) for place in (3, 4))
    losses = error + np.asarray(lam)[:, None] * spent
    alone = [found[place] for place in losses[:, :k].argmin(1)]
    return confidence, alone, [found[place] for place in losses.argmin(1)]


def follow(policy, confidence, correct, cost):
    """(wrong (n,), cost (n,)) of a policy (first, second, threshold, …) on queries with calibrated confidences."""
    i, j, threshold, *_ = policy
    defers = (confidence[:, i] <= threshold) & (i != j)
    wrong = ~np.where(defers, correct[:, j], correct[:, i])
    return wrong.astype(float), cost[i] + cost[j] * defers


def fixed_frontier(log: Log, model: rcjax.CascadeModel) -> Frontier:
    """A frontier of pairs of the first and the last model, that nobody has tuned."""
    k = len(model.models)
    members = np.zeros((len(CUTS), k), bool)
    members[:, 0], members[:-1, -1] = True, True
    thresholds = np.where(members, 0.0, 1.0)
    thresholds[:, 0] = CUTS
    nothing = np.zeros(len(CUTS))
    policies, expected = Policies.from_cascades(thresholds, members), LossTerms(nothing, nothing, nothing)
    return make_frontier(model, Points(LAM, nothing.astype(int), expected, policies), Spec(cascade="all"))


def draws_of(seed: int, n: int, replicates: int) -> np.ndarray:
    """(B, n) the queries that `bootstrap` draws."""
    return np.random.default_rng(seed).integers(0, n, (replicates, n))


def as_rows(frontier):
    """[(first, second, threshold, error, cost)] of a frontier without longer chains."""
    rows = []
    for members, *figures in zip(*(np.asarray(getattr(frontier, name)) for name in ("members", "thresholds", "error", "cost")), strict=True):  # fmt: skip # noqa: E501
        i, *rest = np.flatnonzero(members)
        thresholds, error, cost = figures
        rows.append((i, rest[0] if rest else i, thresholds[i], error, cost))
    return rows
