"""The limit on the seconds of policies, checked on the queries of a log."""

from __future__ import annotations

import dataclasses

import numpy as np

from rcjax._base.figures import percent
from rcjax._core.batching import map_in_chunks
from rcjax.logs.errors import LogError, OddLogWarning, warn_caller
from rcjax.logs.log import Log
from rcjax.model.calibrated_models import FittedModel
from rcjax.policy.spec import SecondsLimit
from rcjax.solving.frontier.frontier import Frontier, InfeasibleError
from rcjax.solving.frontier.points import Policies
from rcjax.tuning.cross_validation import draw_enough
from rcjax.tuning.replaying.walk import require_complete, waiting_times_on_log

_TAIL_SHARE = 0.05  # share of the queries that may exceed a limit on the 95th percentile
_POLICIES_AT_ONCE = 64  # policies that are replayed at a time, to limit the memory
_MAX_UNTIMED = 0.05  # share of a model's answers without seconds, above which a limit on seconds is doubtful


@dataclasses.dataclass(frozen=True)
class SecondsFilter:
    """A limit on the seconds of policies, checked on the queries of a log."""

    limit: SecondsLimit
    log: Log

    @classmethod
    def of(cls, limit: SecondsLimit, log: Log) -> SecondsFilter:
        """Take at most 5,000 complete queries of a log. Raises LogError if the log lacks the seconds of a model.

        Warns by `OddLogWarning` if over 5 % of the answers of a model have no seconds.

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
        lacking = np.isnan(log.seconds)[log.complete].mean(0)
        if lacking.max() > _MAX_UNTIMED:
            j = int(lacking.argmax())
            effect = "the limit on the seconds judges it by the others, which may be its fast ones"
            problem = f"{percent(float(lacking[j]))} of the answers of {log.models[j]} have no seconds: {effect}"
            warn_caller(f"{log.source}: {problem}: log the seconds of all answers", OddLogWarning)
        return cls(limit, log.take(draw_enough(np.flatnonzero(log.complete))))

    def admits(self, policies: Policies, model: FittedModel) -> np.ndarray:
        """Return which policies keep to the limit with one standard error to spare: (C,) bool."""
        figure, se = self.measure(policies, model)
        return figure + se <= (_TAIL_SHARE if self.limit.tail else self.limit.seconds) * (1 + 1e-9)

    def measure(self, policies: Policies, model: FittedModel) -> tuple[np.ndarray, np.ndarray]:
        """Return (share of the queries beyond the limit, or mean seconds; its standard error), (C,) each.

        Only queries with known seconds count; the first figure of a policy without any is infinite.
        """
        log = self.log.select(model.models)

        def measure_some(some: Policies) -> tuple[np.ndarray, np.ndarray]:
            waits = waiting_times_on_log(model.calibrators, some, log)
            known = ~np.isnan(waits)
            n = np.maximum(known.sum(1), 1)
            values = np.where(known, waits > self.limit.seconds if self.limit.tail else waits, 0.0)
            mean = values.sum(1) / n
            spread = np.where(known, (values - mean[:, None]) ** 2, 0.0).sum(1) / n
            return np.where(known.any(1), mean, np.inf), np.sqrt(spread / n)

        return map_in_chunks(measure_some, policies.on_host(), _POLICIES_AT_ONCE)

    def require_any(self, model: FittedModel) -> None:
        """Raise InfeasibleError if no policy over the models keeps to the limit.

        Only single models are tried, as no policy that asks several models is faster than all of them.
        """
        k = len(model.models)
        singles = Policies.from_cascades(np.zeros((k, k)), np.eye(k, dtype=bool))
        if not self.admits(singles, model).any():
            figure, _ = self.measure(singles, model)
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
