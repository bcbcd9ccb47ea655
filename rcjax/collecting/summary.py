"""What a run has brought: of each model accuracy, separation, cost and failures; what is still to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rcjax._base.wording import not_likeliest
from rcjax.collecting.answer_file import read_answer_file, sample_of
from rcjax.collecting.grading import score_remarks
from rcjax.collecting.questions import Question
from rcjax.collecting.run import RunOutcome
from rcjax.logs.summaries import summarise


def collected(path: Path, questions: Sequence[Question], outcome: RunOutcome) -> dict[str, Any]:
    """The end of a run in JSON values.

    Args:
        path: of the log.
        questions: of the run.
        outcome: how it ended.

    Of each model: `answers`, `graded`, `accuracy`, `separation`, `cost` (money per answer), `failed` and `left` (in
    this run), `samples` (answers asked for, to each question), `not_likeliest` (answers that give another choice than
    the one that the model held likeliest); then `answered_by_all` (questions, with all samples), `answers`,
    `ungraded`, `without_reference` (of these, to questions without a right answer), `graded_by` (answers by grader),
    `silent` (models without any answer), `stopped` (why a model is not asked any more), `notes` (remarks, in words),
    and `out`. Where some answers have scores, `scored` says so, and accuracy is the mean score.
    """
    rows = [*read_answer_file(path).answered.values()]
    figures = _figures(rows)
    counts = {name: sum(row["model"] == name for row in rows) for name in outcome.tallies}
    answered = {(row["query"], row["model"], sample_of(row)) for row in rows}
    asked = [(name, number) for name, one in outcome.tallies.items() for number in range(1, one.samples + 1)]
    complete = [q for q in questions if all((q.query, *one) in answered for one in asked)]
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
            "samples": tally.samples,
            "not_likeliest": sum(row["model"] == name and row.get("likeliest") is not None for row in rows),
        }
        for name, tally in outcome.tallies.items()
    ]
    return {
        "models": models,
        "answers": len(rows),
        "ungraded": outcome.ungraded,
        "without_reference": sum(row["correct"] is None and not row.get("reference") for row in rows),
        "graded_by": dict(Counter(row["graded_by"] for row in rows if row["correct"] is not None)),
        "answered_by_all": len(complete),
        "silent": [row["model"] for row in models if not row["answers"]],
        "stopped": {name: tally.stopped for name, tally in outcome.tallies.items() if tally.stopped},
        "budget_spent": outcome.budget_spent,
        "interrupted": outcome.interrupted,
        "grading": outcome.grading,
        "notes": [
            *score_remarks(rows),
            *(
                not_likeliest(one["model"], one["not_likeliest"], one["answers"])
                for one in models
                if one["not_likeliest"]
            ),
        ],
        "out": str(path),
    } | ({"scored": True} if score_remarks(rows) else {})


def _figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """By model, what `summarise` tells of the answers that have a verdict."""
    import polars as pl

    graded = [row for row in rows if row["correct"] is not None]
    if not graded:
        return {}
    frame = pl.DataFrame(
        {
            "query": [row["query"] for row in graded],
            "model": [row["model"] for row in graded],
            "correct": [float(row["correct"]) for row in graded],
            "logprob": [float(row["logprob"]) for row in graded],
            "cost": [float(row["cost"]) for row in graded],
        }
    )
    return {row["model"]: row for row in summarise(frame)["models"]}
