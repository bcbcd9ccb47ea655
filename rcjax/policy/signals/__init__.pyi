"""The public names: each is imported when it is first used."""

from rcjax.policy.signals.answers import normalise_answer as normalise_answer
from rcjax.policy.signals.replies import Reading as Reading, Reply as Reply, SignalError as SignalError, Token as Token
from rcjax.policy.signals.reply_checks import ReplyCheck as ReplyCheck
from rcjax.policy.signals.signal import (
    Choice as Choice,
    MeanLogprob as MeanLogprob,
    Signal as Signal,
    Stated as Stated,
    Verification as Verification,
    Votes as Votes,
    choice_logprob as choice_logprob,
    mean_logprob as mean_logprob,
    stated_confidence as stated_confidence,
    verification_logprob as verification_logprob,
    vote_share as vote_share,
)
