"""Bayesian optimisation of a cascade's thresholds on the training labels, by the library of that name."""

from collections.abc import Sequence

import numpy as np

import rcjax
from benchmarks.methods import Answers, Columns, Curve, answers, outcomes

_LAMBDAS = np.geomspace(1e-3, 1.0, 9)  # times the cost of the dearest model
_START, _STEPS = 5, 20


def bayesian_optimization(
    model: rcjax.CascadeModel, train: rcjax.Log, test: rcjax.Log, cascade: Sequence[str], seed: int = 0
) -> Curve:
    """error + λ·cost on the training labels, minimised over the quantiles of the thresholds for each of nine λ."""
    data = answers(model, train, cascade)
    return outcomes(answers(model, test, cascade), thresholds_by_price(data, seed))


def bayesian(train: Columns, test: Columns) -> np.ndarray:
    """(9, 4) figures of the cascade of all models, optimised on the labels and their bills."""
    models = range(train.wrong.shape[1])
    data = train.cascade(models)
    thresholds = thresholds_by_price(data, seed=0)
    both = outcomes(data, thresholds), outcomes(test.cascade(models), thresholds)
    return np.stack([x for curve in both for x in (curve.error, curve.cost)], axis=1)


def thresholds_by_price(data: Answers, seed: int) -> np.ndarray:
    """(9, m − 1) the best thresholds for each λ."""
    dearest = data.cost.mean(0).max() if data.cost.ndim == 2 else data.cost.max()
    return np.stack([best_thresholds(data, lam, seed) for lam in _LAMBDAS / dearest])


def best_thresholds(data: Answers, lam: float, seed: int) -> np.ndarray:
    """(m − 1,) the thresholds of least error + λ·cost that 25 evaluations find."""
    from bayes_opt import BayesianOptimization

    names = [f"u{j}" for j in range(data.wrong.shape[1] - 1)]

    def at(u: dict[str, float]) -> np.ndarray:
        return np.array([np.quantile(data.confidence[:, j], u[name]) for j, name in enumerate(names)])

    def gain(**u: float) -> float:
        seen = outcomes(data, at(u)[None])
        return -float(seen.error[0] + lam * seen.cost[0])

    search = BayesianOptimization(gain, dict.fromkeys(names, (0.0, 1.0)), random_state=seed, verbose=0)
    search.maximize(init_points=_START, n_iter=_STEPS)
    return at(search.max["params"])
