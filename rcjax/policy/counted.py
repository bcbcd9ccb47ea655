"""What is counted of a policy's answers: errors, differences from a reference, or score that is lost, as words.

All code counts errors; what was read says what an error is, and sentences are made with its noun. Only the standard
library.
"""

from __future__ import annotations

from dataclasses import dataclass


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
