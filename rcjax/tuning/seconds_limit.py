"""Policies that keep to a limit on how long queries wait: which candidates do, on the queries of the log itself.

The tail of the seconds does not add up over the models of a cascade, so that no price stands for it: each candidate
answers the queries of the log. The share of them that waits too long, or the mean, must keep to the limit with one
standard error in hand. Among those that do the target decides.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import part
from rcjax._core.compilation import compiled
from rcjax.frontier.choosing import InfeasibleError
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.policies import Policies
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibrated import Fitted
from rcjax.policy.targets import SecondsLimit
from rcjax.replaying.packing import Columns, calibrated, columns_of, pack_policies
from rcjax.replaying.walk import walk

_SHARE = 0.05  # of the queries may wait longer than a limit on the tail

_AT_ONCE = 64  # policies that walk the log at a time

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

        Of the queries whose seconds are known, and infinite where there are none.
        """
        packed = pack_policies(model.calibrators, policies, self.log.logprob.dtype)
        columns = columns_of(self.log, model.models, [packed.policies], np.ones(len(model.models), bool))
        count = len(packed.policies.first)
        filled = packed.policies.take(np.minimum(np.arange(count + -count % _AT_ONCE), count - 1))
        bound = self.limit.seconds if self.limit.tail else None
        figures = _figures(packed.calibrators, filled, columns, bound, transforms=packed.transforms)
        figure, error = (np.asarray(figure)[:count] for figure in figures)
        return figure, error

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
            return self.log.models[0], "has no seconds"
        name = min(rows, key=lambda name: rows[name][self.limit.tail])
        mean, tail = rows[name]
        return name, f"takes {mean:.3g} seconds on average, {tail:.3g} or less for 95 %"

    def within(self, frontier: Frontier) -> Frontier:
        """The points of a frontier that keep to the limit. Raises InfeasibleError where there are none."""
        indices = np.flatnonzero(self.admits(frontier.policies, frontier.model))
        if not indices.size:
            raise InfeasibleError(f"no policy of this frontier takes {self.limit} with one standard error in hand")
        names = ("lam", "error", "cost", "status", "abstention", "policies")
        figures = jax.tree.map(np.asarray, {name: getattr(frontier, name) for name in names})
        return dataclasses.replace(frontier, **jax.device_put(part(figures, indices)), bands=None, seconds=None)


@partial(compiled, static_argnames="transforms")
def _figures(
    calibrators: tuple[Any, ...],
    policies: Policies,
    columns: Columns,
    bound: float | None,
    *,
    transforms: tuple[Any, ...],
) -> tuple[jax.Array, jax.Array]:
    """(the share of the queries that wait longer than a bound, or without one the mean wait; its error), (C,) each."""
    phi = calibrated(transforms, calibrators, columns.logprob)

    def one(policy: Policies) -> tuple[jax.Array, jax.Array]:
        waits = jnp.where(walk(phi, policy, columns.codes).asked, columns.seconds, 0).sum(0)
        known = columns.counts & ~jnp.isnan(waits)
        n = jnp.maximum(known.sum(), 1)
        counted = waits if bound is None else (waits > bound).astype(waits.dtype)
        mean = jnp.where(known, counted, 0).sum() / n
        spread = jnp.where(known, (counted - mean) ** 2, 0).sum() / n
        return jnp.where(known.any(), mean, jnp.inf), jnp.sqrt(spread / n)

    return jax.lax.map(one, policies, batch_size=_AT_ONCE)
