"""The public names: each is imported when it is first used."""

from rcjax.signals.checks import Check as Check
from rcjax.signals.measures import (
    choice_logprob as choice_logprob,
    mean_logprob as mean_logprob,
    normalise_answer as normalise_answer,
    stated_confidence as stated_confidence,
    verification_logprob as verification_logprob,
    vote_share as vote_share,
)
from rcjax.signals.replies import Reading as Reading, Reply as Reply, SignalError as SignalError, Token as Token
from rcjax.signals.signal import (
    Choice as Choice,
    MeanLogprob as MeanLogprob,
    Signal as Signal,
    Stated as Stated,
    Verification as Verification,
    Votes as Votes,
)
