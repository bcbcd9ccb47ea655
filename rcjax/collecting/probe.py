"""What a model can do: one small question, with all that signals may ask for, and with less where that fails."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rcjax.collecting.purse import BudgetSpentError
from rcjax.collecting.respondent import Bill, Respondent, Retries, StoppedError
from rcjax.serving.completions import CallError
from rcjax.signals import Choice, Reply, SignalError

_MESSAGES = [{"role": "user", "content": "Which is larger? A: the Sun. B: the Moon. Reply with the letter alone."}]

#: What is asked for besides, from most to least.
_WISHES: tuple[dict[str, Any], ...] = (
    {"logprobs": True, "top_logprobs": 20, "n": 2},
    {"logprobs": True, "top_logprobs": 20},
    {"logprobs": True, "top_logprobs": 5},
    {"n": 2},
    {},
)


_PATIENCE = Retries(attempts=2, waits=2)  # others wait for the answer


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a model gives."""

    model: str
    """Its name."""
    error: str | None = None
    """Why it does not answer; None where it does."""
    logprobs: bool = False
    """The log-probabilities of its tokens."""
    top: int = 0
    """How many of the likeliest tokens, in the place of each."""
    samples: bool = False
    """Several answers to one request."""
    counted: bool = False
    """How many tokens were used."""
    seconds: float = 0.0
    """It took so long."""
    cost: float = 0.0
    """Money for the probe."""
    unusable: str | None = None
    """Why the log-probabilities that it tells cannot be used; None where they can, or it tells none."""
    not_likeliest: int = 0
    """Replies, of one, that give another choice than the likeliest."""

    @property
    def signals(self) -> tuple[str, ...]:
        """The names of the signals that it can be read by, those that tell most first."""
        if self.error is not None:
            return ()
        by_tokens = ("choice", "verification") if self.top > 1 else ()
        votes = ("votes",) if self.samples else ()
        return (*by_tokens, *votes, "stated", *(("mean",) if self.logprobs else ()))


def default_signal(abilities: Abilities, with_choices: bool) -> str:
    """The signal of a model where nobody chose one.

    >>> default_signal(Abilities("small", logprobs=True, top=5), True), default_signal(Abilities("small"), True)
    ('choice', 'stated')
    """
    if abilities.top > 1:
        return "choice" if with_choices else "verification"
    return "stated"


async def probe(respondent: Respondent, options: Mapping[str, Any], bill: Bill) -> Abilities:
    """Ask a model what it can do; whatever its server does is no exception.

    Args:
        respondent: the model.
        options: of its requests.
        bill: that the probe is put on.
    """
    start, problem = time.perf_counter(), ""
    for wish in _WISHES:
        try:
            reply = await respondent.ask(_MESSAGES, {**wish, **options}, bill, patience=_PATIENCE)
        except CallError as error:
            problem = str(error)
            if error.failure.status not in (400, 422):
                break
        except (StoppedError, BudgetSpentError) as error:
            problem = problem or str(error) or "the budget does not cover it"
            break
        else:
            return _abilities(respondent, reply, bill, time.perf_counter() - start)
    return Abilities(respondent.settings.name, error=problem, cost=float(bill.spent))


def _abilities(respondent: Respondent, reply: Reply, bill: Bill, seconds: float) -> Abilities:
    tokens = reply.tokens or ()
    return Abilities(
        respondent.settings.name,
        logprobs=bool(tokens),
        top=max((len(token.top) for token in tokens), default=0),
        samples=len(reply.texts) > 1,
        counted=bill.usage.counted == bill.usage.replies > 0,
        seconds=seconds,
        cost=float(bill.spent),
        unusable=reply.without_tokens,
        not_likeliest=int(_differs(reply)),
    )


def _differs(reply: Reply) -> bool:
    """Whether a reply gives another choice than the likeliest."""
    try:
        return Choice(("A", "B")).read(reply).likeliest is not None
    except SignalError:
        return False
