"""An audit by hand: its table is written where there is none, and read where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rcjax.collecting.answer_file import Answers
    from rcjax.collecting.questions import Question

__all__ = ["audited", "table_beside"]


def table_beside(answers: Path) -> Path:
    """Where the table of an audit is, unless somebody says otherwise.

    >>> table_beside(Path("answers.jsonl")).name
    'answers.audit.csv'
    """
    return answers.with_name(f"{answers.stem}.audit.csv")


def audited(table: Path, answers: Answers, questions: Mapping[str, Question], size: int, seed: int) -> dict[str, Any]:
    """What came of an audit, in JSON values: how many answers are in its table now, or how far grader and person agree.

    Args:
        table: of the audit.
        answers: that were graded.
        questions: by id, to show what was asked.
        size: how many answers are drawn.
        seed: of the draw.
    """
    from rcjax.collecting.audit import agreement, read_audit, write_audit
    from rcjax.replaying.curves import wilson_interval

    rows = answers.rows.values()
    if not table.exists():
        return {"table": str(table), "written": write_audit(table, rows, questions, size, seed)}
    both = agreement(rows, read_audit(table))
    low, high = wilson_interval(both.agree / both.n, both.n).tolist() if both.n else (0.0, 1.0)
    return {"table": str(table), "agreement": asdict(both) | {"low": low, "high": high}}
