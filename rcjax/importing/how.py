"""How evaluations are read, where their files leave a choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class How:
    """How evaluations are read, where their files leave a choice."""

    format: str | None = None
    """The name of one of `formats.FORMATS`; None: by the content of each file."""
    scorer: str | None = None
    """Whose scores count, where there are several: a scorer, a filter or a metric."""
    right_from: float | None = None
    """From which score on an answer is right; None: scores stay scores."""
    signal: str | None = None
    """`own`, `choice`, `mean` or `votes`; None: for each model the first that most of its answers allow."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """New names of models, by the old ones."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names of a table's columns, by ours."""
    tokens: tuple[float, float] | None = None
    """(input, output) tokens of a call, where the files count none; None: estimated by characters."""
    answers: bool = True
    """Whether the log is to say what was answered."""
    split: str = "test"
    """Whose instances of HELM count."""
    strict: bool = False
    """Whether a file or sample that cannot be read is an error; else it is left out, where others can."""
    prompts: bool = False
    """Whether the log is to say what was asked, and all of what was answered, for a person to label."""
    score_max: float = 1.0
    """The full score, where scores stay scores."""
