"""What a run has brought: of each model accuracy, separation, cost and failures; what is still to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rcjax.collecting.answer_file import read_answer_file
from rcjax.collecting.questions import Question
from rcjax.collecting.run import Outcome
from rcjax.logs.foreign.summaries import summarise

__all__ = ["collected"]


def collected(path: Path, questions: Sequence[Question], outcome: Outcome) -> dict[str, Any]:
    """The end of a run in JSON values.

    Args:
        path: of the log.
        questions: of the run.
        outcome: how it ended.

    Of each model: `answers`, `graded`, `accuracy`, `separation`, `cost` (money per query), `failed` and `left` (in
    this run); then `answered_by_all`, `answers`, `ungraded`, `stopped` (why a model is not asked any more), and `out`.
    """
    import polars as pl

    rows = [*read_answer_file(path).answered.values()]
    graded = [row for row in rows if row["correct"] is not None]
    figures = {}
    if graded:
        columns = {name: [row[name] for row in graded] for name in ("query", "model", "cost")}
        frame = pl.DataFrame(columns).with_columns(
            correct=pl.Series([int(row["correct"]) for row in graded]),
            logprob=pl.Series([float(row["logprob"]) for row in graded], dtype=pl.Float64),
        )
        figures = {row["model"]: row for row in summarise(frame)["models"]}
    counts = {name: sum(row["model"] == name for row in rows) for name in outcome.tallies}
    pairs = {(row["query"], row["model"]) for row in rows}
    complete = [q for q in questions if all((q.query, name) in pairs for name in outcome.tallies)]
    models = [
        {
            "model": name,
            "answers": counts[name],
            "graded": figures.get(name, {}).get("answers", 0),
            "accuracy": figures.get(name, {}).get("accuracy"),
            "separation": figures.get(name, {}).get("separation"),
            "cost": figures.get(name, {}).get("cost"),
            "failed": tally.failed,
            "error": tally.error,
            "left": tally.to_do - tally.done,
        }
        for name, tally in outcome.tallies.items()
    ]
    return {
        "models": models,
        "answers": len(rows),
        "ungraded": outcome.ungraded,
        "answered_by_all": len(complete),
        "stopped": {name: tally.stopped for name, tally in outcome.tallies.items() if tally.stopped},
        "budget_spent": outcome.budget_spent,
        "interrupted": outcome.interrupted,
        "grading": outcome.grading,
        "out": str(path),
    }
