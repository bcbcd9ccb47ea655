"""What a policy does by a reference model and by labels, both: how often it differs, and how often it errs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.wording import percent
from rcjax.logs.log import Log
from rcjax.model.label_outcomes import corrected_log
from rcjax.policy.counted import ERRORS, JUDGED_SAME, Counted, counted_by
from rcjax.replaying.curves import error_interval
from rcjax.replaying.replay import replay


class BesideReference(NamedTuple):
    """Shares of the queries of a log, each with its standard error."""

    reference: str
    differs: tuple[float, float]
    """Answers of the policy that are not the reference's."""
    errs: tuple[float, float] | None
    """Wrong answers of the policy; None if no labels tell."""
    reference_errs: tuple[float, float] | None
    """Wrong answers of the reference; None if no labels tell, or the log has been read without it."""
    errs_interval: tuple[float, float] | None = None
    """90 % interval for the true share of wrong answers of the policy; None if no labels tell."""
    counted: Counted = ERRORS
    """What the labels tell."""

    def describe(self) -> str:
        """In words.

        >>> BesideReference("large", (0.03, 0.01), (0.112, 0.019), (0.104, 0.018)).describe()
        'differs from large in 3.0 ± 1.0 % of the queries, errs on 11.2 ± 1.9 % (large itself 10.4 ± 1.8 %)'
        """
        differs = f"differs from {self.reference} in {_percent(self.differs)} of the queries"
        if self.errs is None:
            unknown = f"how often it errs cannot be known without labels: {self.reference} may be wrong itself"
            return f"{differs}; {unknown}, and an answer that differs may be right (rcjax label draws some to label)"
        itself = "" if self.reference_errs is None else f" ({self.reference} itself {_percent(self.reference_errs)})"
        return f"{differs}, {self.counted.does(_percent(self.errs))}{itself}"

    def to_json(self) -> dict[str, Any]:
        """As JSON values: each share with its standard error, and the ends of the interval."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self._asdict().items()
            if name != "counted"
        }


def beside_reference(policy: Any, log: Log) -> BesideReference | None:
    """What a policy does on a log that was read with a reference; None for one that was not.

    Raises `LogError` as `replay` does.
    """
    if log.reference is None:
        return None
    differences, errors = _differences(log), log.errors if log.reference.counts == "differences" else log
    replayed = replay(policy, differences)
    name = log.reference.model
    if errors is None:
        return BesideReference(name, (float(replayed.error), float(replayed.error_se)), None, None)
    by_labels = replay(policy, errors)
    itself = None
    if name in errors.models:
        index = errors.models.index(name)
        wrong = 1 - np.asarray(corrected_log(errors).correct, float)[np.asarray(errors.answered)[:, index], index]
        itself = float(np.clip(wrong.mean(), 0, 1)), float(wrong.std(ddof=1) / math.sqrt(len(wrong)))
    figures = [(float(one.error), float(one.error_se)) for one in (replayed, by_labels)]
    low, high = error_interval(by_labels, errors).tolist()
    return BesideReference(name, figures[0], figures[1], itself, (low, high), counted_by(None, errors.scores))


def tell_beside(policy: Any, log: Log) -> tuple[str, ...]:
    """The same in words, one line; nothing for a log that was read without a reference."""
    beside = beside_reference(policy, log)
    if beside is None:
        return ()
    return (f"on these queries it {beside.describe()}",)


def _differences(log: Log) -> Log:
    """The log with what is the same in place of labels."""
    if log.hand is None or JUDGED_SAME not in log.hand.judges:
        return log
    same = np.asarray(log.hand.judged)[..., log.hand.judges.index(JUDGED_SAME)]
    judged = np.isfinite(same)
    hand = None
    if not judged[np.asarray(log.answered)].all():
        hand = dataclasses.replace(log.hand, labelled=judged, judged=np.zeros((*judged.shape, 0)), judges=())
    return dataclasses.replace(log, correct=same == 1, hand=hand, scores=None)


def _percent(figure: tuple[float, float]) -> str:
    share, se = figure
    return percent(share) if math.isnan(se) else f"{100 * share:.1f} ± {100 * se:.1f} %"
