"""What a judge is asked, from a file of the user's, and the full score of graders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rcjax.cli.options import full_score

GradeScale = Annotated[
    Any,
    full_score(
        "The full score that a judge, a function or a program gives: 10 if they go from 0 to 10. [default: a judge "
        "says right or wrong, the scores of others go from 0 to 1]"
    ),
]


def read_rubric(path: Path | None) -> str | None:
    """The text of a rubric; None for what is built in. Raises ValueError where the answer has no place in it."""
    if path is None:
        return None
    try:
        words = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name}: not UTF-8 text: save the file as UTF-8") from None
    if "{answer}" not in words:
        raise ValueError(f"{path.name}: the rubric has no {{answer}}: say where the answer goes")
    return words
