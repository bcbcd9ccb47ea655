"""Policies that keep to a limit on how long queries wait: which candidates do, on the queries of the log itself.

The tail of the seconds does not add up over the models of a cascade, so that no price stands for it: each candidate
answers the queries of the log. The share of them that waits too long, or the mean, must keep to the limit with one
standard error in hand. Among those that do the target decides.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from rcjax.frontier.choosing import InfeasibleError
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.policies import Policies
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted
from rcjax.policy.targets import SecondsLimit
from rcjax.replaying.packing import columns_of, pack_policies
from rcjax.replaying.waiting import paths_of, seconds_columns

_SHARE = 0.05  # of the queries may wait longer than a limit on the tail


_MOST_QUERIES = 5_000  # that candidates are judged on: more tell their seconds no better than they need to be known


@dataclasses.dataclass(frozen=True)
class SecondsFilter:
    """Which policies keep to a limit, by the queries of a log."""

    limit: SecondsLimit
    log: Log

    @classmethod
    def of(cls, limit: SecondsLimit, log: Log) -> SecondsFilter:
        """By the complete queries of a log. LogError where it tells no seconds.

        >>> import rcjax
        >>> SecondsFilter.of(SecondsLimit.of("p95=4"), rcjax.sample_log(200, seed=0))
        Traceback (most recent call last):
        ...
        rcjax.logs.errors.LogError: ...: no column seconds (or latency_ms): a limit on the seconds needs it
        """
        if log.seconds is None:
            raise LogError(f"{log.source}: no column seconds (or latency_ms): a limit on the seconds needs it")
        rows = np.random.default_rng(0).permutation(np.flatnonzero(log.complete))[:_MOST_QUERIES]
        return cls(limit, log.take(np.sort(rows)) if rows.size else log)

    def admits(self, policies: Policies, model: Fitted) -> np.ndarray:
        """(C,) bool: which of the policies over a model's models keep to the limit, with one standard error in hand."""
        figure, error = self.figures(policies, model)
        return figure + error <= (_SHARE if self.limit.tail else self.limit.seconds) * (1 + 1e-9)

    def figures(self, policies: Policies, model: Fitted) -> tuple[np.ndarray, np.ndarray]:
        """(the share of the queries beyond the limit, or the mean; its standard error), (C,) each.

        Of the queries whose seconds are known, and infinite where there are none. Under lots what counts of a query is
        expected.
        """
        packed = pack_policies(model.calibrators, policies.on_host(), self.log.logprob.dtype)
        everyone = np.ones(len(model.models), bool)
        logprob, _, _, codes = columns_of(self.log, model.models, everyone)
        seconds = seconds_columns(self.log, model.models, everyone)
        assert seconds is not None  # as `of` requires them
        figures, errors = [], []
        for weights, waits in paths_of(packed, logprob, seconds, codes):
            unknown = np.isnan(waits).any(1)
            counted = (weights * (waits > self.limit.seconds if self.limit.tail else waits)).sum(1)
            n = np.maximum((~unknown).sum(1), 1)
            mean = np.where(unknown, 0.0, counted).sum(1) / n
            spread = np.where(unknown, 0.0, (counted - mean[:, None]) ** 2).sum(1) / n
            figures.append(np.where(np.logical_and.reduce(unknown, axis=1), np.inf, mean))
            errors.append(np.sqrt(spread / n))
        return np.concatenate(figures), np.concatenate(errors)

    def require_any(self, model: Fitted) -> None:
        """Raise InfeasibleError where no policy over a model's models keeps to the limit.

        None does where no model alone does: who asks others too waits no less.
        """
        k = len(model.models)
        alone = Policies.of_cascades(np.zeros((k, k)), np.eye(k, dtype=bool))
        if not self.admits(alone, model).any():
            name, figures = self._fastest()
            raise InfeasibleError(
                f"no policy takes {self.limit} with one standard error in hand; the fastest, {name} alone, {figures}"
            )

    def _fastest(self) -> tuple[str, str]:
        """(the model with the least figure of the limit's kind, its seconds in words)."""
        seconds = np.asarray(self.log.seconds, float)
        known = {name: column[~np.isnan(column)] for name, column in zip(self.log.models, seconds.T, strict=True)}
        rows = {
            name: (float(own.mean()), float(np.quantile(own, 1 - _SHARE, method="inverted_cdf")))
            for name, own in known.items()
            if own.size
        }
        if not rows:
            return self.log.models[0], "tells no seconds"
        name = min(rows, key=lambda name: rows[name][self.limit.tail])
        mean, tail = rows[name]
        return name, f"takes {mean:.3g} seconds on average, {tail:.3g} or less for 95 %"

    def within(self, frontier: Frontier) -> Frontier:
        """The points of a frontier that keep to the limit. Raises InfeasibleError where there are none."""
        indices = np.flatnonzero(self.admits(frontier.policies, frontier.model))
        if not indices.size:
            raise InfeasibleError(f"no policy of this frontier takes {self.limit} with one standard error in hand")
        names = ("lam", "error", "cost", "status", "abstention")
        figures = {name: getattr(frontier, name) for name in names if getattr(frontier, name) is not None}
        taken = {name: jnp.asarray(np.asarray(column)[indices]) for name, column in figures.items()}
        policies = jax.device_put(frontier.policies.on_host().take(indices))
        return dataclasses.replace(frontier, **taken, policies=policies, bands=None, seconds=None)
