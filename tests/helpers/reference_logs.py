"""Logs without labels: what three models answered, of whom the largest is trusted."""

from pathlib import Path

import numpy as np

import rcjax
from helpers.gateway_service import PRICES

NAMES = {"llama3.2-1b": "small", "llama3.1-8b": "middle", "llama3.1-70b": "large"}
COSTS = {name: (100 * read + written) / 1e6 for name, (read, written) in PRICES.items()}  # of 100 tokens and one


def letters(n: int, seed: int, worse: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """((n, 3) log-probabilities, (n, 3) letters): A is right. `worse`: small ones are as sure, and err more often."""
    log = rcjax.sample_log(n, seed).select(NAMES)
    rng = np.random.default_rng((seed, 48))
    correct = np.array(log.correct)
    if worse:
        correct[:, :2] &= rng.random((n, 2)) > 0.6
    return np.asarray(log.logprob), np.where(correct, "A", rng.choice([*"BC"], correct.shape))


def write_answers(path: Path, n: int, seed: int, labels: int = 0, worse: bool = False) -> Path:
    """A CSV of answers, with labels in the first queries."""
    logprob, said = letters(n, seed, worse)
    lines = ["query,model,logprob,cost,answer" + ",correct" * bool(labels)]
    for i in range(n):
        for j, name in enumerate(NAMES.values()):
            label = f",{int(said[i, j] == 'A')}" if i < labels else "," * bool(labels)
            lines.append(f"s{seed}-{i},{name},{float(logprob[i, j])},{COSTS[name]},{said[i, j]}{label}")
    path.write_text("\n".join(lines) + "\n")
    return path
