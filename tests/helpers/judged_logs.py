"""Logs few of whose answers have a label by hand, and what a judge of a given kind says of all of them."""

import dataclasses

import jax.numpy as jnp
import numpy as np

import rcjax
from rcjax import Log
from rcjax.logs.log import HandLabels

KINDS = ("fair", "lenient", "strict", "useless", "none")
MODELS = ["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"]


def verdicts(right: np.ndarray, kind: str, rng: np.random.Generator, errors: float = 0.05) -> np.ndarray:
    """(n, k, 1) what a judge says: wrong at random, lenient to the last model, strict to the first, or useless."""
    said = np.where(rng.random(right.shape) < errors, ~right, right)
    if kind == "lenient":
        said[:, -1] |= rng.random(len(right)) < 6 * errors
    elif kind == "strict":
        said[:, 0] &= rng.random(len(right)) > 6 * errors
    elif kind == "useless":
        said = rng.random(right.shape) < 0.5
    elif kind == "none":
        return np.full((*right.shape, 1), np.nan)
    return said[..., None].astype(float)


def partly(log: Log, labelled: np.ndarray, judged: np.ndarray) -> Log:
    """The log, of whose labels only some are left, with verdicts."""
    names = tuple(f"judged_{place}" for place in range(judged.shape[-1]))
    hand = HandLabels(jnp.asarray(labelled), jnp.asarray(judged), names)
    return dataclasses.replace(log, correct=jnp.asarray(labelled & np.asarray(log.correct)), hand_labels=hand)


def judged_log(n: int = 600, labels: int = 100, kind: str = "fair", seed: int = 0, by_answer: bool = False) -> Log:
    """A log from the demo's model: so many labels, of whole queries or of so many answers of each model, at random."""
    whole = rcjax.sample_log(n, seed=seed).select(MODELS)
    rng = np.random.default_rng((seed, 1))
    return partly(whole, some_labelled(whole, labels, rng, by_answer), verdicts(np.asarray(whole.correct), kind, rng))


def some_labelled(log: Log, labels: int, rng: np.random.Generator, by_answer: bool = False) -> np.ndarray:
    """(n, k) bool: so many queries at random, or so many answers of each model."""
    n, k = log.correct.shape
    if by_answer:
        return np.stack([np.isin(np.arange(n), rng.choice(n, labels, replace=False)) for _ in range(k)], axis=1)
    return np.repeat(np.isin(np.arange(n), rng.choice(n, labels, replace=False))[:, None], k, axis=1)
