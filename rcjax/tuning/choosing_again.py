"""What the labels of a draw of the log's queries choose: the best within budgets, or at prices.

Of the default search, done over on the draw: single models and pairs, and policies that compare answers beside them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax.frontier.policies import Policies
from rcjax.model.calibration import Calibrator
from rcjax.tuning.agreement_candidates import as_policies, judge_answers, tune_by_agreement, without_barred_models
from rcjax.tuning.cross_validation import all_of, within
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_candidates import as_cascades, judge_log, tune_by_labels, within_budgets, without_barred

__all__ = ["best_at_prices", "best_within"]


Choice = tuple[Policies, Policies | None, Any]


def best_within(
    calibrators: Calibrator, rows: tuple[Any, ...], lam: np.ndarray, budgets: Any, how: tuple[Judging, Any]
) -> Choice:
    """(pairs (G,), policies that compare answers, where these err less) that are the best within budgets (G,).

    Args:
        calibrators: of the draw.
        rows: its log-probabilities, correctness and presence, the money of its answers, and their codes or None.
        lam: (G,) prices, which refusals are the best for.
        budgets: (G,) money per query.
        how: how policies are judged, and which models never stand in one cascade.
    """
    (*log, charge, codes), (judging, barred) = rows, how
    prices = jnp.asarray(lam, np.asarray(charge).dtype)
    trial = jax.tree.map(np.asarray, judge_log(calibrators, *log, charge, prices, judging))
    whole = all_of(without_barred(trial, barred))
    best = within_budgets(whole, budgets)
    k = log[0].shape[1]
    pairs = as_cascades(whole, best, k, np)
    if codes is None:
        return pairs, None, False
    answers = without_barred_models(judge_answers(calibrators, *log, charge, codes, judging), barred)
    others = within(answers, budgets)
    policies = as_policies(answers, others, k, judging.refusal is not None)
    return pairs, policies, answers.error[others] < whole.error[best]


def best_at_prices(
    calibrators: Calibrator, rows: tuple[Any, ...], lam: np.ndarray, _: Any, how: tuple[Judging, Any]
) -> Choice:
    """The same at prices; policies that compare answers stand in any case where a point had one.

    Args:
        calibrators, rows, how: as of `best_within`.
        lam: (G,) prices.
        _: no budgets.
    """
    *log, charge, codes = rows
    pairs = tune_by_labels(calibrators, *log, charge, lam, *how)[-1]
    if codes is None:
        return pairs, None, False
    return pairs, tune_by_agreement(calibrators, (*log, codes), charge, lam, *how), True
