"""What a judge is asked, from a file of the user's."""

from __future__ import annotations

from pathlib import Path

__all__ = ["read_rubric"]


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
