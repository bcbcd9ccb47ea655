"""What a log that was imported or collected holds, model by model."""

from __future__ import annotations

from typing import Any

import polars as pl

from rcjax.policy.decisions import NO_CONFIDENCE


def summarise(frame: pl.DataFrame) -> dict[str, Any]:
    """Queries, how many of them all models answered, and of each model its answers, accuracy, separation and cost.

    Separation is the area under the ROC curve of the raw confidence: how often a right answer is more confident than a
    wrong one, where one without a confidence is less sure than all others; None if a model is always or never right.
    Accuracy and separation are of the answers that have a label. Cost is mean money per query; None without money.
    Answers of cost 0 beside others of the same model have lost theirs, and are left out of it (`rcjax.logs.prices`).

    Where `score` stands in place of `correct`, which `scored` then tells, accuracy is the mean score, and of each
    answer that part counts as a right one.

    >>> rows = {"query": ["a", "b"], "model": ["m", "m"], "correct": [0, 1], "logprob": [-1.0, -0.1]}
    >>> summarise(pl.DataFrame(rows))["models"]
    [{'model': 'm', 'answers': 2, 'accuracy': 0.5, 'separation': 1.0, 'cost': None}]
    """
    scored = {} if "correct" in frame.columns else {"scored": True}
    models = [_model(name, rows) for (name,), rows in frame.group_by("model", maintain_order=True)]
    answers = frame.group_by("query").agg(pl.col("model").n_unique())["model"]
    complete = int((answers == len(models)).sum())
    return {"queries": len(answers), "answered_by_all": complete, "models": models} | scored


def _model(name: Any, rows: pl.DataFrame) -> dict[str, Any]:
    costs = _mean_cost(rows["cost"]) if "cost" in rows.columns else None
    rows = rows.rename({"score": "correct"}, strict=False)
    answers, rows = rows.height, rows.filter(rows["correct"].is_not_null())
    right, n = float(rows["correct"].sum()), rows.height
    ranks = float((rows["logprob"].fill_null(NO_CONFIDENCE).rank("average") * rows["correct"]).sum())
    counts = right * (n - right)
    return {
        "model": name,
        "answers": answers,
        "accuracy": right / n if n else None,
        "separation": (ranks - right * (right + 1) / 2) / counts if counts else None,
        "cost": costs,
    }


def _mean_cost(costs: pl.Series) -> float:
    paid = costs.filter(costs > 0)
    return float((paid if len(paid) else costs).mean())  # type: ignore[arg-type]
