"""Which queries of a log were tuned on as well: by the digest of the log, and by names with equal rows.

A row is a query's log-probabilities, in single precision, in which policies carry theirs. Names alone recur between the
splits of a benchmark, and so do rows where confidences are stated: queries count as shared where three rows or more
agree under their names, and far more than do where names are dealt out at random.
"""

import math
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import hash_names, read_reference
from rcjax.logs.log import Log
from rcjax.policy.policy import AnyPolicy

if TYPE_CHECKING:
    from rcjax.frontier.frontier import Frontier
    from rcjax.model.calibrated import Fitted

_FEWEST = 3  # shared queries that are told of


class OverlapWarning(UserWarning):
    """A log that is to judge a policy holds queries that the policy was tuned on."""


class Overlap(NamedTuple):
    """How much of a log was tuned on, as far as can be told; false where nothing was."""

    queries: int
    """Queries of the log that were tuned on."""
    n: int
    """All queries of the log."""
    whole: bool
    """Whether it is the very log that was tuned on."""

    def __bool__(self) -> bool:
        return self.queries > 0

    def describe(self) -> str:
        """How many queries were tuned on, in words.

        >>> Overlap(7, 1_990, False).describe()
        'at least 7 of its 1,990 queries were tuned on'
        """
        return f"at least {self.queries:,} of its {self.n:,} queries were tuned on"


def overlap(log: Log, tuned: "Log | AnyPolicy | Frontier | Fitted") -> Overlap:
    """How many queries of a log are among those of the log tuned on, or those of it that a policy or model carries.

    On the models that both have, in whichever order. ValueError where what is carried is damaged.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> overlap(log.take(slice(100)), log).queries, overlap(*log.split(0.5, seed=0)).queries
    (100, 0)
    """
    if isinstance(tuned, Log):
        digest, models, old, names = tuned.digest, tuned.models, tuned, hash_names(tuned.queries)
    else:
        part: Any = tuned.rungs[0] if isinstance(tuned, AnyPolicy) else getattr(tuned, "model", tuned)
        reference = part.provenance.get("reference") if isinstance(tuned, AnyPolicy) else part.reference
        digest, models = part.provenance.get("digest"), tuple(part.provenance.get("answers") or ())
        old = None if reference is None else read_reference(reference, log.task)
        names = np.array(() if old is None else old.queries)
    n = log.n_queries
    if models and {*models} <= {*log.models} and log.select(models).digest == digest:
        return Overlap(n, n, whole=True)
    shared = 0 if old is None else _shared(log, hash_names(log.queries), old, names)
    return Overlap(shared, n, whole=old is not None and 0 < shared == n == old.n_queries)


def require_unseen(log: Log, overlap: Overlap) -> None:
    """LogError where queries of a log that is to guarantee something were tuned on."""
    if overlap:
        what = "the model was fitted to this very log" if overlap.whole else overlap.describe()
        raise LogError(f"{log.source}: {what}: certify on queries that were held out")


def warn_of_overlap(log: Log, overlap: Overlap) -> None:
    """An `OverlapWarning` where queries of a log that is to judge were tuned on."""
    if overlap:
        message = f"{log.source}: {overlap.describe()}, where it looks better than it is: judge by others"
        warnings.warn(message, OverlapWarning, stacklevel=3)


def _shared(log: Log, names: np.ndarray, old: Log, old_names: np.ndarray) -> int:
    """How many queries of a log have a name and a row of the old one."""
    models = [name for name in old.models if name in log.models]
    new_rows, old_rows = _rows(log, models, names), _rows(old, models, old_names)
    common = new_rows.keys() & old_rows.keys()
    equal, often = sum(new_rows[name] == old_rows[name] for name in common), Counter(old_rows.values())
    by_chance = sum(often[new_rows[name]] for name in common) / max(len(old_rows), 1)
    beyond = max(3 * by_chance, by_chance + 5 * math.sqrt(by_chance))  # three times, and five standard deviations
    return equal if equal > _FEWEST - 1 + beyond else 0


def _rows(log: Log, models: list[str], names: np.ndarray) -> dict[int, bytes]:
    """The log-probabilities of some models by the hash of the query's name, where one of them has answered."""
    columns = [log.models.index(name) for name in models]
    answered = np.asarray(log.answered)[:, columns]
    cells = np.where(answered, np.asarray(log.logprob)[:, columns], np.nan).astype("<f4") + np.float32(0)  # −0 is 0
    rows = np.flatnonzero(answered.any(1))
    return {name: cells[row].tobytes() for name, row in zip(names[rows].tolist(), rows, strict=True)}
