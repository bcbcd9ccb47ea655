"""Logs of models that state how sure they are, with answers: right ones agree, wrong ones with probability q."""

import math

import numpy as np
import polars as pl

import rcjax

MODELS = ("small", "medium", "large")


def make_log(n, q, seed, answers=True):
    """A log of n queries; confidences have five values and tell little of who is right."""
    rng = np.random.default_rng(seed)
    right = rng.random((n, 3)) < 1 / (1 + np.exp(rng.normal(size=(n, 1)) - np.array([0.6, 1.2, 2.6])))
    told = 0.5 * right + rng.normal(size=(n, 3))
    stated = np.array([0.5, 0.8, 0.9, 0.95, 1.0])[np.searchsorted([-0.8, 0.0, 0.6, 1.4], told)]
    own = np.broadcast_to([f"wrong, says {name}" for name in MODELS], (n, 3))
    answer = np.where(right, "right", np.where(rng.random((n, 3)) < math.sqrt(q), "wrong", own))
    columns = {"correct": right.astype(int), "confidence": stated, "cost": np.tile([1e-5, 3e-5, 3e-4], (n, 1))}
    columns |= {"answer": answer} if answers else {}
    table = {"query": np.repeat(np.arange(n), 3), "model": np.tile(MODELS, n)}
    return rcjax.read_log(pl.DataFrame(table | {name: values.ravel() for name, values in columns.items()}))
