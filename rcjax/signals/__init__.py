"""How confident a model is, from what it replied: pure functions, and the signals that a cascade reads replies by.

| signal | what it asks of the endpoint | for |
|---|---|---|
| `Choice` | log-probabilities of the most likely tokens | multiple choice |
| `Verification` | the same, of a second question: is that answer right? | free text |
| `Votes` | several samples | any endpoint; answers that can be compared |
| `Stated` | nothing but text | any endpoint |
| `MeanLogprob` | the log-probability of each token | short free text |
| `Check` | nothing but text | replies that something can check: tests, a schema, a validator |

The confidence is a natural log-probability, as `Policy.step` and a log take it. It need not be calibrated, but a log
and the policy tuned on it must be of one signal. Standard library only.
"""

from rcjax.signals.checks import Check
from rcjax.signals.measures import (
    choice_logprob,
    likeliest_choice,
    mean_logprob,
    normalise_answer,
    stated_confidence,
    verification_logprob,
    vote_share,
)
from rcjax.signals.replies import Reading, Reply, SignalError, Token
from rcjax.signals.signal import Choice, MeanLogprob, Signal, Stated, Verification, Votes

__all__ = [
    "Check",
    "Choice",
    "MeanLogprob",
    "Reading",
    "Reply",
    "Signal",
    "SignalError",
    "Stated",
    "Token",
    "Verification",
    "Votes",
    "choice_logprob",
    "likeliest_choice",
    "mean_logprob",
    "normalise_answer",
    "stated_confidence",
    "verification_logprob",
    "vote_share",
]
