"""Which queries of a log were tuned on as well: by the digest of the log, and by names with equal rows.

A row is a query's log-probabilities, in single precision, in which policies carry theirs. Names recur between splits of
a benchmark, and rows where confidences are stated: three equal ones count, if chance gives far fewer.
"""

import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import hash_names, read_reference
from rcjax.logs.log import Log
from rcjax.policy.policy import AnyPolicy

_FEWEST = 3  # shared queries that are told of


class OverlapWarning(UserWarning):
    """A log that is to judge a policy holds queries that the policy was tuned on."""


class Overlap(NamedTuple):
    """How much of a log was tuned on, as far as can be told; false where nothing was."""

    queries: int  # of the log, that were tuned on
    n: int  # all queries of the log
    whole: bool  # whether it is the very log that was tuned on

    def __bool__(self) -> bool:
        return self.queries > 0

    def describe(self) -> str:
        """How many queries were tuned on, in words."""
        return f"at least {self.queries:,} of its {self.n:,} queries were tuned on"


def overlap(log: Log, tuned: Any) -> Overlap:
    """How many queries of a log are among those tuned on: of another log, or that a policy, frontier or model carries.

    On the models that both have, in whichever order. ValueError where what is carried is damaged.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> overlap(log.take(slice(100)), log).queries, overlap(*log.split(0.5, seed=0)).queries
    (100, 0)
    """
    n, of = log.n_queries, tuned.rungs[0] if isinstance(tuned, AnyPolicy) else getattr(tuned, "model", tuned)
    if isinstance(of, Log):
        digest, models, old, names = of.digest, of.models, of, hash_names(of.queries)
    else:
        digest, models = of.provenance.get("digest"), tuple(of.provenance.get("answers") or ())
        kept = of.provenance.get("reference") if isinstance(tuned, AnyPolicy) else of.reference
        old = None if kept is None else read_reference(kept, log.task)
        names = None if old is None else np.array(old.queries)
    if models and {*models} <= {*log.models} and log.select(models).digest == digest:
        return Overlap(n, n, whole=True)
    if old is None or names is None:
        return Overlap(0, n, whole=False)
    both = [name for name in old.models if name in log.models]
    new_rows, old_rows = _rows(log, both, hash_names(log.queries)), _rows(old, both, names)
    often, common = Counter(old_rows.values()), new_rows.keys() & old_rows.keys()
    by_chance = sum(often[new_rows[name]] for name in common) / max(len(old_rows), 1)
    most = max(3 * by_chance, by_chance + 5 * math.sqrt(by_chance))  # three times, and five standard deviations
    equal = sum(new_rows[name] == old_rows[name] for name in common)
    queries = equal if equal > _FEWEST - 1 + most else 0
    return Overlap(queries, n, whole=0 < queries == n == old.n_queries)


def require_unseen(log: Log, tuned: Any) -> None:
    """LogError where queries of a log that is to guarantee something were tuned on, as `overlap` tells."""
    if shared := overlap(log, tuned):
        what = "the model was fitted to this very log" if shared.whole else shared.describe()
        raise LogError(f"{log.source}: {what}: certify on queries that were held out")


def _rows(log: Log, models: list[str], names: np.ndarray) -> dict[int, bytes]:
    """The log-probabilities of some models by the hash of the query's name, where one of them has answered."""
    columns = [log.models.index(name) for name in models]
    answered = np.asarray(log.answered)[:, columns]
    cells = np.where(answered, np.asarray(log.logprob)[:, columns], np.nan).astype("<f4") + np.float32(0)  # −0 is 0
    return {name: cells[row].tobytes() for row, name in enumerate(names.tolist()) if answered[row].any()}
