"""Logs for posteriors, and how draws lie around the truth."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import rcjax
from rcjax.model.marginals import Marginal


def three(n, seed=0):
    """A log of three models that answered the first n of 200 queries: one shape, whatever n."""
    log = rcjax.sample_log(200, seed=seed)
    return keep(log.select(log.models[:3]), jnp.arange(200)[:, None] < n)


def keep(log, answered):
    answered = log.answered & answered
    return dataclasses.replace(log, answered=answered, logprob=jnp.where(answered, log.logprob, jnp.nan))


@jax.jit
def cdf(marginals, confidence):
    """(D, n) F(φ) under each of D marginals of confidences (n,)."""
    return jax.vmap(Marginal.cdf, (0, None))(marginals, confidence)


def unlike(drawn, truth):
    """Return the distance of the truth from the mean of draws (leading axis), in posterior standard deviations."""
    drawn = np.asarray(drawn)
    return np.abs(drawn.mean(0) - truth) / drawn.std(0)
