"""An audit by hand: its table is written where there is none, and read where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcjax.policy.reference import SAME_AS

if TYPE_CHECKING:
    from rcjax.collecting.answer_file import AnswerRows
    from rcjax.collecting.questions import Question

__all__ = ["audited", "table_beside"]


def table_beside(answers: Path, reference: str | None = None) -> Path:
    """Where the table of an audit is, unless somebody says otherwise; with a reference, of whether answers are its.

    >>> table_beside(Path("answers.jsonl")).name, table_beside(Path("answers.jsonl"), "large").name
    ('answers.audit.csv', 'answers.audit_same.csv')
    """
    return answers.with_name(f"{answers.stem}.audit{'' if reference is None else '_same'}.csv")


def audited(
    table: Path,
    answers: AnswerRows,
    questions: Mapping[str, Question],
    size: int,
    seed: int,
    reference: str | None = None,
) -> dict[str, Any]:
    """What came of an audit, in JSON values: how many answers are in its table now, or how far grader and person agree.

    Where answers have scores there is none, and `scores` says how many: a person says right or wrong.

    Args:
        table: of the audit.
        answers: that were graded.
        questions: by id, to show what was asked; with a reference, those that it has answered (`questions_against`).
        size: how many answers are drawn.
        seed: of the draw.
        reference: the model whose answers others were held to; None where they were graded right or wrong.
    """
    from rcjax.collecting.audit import RIGHT, SAME, agreement, read_audit, write_audit
    from rcjax.collecting.grading import is_score
    from rcjax.logs.errors import LogError

    rows, about = [*answers.rows.values()], RIGHT
    if reference is not None:
        rows = [row for row in rows if row.get(SAME_AS) == reference and row["query"] in questions]
        if not rows:
            raise LogError(f"nothing says yet which answers are those of {reference}: give --grade judge:MODEL besides")
        about = SAME
    words = {"table": str(table), "column": about.person, "reference": reference}
    scores = sum(is_score(row.get(about.verdict)) for row in rows)
    if scores:
        return words | {"scores": scores}
    if not table.exists():
        return words | {"written": write_audit(table, rows, questions, size, seed, about)}
    both = agreement(rows, read_audit(table, about), about)
    low, high = _interval(both.agree, both.n)
    ways = {
        "too_kind_interval": _interval(both.too_kind, both.right),
        "too_strict_interval": _interval(both.too_strict, both.n - both.right),
    }
    return words | {"agreement": asdict(both) | {"low": low, "high": high} | ways}


def _interval(number: int, of: int) -> tuple[float, float]:
    """90 % for the share that so many of some answers are."""
    from rcjax.replaying.curves import wilson_interval

    low, high = wilson_interval(number / of, of).tolist() if of else (0.0, 1.0)
    return low, high
