"""Logs whose answers have scores, on the scale that a test likes."""

from pathlib import Path

import numpy as np
import polars as pl

MODELS = {"small": (0.3, 1e-5), "large": (1.5, 1e-3)}  # skill, and money of an answer


def scored_frame(n: int, seed: int, most: float = 1.0, worse: bool = False) -> pl.DataFrame:
    """Answers of two models with scores in hundredths of the full one; `worse`: as sure, and of lower scores."""
    rng, frames = np.random.default_rng((seed, 48)), []
    hard = rng.normal(size=n)
    for name, (skill, cost) in MODELS.items():
        latent = skill - hard + 0.7 * rng.normal(size=n)
        confidence = np.clip(1 / (1 + np.exp(-latent - 0.8 * rng.normal(size=n))), 0.01, 0.99)
        mean = 1 / (1 + np.exp(-latent))
        score = rng.beta(3 * mean + 0.05, 3 * (1 - mean) + 0.05) * (0.5 if worse else 1.0)
        columns = {"query": [f"s{seed}-{i}" for i in range(n)], "model": name, "confidence": confidence}
        costs = cost * rng.uniform(0.8, 1.2, n)
        frames.append(pl.DataFrame(columns | {"cost": costs, "correct": np.round(score, 2) * most}))
    return pl.concat(frames)


def write_scores(path: Path, n: int, seed: int, most: float = 1.0, worse: bool = False) -> Path:
    """The same in a CSV."""
    scored_frame(n, seed, most, worse).write_csv(path)
    return path
