"""Read the confidence of a model from its replies: signals for a cascade, and the pure functions behind them.

| signal | needs from the endpoint | for |
|---|---|---|
| `Choice` | log-probabilities of the most likely tokens | multiple choice |
| `Verification` | the same, of a second question: is that answer right? | free text |
| `Votes` | several samples | any endpoint; answers that can be compared |
| `Stated` | text | any endpoint |
| `MeanLogprob` | the log-probability of each token | short free text |
| `ReplyCheck` | text | replies that a program can check: by tests, a schema, a validator |

The confidence is a natural log-probability, as `Policy.step` and a log take it. It need not be calibrated, but a log
and the policy tuned on it must use the same signal. Standard library only.
"""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
