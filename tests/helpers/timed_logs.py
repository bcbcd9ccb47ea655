"""Logs that tell how long answers took, and references for what is made of it."""

import numpy as np
import polars as pl

import rcjax
from rcjax.policy import Defer, Policy

NAMES = {"llama3.2-1b": "small", "llama3.1-8b": "middle", "llama3.1-70b": "large"}
TYPICAL = {"small": 0.3, "middle": 0.6, "large": 2.0}  # seconds


def timed_table(n: int, seed: int = 0, unknown: float = 0.0, slower: float = 1.0) -> pl.DataFrame:
    """A synthetic log of three models whose seconds are log-normal, some of them unknown."""
    rng = np.random.default_rng(seed)
    log = rcjax.sample_log(n, seed).select(NAMES)
    seconds = slower * np.array(list(TYPICAL.values())) * rng.lognormal(0.0, 0.5, (n, 3))
    known = rng.random((n, 3)) >= unknown
    columns = (log.logprob, log.correct, log.query_cost)
    rows = [
        (f"q{seed}-{i}", name, *(float(np.asarray(column)[i, j]) for column in columns), seconds[i, j])
        for i in range(n)
        for j, name in enumerate(NAMES.values())
    ]
    names = ("query", "model", "logprob", "correct", "cost", "seconds")
    frame = pl.DataFrame({name: [row[k] for row in rows] for k, name in enumerate(names)})
    return frame.with_columns(seconds=pl.Series(np.where(known.ravel(), frame["seconds"], np.nan)).fill_nan(None))


def timed_log(n: int, seed: int = 0, unknown: float = 0.0, slower: float = 1.0) -> rcjax.Log:
    """The same, read."""
    return rcjax.read_log(timed_table(n, seed, unknown, slower))


def waited(policy: Policy, log: rcjax.Log) -> list[float]:
    """The seconds of each query by a loop over `Policy.step`."""
    logprob, seconds = np.asarray(log.logprob, float), np.asarray(log.seconds, float)
    codes = None if log.answer is None else np.asarray(log.answer)
    waits = []
    for i in range(log.n_queries):
        model, total, said = policy.first_model, 0.0, {}
        while model is not None:
            j = log.models.index(model)
            total += seconds[i, j]
            told = {}
            if codes is not None:
                told = {"answer": None if codes[i, j] < 0 else str(codes[i, j]), "answers": dict(said)}
                said[model] = told["answer"]
            decision = policy.step(model, logprob=min(logprob[i, j], 0.0), **told)
            model = decision.next_model if isinstance(decision, Defer) else None
        waits.append(total)
    return waits
