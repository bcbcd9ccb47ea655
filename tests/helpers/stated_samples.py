"""Logs whose confidences have few values: stated ones, votes, a scale of 1 to 10, yes or no."""

import numpy as np
import polars as pl

import rcjax
from rcjax import Log

#: How raw probabilities become what a model states.
KINDS = ("twentieths", "votes", "stated", "scale", "certain")
_STATED = np.array([0.5, 0.8, 0.9, 0.95, 1.0])


def stated(probability: np.ndarray, kind: str, seed: int = 0) -> np.ndarray:
    """Raw probabilities of few values, from any."""
    p = np.clip(np.asarray(probability, float), 0.0, 1.0)
    rng = np.random.default_rng(seed)
    match kind:
        case "twentieths":
            return np.round(p * 20) / 20
        case "votes":
            return rng.binomial(5, p) / 5
        case "stated":
            return _STATED[np.abs(p[..., None] - _STATED).argmin(-1)]
        case "scale":
            return np.clip(np.ceil(p * 10), 1, 10) / 10
    return (rng.random(p.shape) < p).astype(float)


def stated_log(kind: str, n: int = 300, seed: int = 0, models: int = 3) -> Log:
    """A log of the demo's models, with confidences of few values."""
    log = rcjax.sample_log(n, seed=seed)
    log = log.select(log.models[:models])
    with np.errstate(divide="ignore"):
        logprob = np.log(stated(np.exp(np.asarray(log.logprob, float)), kind, seed))
    rows, columns = np.nonzero(np.asarray(log.answered))
    table = pl.DataFrame(
        {
            "query": [str(log.queries[row]) for row in rows],
            "model": [log.models[column] for column in columns],
            "logprob": logprob[rows, columns],
            "correct": np.asarray(log.correct)[rows, columns].astype(int),
            "cost": np.asarray(log.query_cost)[rows, columns],
        }
    )
    return rcjax.read_log(table, task=log.task)
