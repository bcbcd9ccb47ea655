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

from rcjax._base.extras import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
