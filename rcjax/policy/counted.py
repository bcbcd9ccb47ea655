"""What a log counts in place of errors, as words: texts on errors become texts on that. Standard library only.

All code and all tables count errors; what was read says what an error is. A list of patterns with the words that take
their place is all that a way of counting adds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Counted:
    """What is counted of a policy's answers, as the words that sentences, tables and figures are made with.

    >>> ERRORS.noun, ERRORS.does("3.0 %"), Counted("score lost", "loses", "a full score lost", "mean score").does("3 %")
    ('error', 'errs on 3.0 %', 'loses 3 %')
    """

    noun: str
    """Of a share, without an article: "3 % error"."""
    verb: str
    """Before a share: "errs on"."""
    one: str
    """What `error_cost` is the price of."""
    success: str
    """What the rest of the answers are, as a share: 1 less what is counted."""
    after: str = ""
    """What follows a share, behind the verb."""

    def does(self, share: str) -> str:
        """The verb with a share, in words."""
        return f"{self.verb} {share}{self.after}"


#: Right and wrong answers.
ERRORS = Counted("error", "errs on", "one error", "share right")


# Not in names of files and options, nor in those of other errors.
_BEFORE = r"(?<![\w./\\-])(?<![Cc]alibration )(?<!standard )(?<!squared )(?<!absolute )"


class Words(NamedTuple):
    """Patterns of what is said of errors, in order, each with the words that take its place."""

    pairs: Sequence[tuple[re.Pattern[str], str]]

    @classmethod
    def of(cls, *pairs: tuple[str, str], options: Mapping[str, str] | None = None) -> Words:
        """Words for words: patterns, and what takes their place: {name} for names, {1} for what a group has matched.

        Args:
            options: the same for options of the command line, which are names and not words.
        """
        names = [(re.compile(rf"{option}(?![\w-])"), other) for option, other in (options or {}).items()]
        return cls([*names, *((re.compile(rf"{_BEFORE}(?:{old})(?![\w/\\]|[.-]\w)"), new) for old, new in pairs)])

    def say(self, text: str, **names: str) -> str:
        """A text on errors, in these words.

        >>> Words.of(("errs on (3 %)", "loses {1} of {what}")).say("it errs on 3 %", what="the score")
        'it loses 3 % of the score'
        """
        for pattern, words in self.pairs:
            text = pattern.sub(lambda match, words=words: _filled(words, match, names), text)
        return text


def _filled(words: str, match: re.Match[str], names: Mapping[str, str]) -> str:
    filled = {**{str(number): group or "" for number, group in enumerate(match.groups(), 1)}, **names}
    return re.sub(r"\{(\w+)\}", lambda field: filled[field[1]], words)
