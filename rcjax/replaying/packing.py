"""Policies and the answers of a log, as the arrays that are replayed, and the calibrated confidences of these."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import fill_up
from rcjax.frontier.policies import ABSTAIN, Agreements, Policies
from rcjax.frontier.rule_arrays import policies_of
from rcjax.logs.errors import LogError
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.calibration import Calibrator, Transform
from rcjax.model.label_outcomes import corrected_log
from rcjax.model.stated import StatedValues, stated_of_pairs
from rcjax.policy.policy import Policy


def require_answers(policies: Policies, log: Log) -> None:
    """Refuse a log without answers for policies that compare them: replayed by confidence, they would be others."""
    if policies.agreements is not None and np.asarray(policies.agreements.compares).any() and log.answer is None:
        advice = "add a column answer, or give a table of answers (answers=, on the command line --answers FILE)"
        raise LogError(f"{log.source}: the policy compares models' answers, and the log has none: {advice}")


class Packed(NamedTuple):
    """L policies for k models as arrays, with how raw confidences are calibrated."""

    transforms: tuple[Transform, ...]
    calibrators: tuple[Any, ...]  # (k, 2) coefficients, (k,) smallest, largest, and the values stated, or None
    policies: Policies  # (L,)

    @property
    def asked(self) -> np.ndarray:
        """(k,) bool: the models that some query could reach, under some λ."""
        return self.policies.members.any(axis=0)


def pack_policies(fitted: Calibrator, policies: Policies, dtype: Any) -> Packed:
    """Policies (L,) over k models, with the calibrators (k,) of these."""
    fitted, policies = (jax.tree.map(np.asarray, tree) for tree in (fitted, policies))
    columns = fitted.coefficients, fitted.smallest, fitted.largest, fitted.stated
    calibrators = jax.tree.map(lambda column: np.asarray(column, dtype), columns)
    return Packed((fitted.transform,) * len(fitted.smallest), calibrators, _walked(policies, dtype))


def pack_policy(policy: Policy, dtype: Any) -> Packed:
    """One policy, L = 1."""
    if not policy.calibrations:
        raise ValueError("the policy is not calibrated: tune one on a log with labels")
    calibrations = [policy.calibrations[name] for name in policy.models]
    line = np.asarray([(one.intercept, one.slope) for one in calibrations], dtype)
    low, high = (np.asarray([getattr(one, end) for one in calibrations], dtype) for end in ("smallest", "largest"))
    stated = stated_of_pairs([one.stated or () for one in calibrations], dtype, [one.unread for one in calibrations])
    transforms: tuple[Any, ...] = tuple(one.transform for one in calibrations)
    return Packed(transforms, (line, low, high, stated), _walked(policies_of(policy.models, [policy]), dtype))


def _walked(policies: Policies, dtype: Any) -> Policies:
    """The same as they are walked: of the models, those count that some query can reach."""
    first, actions = (np.asarray(table, np.int32) for table in (policies.first, policies.actions))
    bounds = np.asarray(policies.bounds, dtype)
    members = _reached(first, bounds, actions, policies.agreements)
    return Policies(first, bounds, actions, members, agreements=policies.agreements)


def _reached(
    first: np.ndarray,
    bounds: np.ndarray,
    actions: np.ndarray,
    agreements: Agreements | None = None,
) -> np.ndarray:
    """(L, k) bool: the models that some query could reach."""
    lambdas, k, _ = bounds.shape
    reached = np.zeros((lambdas, k), bool)
    reached[np.arange(lambdas), first] = True
    live = np.diff(bounds, axis=-1, prepend=-1.0) > 0  # padding repeats an end, and no confidence falls there
    for j in range(k):
        rows, intervals = np.nonzero(live[:, j] & reached[:, j, None] & (actions[:, j] != ABSTAIN))
        reached[rows, actions[rows, j, intervals]] = True
        if agreements is not None:
            rows = np.flatnonzero(reached[:, j] & agreements.compares[:, j])
            reached[rows, agreements.differ[rows, j]] = True
    return reached


class Columns(NamedTuple):
    """A log's columns (k, n) of the models of a policy, filled up to the size class."""

    logprob: Any
    correct: Any
    query_cost: Any
    seconds: Any  # None where the log has none
    codes: Any  # of answers; None where none are compared
    counts: Any  # (n,) bool: the queries that count

    def of_models(self, places: list[int]) -> Columns:
        """The same for the models at some places."""
        columns = (column if column is None else column[places] for column in self[:-1])
        return Columns._make((*columns, self.counts))


def columns_of(log: Log, models: tuple[str, ...], policies: Sequence[Policies], asked: np.ndarray) -> Columns:
    """The columns that some policies need, of the queries that all models asked have answered.

    Args:
        log: the log.
        models: of the policies, k.
        policies: those that are to be walked.
        asked: (k,) bool, the models that some query can reach.

    Raises LogError for a model that the log lacks, where no query has the answers of all those asked, and where the
    policies compare answers, and the log has none.
    """
    for policy in policies:
        require_answers(policy, log)
    names = [name for name, used in zip(models, asked, strict=True) if used]
    part = corrected_log(log.select(names))
    rows = part.complete
    if not rows.any():
        raise LogError(f"{log.source}: no query was answered by all of {', '.join(names)}: nothing to replay")

    def column(values: Any, otherwise: float = 0) -> np.ndarray:
        filled = np.full((len(models), int(rows.sum())), otherwise, np.asarray(values).dtype)
        filled[asked] = np.asarray(values)[rows].T
        return fill_up(filled, axis=1)[0]

    seconds = None if part.seconds is None else column(part.seconds)
    compared = part.answer is not None and any(policy.agreements is not None for policy in policies)
    codes = column(part.answer, NO_ANSWER) if compared else None
    counts = fill_up(np.ones(int(rows.sum()), bool))
    return Columns(column(part.logprob), column(part.correct), column(part.query_cost), seconds, codes, *counts)


def calibrated(transforms: tuple[Transform, ...], calibrators: tuple[Any, ...], logprob: jax.Array) -> jax.Array:
    """(k, n) calibrated confidences; models may differ in their transform."""
    phi = jnp.zeros_like(logprob)
    line, low, high, stated = calibrators
    for transform in sorted(set(transforms)):
        chosen = np.asarray([other == transform for other in transforms])[:, None]
        calibrate = jax.vmap(partial(_calibrate, transform))
        phi = jnp.where(chosen, calibrate(line, low, high, stated, logprob), phi)
    return phi


def _calibrate(
    transform: Transform,
    coefficients: jax.Array,
    smallest: jax.Array,
    largest: jax.Array,
    stated: StatedValues | None,
    logprob: jax.Array,
) -> jax.Array:
    unknown: Any = jnp.nan  # the standard errors and the status of the fit, which play no part here
    return Calibrator(coefficients, smallest, largest, unknown, unknown, unknown, transform, stated)(logprob)
