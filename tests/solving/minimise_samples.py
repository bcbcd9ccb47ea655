"""Objectives of the tests of `minimise`, and the models whose cascades they are of, made once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import rcjax
from rcjax.frontier.points import PointStatus
from rcjax.solving import outcomes, smooth_maximum, smooth_quantile

THREE = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
LAM = np.geomspace(30.0, 3000.0, 5)
FINE = {PointStatus.CONVERGED, PointStatus.AT_BOUND}


def additive(outcome, lam):
    return outcome.error + lam * outcome.cost


def worst(outcome, lam):
    return smooth_maximum(outcome.error + lam * outcome.cost, outcome.smoothing)


def values(objective, models, frontier):
    return np.asarray(jax.vmap(objective)(outcomes(models, frontier), frontier.lam))


def statuses(frontier):
    return {int(status) for status in frontier.status}


def capped(outcome, lam):
    return outcome.error + lam * 1e4 * jnp.maximum(outcome.cost - 120e-6, 0.0) ** 2


def squared(outcome, lam):
    return outcome.error + 3e3 * lam * (outcome.taken * outcome.path_cost**2).sum()


def fair(outcome, lam):
    return outcome.error + lam * outcome.cost + ((outcome.answered - 1 / 3) ** 2).sum()


def patient(outcome, lam):
    seconds = smooth_quantile(outcome.along(jnp.array([1.0, 2.0, 5.0])), outcome.taken, 0.9, outcome.smoothing)
    return outcome.error + 1e-5 * lam * seconds


@functools.cache
def thirds():
    """Three logs of 300 queries; made in float64."""
    log = rcjax.sample_log(900, seed=0).select(THREE)
    return [log.take(np.arange(300 * i, 300 * (i + 1))) for i in range(3)]


@functools.cache
def fits():
    """Their models."""
    return [rcjax.fit(part) for part in thirds()]
