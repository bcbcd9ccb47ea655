"""Logs with several samples of a model, for tests."""

import numpy as np
import polars as pl

COST = {"small": 1.0, "medium": 6.0, "large": 30.0}
RIGHT = {"small": 0.6, "medium": 0.75, "large": 0.9}


def sampled_frame(n: int = 150, seed: int = 0, samples: int = 3) -> pl.DataFrame:
    """Models of which the small one answers several times, independently."""
    rng = np.random.default_rng(seed)
    rows = []
    for query in range(n):
        for model, chance in RIGHT.items():
            for sample in range(samples if model == "small" else 1):
                right = rng.random() < chance
                row = {"query": query, "model": model, "sample": sample, "correct": int(right), "cost": COST[model]}
                row["answer"] = "right" if right else f"wrong {rng.integers(4)}"
                row["confidence"] = round(float(1 / (1 + np.exp(-(1.0 * right + rng.normal())))), 2)
                rows.append(row)
    return pl.DataFrame(rows)
