"""Chains of more than two models, where every confidence is the verdict of a check: try again before you pay more.

A verdict is 0 or 1, so that a model has one threshold: what its check refuses is passed on. Then longer chains earn
what they cost (7 to 47 % fewer failures for the same money on three public sets of programming tasks), while on eight
logs whose confidences have more values they gain nothing. The model's Markov chain cannot judge them: attempts of one
model fail on the same queries. So chains walk the queries of the log itself, each to where its answers' verdicts lead.
"""

from itertools import combinations
from typing import Any

import numpy as np

from rcjax.frontier.policies import ALWAYS_ANSWER
from rcjax.policy.decisions import NO_CONFIDENCE
from rcjax.tuning.candidates import Candidates

#: Rungs of a chain at most.
MOST_RUNGS = 8

_MOST_TRIPLES = 2_500  # of models, as 25 have

_MOST_QUERIES = 5_000  # that chains are chosen on: more tell their errors no better than they need to be known


def are_verdicts(logprob: np.ndarray, present: np.ndarray) -> bool:
    """Whether all confidences are 0, 1 or not known, and there are two of these for a model at least; (n, k) each.

    >>> present = np.ones((2, 2), bool)
    >>> are_verdicts(np.array([[0.0, -np.inf], [0.0, 0.0]]), present), are_verdicts(np.zeros((2, 2)), present)
    (True, False)
    """
    known = np.isin(logprob, np.array([0.0, -np.inf, NO_CONFIDENCE], logprob.dtype)) | ~present
    several = [np.unique(column[rows]).size > 1 for column, rows in zip(logprob.T, present.T, strict=True)]
    return bool(known.all() and any(several))


def chains(confidence: np.ndarray, right: np.ndarray, complete: np.ndarray, charge: np.ndarray) -> Candidates | None:
    """Chains of three models and more, judged on the queries that all models answered; None where there are none.

    From each model on grows a chain, in the order of the models, by the one that gains most right answers for its money
    on the queries that reach it; all of its beginnings count. Beside them stand all pairs with one model more.

    Args:
        confidence: (n, k) calibrated.
        right: (n, k) how likely each answer is right, as the labels tell it.
        complete: (n,) bool: the queries that all models answered.
        charge: (n, k) money of each answer.

    >>> verdict = np.array([[0, 0, 1], [1, 0, 1], [0, 1, 1], [0, 0, 1]]) * 0.8 + 0.1
    >>> tried = chains(verdict, verdict > 0.5, np.ones(4, bool), np.tile([1.0, 1.0, 9.0], (4, 1)))
    >>> tried.chain.round(2).tolist(), tried.error.tolist(), tried.cost.tolist()
    ([[0.5, 0.5, 0.0]], [0.0], [6.25])
    """
    k, rows = confidence.shape[1], np.flatnonzero(complete)[:_MOST_QUERIES]
    if k < 3 or not rows.size:
        return None
    confidence, right, charge = (np.asarray(of, float)[rows] for of in (confidence, right, charge))
    cuts = np.array([_cut(column) for column in confidence.T])
    passes = confidence <= cuts
    found = {chain for first in range(k) for chain in _grown(first, passes, right, charge)}
    if k * (k - 1) * (k - 2) // 6 <= _MOST_TRIPLES:
        found |= {*combinations(range(k), 3)}
    useful = sorted(chain for chain in found if all(0 < cuts[j] < 1 for j in chain[:-1]))
    if not useful:
        return None
    figures = np.array([_walked(chain, passes, right, charge) for chain in useful])
    places = np.full((len(useful), k), np.nan)
    for row, chain in zip(places, useful, strict=True):
        row[list(chain)] = [*cuts[list(chain[:-1])], ALWAYS_ANSWER]
    first, last = (np.array([chain[end] for chain in useful]) for end in (0, -1))
    level = np.zeros(len(useful))
    judged: Any = {"error": 1 - figures[:, 0], "cost": figures[:, 1], "counted": 1 - figures[:, 0], "abstention": level}
    return Candidates(k, first, last, last, level, level, **judged, chain=places)


def _cut(confidence: np.ndarray) -> float:
    """Halfway between the largest confidence and the next: what a check has not passed lies below. 1 if all are one."""
    values = np.unique(confidence)
    return float(values[-2:].mean()) if values.size > 1 else 1.0


def _grown(first: int, passes: np.ndarray, right: np.ndarray, charge: np.ndarray) -> list[tuple[int, ...]]:
    """The chains of three models and more that grow from one model."""
    chain, reaching, grown = [first], np.ones(len(passes), bool), list[tuple[int, ...]]()
    while len(chain) < MOST_RUNGS:
        passed, later = reaching & passes[:, chain[-1]], range(chain[-1] + 1, passes.shape[1])
        if not passed.any() or not later:
            break
        gains = right[passed][:, later].sum(0) - right[passed, chain[-1]].sum()
        worth = gains / np.maximum(charge[passed][:, later].sum(0), np.finfo(float).tiny)
        if worth.max() <= 0:
            break
        chain.append(later[int(worth.argmax())])
        reaching = passed
        grown += [tuple(chain)] if len(chain) > 2 else []
    return grown


def _walked(chain: tuple[int, ...], passes: np.ndarray, right: np.ndarray, charge: np.ndarray) -> tuple[float, float]:
    """(the share of right answers, money per query) of a chain."""
    at, answered, spent = np.ones(len(passes), bool), np.zeros(len(passes)), np.zeros(len(passes))
    for j in chain:
        answered, spent = np.where(at, right[:, j], answered), spent + np.where(at, charge[:, j], 0.0)
        at = at & passes[:, j]
    return float(answered.mean()), float(spent.mean())
