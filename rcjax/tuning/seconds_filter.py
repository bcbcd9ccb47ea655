"""The filter of policies by a limit on their seconds, which the searches apply to their candidates."""

from __future__ import annotations

import dataclasses

import numpy as np

from rcjax._base.figures import percent
from rcjax._core.batching import in_pieces
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibrated_models import Fitted
from rcjax.policy.spec import SecondsLimit
from rcjax.solving.frontier.frontier import Frontier
from rcjax.solving.frontier.hull import InfeasibleError
from rcjax.solving.frontier.points import Policies
from rcjax.tuning.candidates import draw_enough
from rcjax.tuning.replaying.walk import loss_terms_on_log, require_complete

_SHARE = 0.05  # of the queries that may exceed a limit on the 95th percentile
_AT_ONCE = 64  # policies that are replayed at a time


@dataclasses.dataclass(frozen=True)
class SecondsFilter:
    """A limit on the seconds of policies, checked on the queries of a log."""

    limit: SecondsLimit
    log: Log

    @classmethod
    def of(cls, limit: SecondsLimit, log: Log) -> SecondsFilter:
        """Take the complete queries of a log, 5,000 at most. Raises LogError if the log has no seconds of a model.

        >>> import rcjax
        >>> SecondsFilter.of(SecondsLimit.of("p95=4"), rcjax.sample_log(300, seed=0))
        Traceback (most recent call last):
        ...
        rcjax.logs.errors.LogError: ...: no column seconds (or latency_ms): a limit on the seconds needs it
        """
        if log.seconds is None:
            raise LogError(f"{log.source}: no column seconds (or latency_ms): a limit on the seconds needs it")
        require_complete(log, "a limit on the seconds")
        if unknown := [log.models[j] for j in np.flatnonzero(np.isnan(log.seconds).all(0))]:
            advice = "log them, or leave the model out (models=, --models)"
            raise LogError(f"{log.source}: no answer of {unknown[0]} has its seconds, which a limit needs: {advice}")
        return cls(limit, log.take(draw_enough(np.flatnonzero(log.complete))))

    def admits(self, policies: Policies, model: Fitted) -> np.ndarray:
        """Return the policies that keep to the limit with one standard error to spare: (C,) bool."""
        figure, error = self.figures(policies, model)
        return figure + error <= (_SHARE if self.limit.tail else self.limit.seconds) * (1 + 1e-9)

    def figures(self, policies: Policies, model: Fitted) -> tuple[np.ndarray, np.ndarray]:
        """Return (share of the queries beyond the limit, or mean seconds; its standard error), (C,) each.

        Only queries with known seconds count; without any, the first figure is infinite.
        """
        policies = policies.on_host()
        log = self.log.select(model.models)

        def of_some(some: Policies) -> tuple[np.ndarray, np.ndarray]:
            seconds = np.asarray(log.seconds)
            terms = loss_terms_on_log(model.calibrators, some, log, log.correct, seconds, cost_is_seconds=True)
            waits = np.asarray(terms.cost, float)
            known = ~np.isnan(waits)
            n = np.maximum(known.sum(1), 1)
            values = np.where(known, waits > self.limit.seconds if self.limit.tail else waits, 0.0)
            mean = values.sum(1) / n
            spread = np.where(known, (values - mean[:, None]) ** 2, 0.0).sum(1) / n
            return np.where(known.any(1), mean, np.inf), np.sqrt(spread / n)

        return in_pieces(of_some, policies, _AT_ONCE)

    def require_any(self, model: Fitted) -> None:
        """Raise InfeasibleError if no policy over a model's models keeps to the limit.

        Single models suffice for the check, as a policy that asks more models does not take less time. Queries whose
        seconds are not known count for no policy that asks the model.
        """
        k = len(model.models)
        singles = Policies.of_cascades(np.zeros((k, k)), np.eye(k, dtype=bool))
        if not self.admits(singles, model).any():
            figure, _ = self.figures(singles, model)
            fastest = int(figure.argmin())
            takes = f"takes {figure[fastest]:.3g} seconds on average"
            if self.limit.tail:
                takes = f"takes longer for {percent(float(figure[fastest]))} of the queries"
            problem = f"no policy takes {self.limit} with one standard error to spare"
            raise InfeasibleError(f"{problem}; the fastest, {model.models[fastest]} alone, {takes}")

    def within(self, frontier: Frontier) -> Frontier:
        """Return the points of a frontier that keep to the limit. Raises InfeasibleError if there are none."""
        indices = np.flatnonzero(self.admits(frontier.policies, frontier.model))
        if not indices.size:
            raise InfeasibleError(f"no policy of this frontier takes {self.limit} with one standard error to spare")
        return frontier.take(indices)
