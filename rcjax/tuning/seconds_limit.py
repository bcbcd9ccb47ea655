"""Policies that keep to a limit on how long queries wait: which candidates do, by the log's own queries.

The tail of the seconds does not add up over the models of a cascade, so that no price stands for it: each candidate
answers the queries of the log, and what counts is how many of them wait too long, or the mean. Among those that keep
to the limit the target decides.

The best of many candidates were lucky in their seconds too. How much, a contest tells: without each fold the pair is
chosen that is best for each λ among those within the limit there, and answers the queries of the fold. By as much as
these wait longer than the queries of the choice (`Losses.luck`), the limit is drawn tighter. What counts are the λ
where the limit binds: elsewhere nothing was chosen for being quick.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax.frontier.choosing import InfeasibleError
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.policies import Policies
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit_near
from rcjax.model.label_outcomes import expected_log
from rcjax.policy.limits import SecondsLimit
from rcjax.policy.policy import AnyPolicy
from rcjax.replaying.packing import columns_of, pack_policies
from rcjax.replaying.replay import walk_log
from rcjax.replaying.waiting import path_seconds, seconds_columns
from rcjax.solving.lambda_grid import lam_range
from rcjax.tuning.choices import Targets
from rcjax.tuning.contest import Contest, Entry, contest
from rcjax.tuning.judging import AS_USUAL
from rcjax.tuning.p_values import binomial_tail, upper_limit
from rcjax.tuning.resampling import deal_folds, require_queries, without
from rcjax.tuning.trials import judge_pairs

_FOLDS = 5


_PRICES = 40  # λ at which the luck of the choice is measured


_MOST_QUERIES = 5_000  # that candidates are judged on: more tell their seconds no better than they need to be known


_ROUNDS = 5  # in which the best reachable figure is found


_POWER = 0.9  # probability with which a policy that is admitted passes the test of a guarantee, by what is known of it


@dataclasses.dataclass(frozen=True)
class Admission:
    """Which policies keep to a limit, by the queries of a log."""

    limit: SecondsLimit
    log: Log
    """The queries that they are judged on."""
    allowed: float
    """What a policy may have: the share of queries beyond the limit, or where that is on the mean, seconds."""
    luck: float
    """How much more of it the policies have on queries that they were not chosen on; at least 0."""

    def admits(self, policies: Policies, model: CascadeModel) -> np.ndarray:
        """(C,) bool: which of the policies over a model's models keep to the limit, the luck of the choice included."""
        return ~_beyond(self.figure(policies, model) + self.luck, self.allowed)

    def figure(self, policies: Policies, model: CascadeModel) -> np.ndarray:
        """(C,) the share of the queries beyond the limit, or the mean; infinite where no seconds are known."""
        return _figures(self.limit, policies, model.calibrators, self.log.select(model.models))

    def require_any(self, model: CascadeModel) -> None:
        """Raise InfeasibleError where no policy over a model's models keeps to the limit.

        None does where no model alone does: who asks others too waits no less.
        """
        if not self.admits(_alone(model), model).any():
            raise self.refuse(model)

    def refuse(self, model: CascadeModel) -> InfeasibleError:
        """That no policy keeps to the limit, with the best figure that one model reaches."""
        name, seconds = self._fastest(model)
        for _ in range(_ROUNDS):  # a limit within reach leaves some to choose, and so has some luck of its own
            if not np.isfinite(seconds):
                break
            limit = dataclasses.replace(self.limit, seconds=seconds)
            luck = _luck(expected_log(self.log), model, limit, self.allowed)
            near = dataclasses.replace(self, limit=limit, luck=min(luck, self.allowed))
            if near.admits(_alone(model), model).any():
                break
            name, seconds = near._fastest(model)
        so_much = f"the fastest, {name} alone, takes {self.limit.say(seconds)}"
        if not np.isfinite(seconds):
            so_much = "so few queries cannot show it of any: log more, or leave out the guarantee"
        sure = ", surely enough to be guaranteed" if self._guaranteed else ""
        return InfeasibleError(f"no policy takes {self.limit}{sure}; {so_much}")

    def _fastest(self, model: CascadeModel) -> tuple[str, float]:
        """The model that alone keeps the lowest limit, and that, rounded up to three digits."""
        walked = _walked(_alone(model), model.calibrators, self.log)
        reached = np.array([self._reached(row) for waits in walked for row in waits])
        return model.models[int(reached.argmin())], _rounded_up(float(reached.min()))

    @property
    def _guaranteed(self) -> bool:
        return self.limit.share is not None and self.allowed < (1 - self.limit.share) * (1 - 1e-9)

    def _reached(self, waits: np.ndarray) -> float:
        """The limit that seconds (n,) would just keep."""
        seconds = np.sort(waits[~np.isnan(waits)])
        if not seconds.size:
            return np.inf
        if self.limit.share is None:
            return float(seconds.mean()) + self.luck
        beyond = int(np.floor((self.allowed - self.luck) * seconds.size * (1 + 1e-9)))
        return float(seconds[-1 - beyond]) if 0 <= beyond < seconds.size else np.inf

    def describe(self, policy: AnyPolicy, log: Log) -> str:
        """What a policy comes to on a log, beside the limit, in words."""
        paths = walk_log(policy, log).waits
        assert paths is not None
        figure = sum(weight * float(_mean(_counted(self.limit, waits[None]))[0]) for weight, waits in paths)
        if self.limit.share is None:
            luck = f", and {self.luck:.3g} more for the luck of the choice" if self.luck > 0 else ""
            return f"{self.limit}: {figure:.3g} on this log{luck}"
        luck = f", and {100 * self.luck:.2f} points more for the luck of the choice" if self.luck > 0 else ""
        return f"{self.limit}: on this log {100 * figure:.1f} % wait longer{luck}"


def admission(
    log: Log,
    model: CascadeModel,
    limit: SecondsLimit,
    *,
    held_out: int | None = None,
    confidence: float | None = None,
) -> Admission:
    """Which policies may be chosen from, for a limit on the seconds.

    Args:
        log: the log that is tuned on.
        model: the model fitted to it.
        limit: the limit.
        held_out: queries that a guarantee is tested on: those admitted are likely to pass. None: none is wanted.
        confidence: that of the guarantee.

    Raises LogError where the log tells no seconds.

    >>> import rcjax
    >>> log = rcjax.sample_log(200, seed=0)
    >>> admission(log, rcjax.fit(log), SecondsLimit.of("p95=4"))
    Traceback (most recent call last):
    ...
    rcjax.logs.errors.LogError: ...: no column seconds (or latency_ms): a limit on the seconds needs it
    """
    if log.seconds is None:
        raise LogError(f"{log.source}: no column seconds (or latency_ms): a limit on the seconds needs it")
    log = log.select(model.models)
    whole = log.take(log.complete) if log.complete.any() else log
    if whole.n_queries > _MOST_QUERIES:
        rows = np.random.default_rng(0).permutation(whole.n_queries)[:_MOST_QUERIES]
        whole = whole.take(np.sort(rows))
    allowed = limit.seconds if limit.share is None else 1 - limit.share
    if confidence is not None and held_out is not None and limit.share is not None:
        allowed = _sure_to_pass(held_out, 1 - limit.share, 1 - confidence)
    require_queries(whole, _FOLDS)
    luck = _luck(expected_log(whole), model, limit, allowed)
    # A policy that never waited too long on the log is not ruled out: where it was but lucky, the test will tell.
    return Admission(limit, whole, allowed, max(0.0, min(luck, allowed)))


def _alone(model: CascadeModel) -> Policies:
    """(k,) each of a model's models on its own."""
    k = len(model.models)
    return Policies.of_cascades(np.zeros((k, k)), np.eye(k, dtype=bool))


def _sure_to_pass(n: int, share: float, level: float) -> float:
    """The share of queries beyond the limit with which a policy is likely to pass the test by n held-out queries.

    Negative where not even a policy that never exceeds it would pass.
    """
    most = -1
    while binomial_tail(most + 1, n, share) <= level:
        most += 1
    if most < 0:
        return -1.0
    return upper_limit(lambda rate: float(binomial_tail(most, n, rate) >= _POWER), 0.5)


def _luck(log: Log, model: CascadeModel, limit: SecondsLimit, allowed: float) -> float:
    """By how much more the best pairs within the limit have on queries left out than on those of their choice.

    Over the λ where the limit binds: where the best pair of all is beyond it. 0 at least, and where it binds nowhere.
    """
    lam = lam_range(np.asarray(log.cost, float), _PRICES)
    pairs = judge_pairs(log, model, lam, AS_USUAL)
    best = pairs.policies.take(pairs.loss(lam).argmin(1))
    lam = lam[_beyond(_figures(limit, best, model.calibrators, log), allowed)]
    if not lam.size or not log.complete.any():
        return 0.0
    fold = deal_folds(np.ones(log.n_queries, bool), _FOLDS, seed=0)

    def within_limit(number: int) -> list[Entry]:
        out = fold == number
        rest = without(log, out)
        fitted = fit_near(model, rest.logprob, rest.correct, rest.answered, rest.cost)
        pairs = judge_pairs(rest, fitted, lam, AS_USUAL)
        figure = _figures(limit, pairs.policies, fitted.calibrators, log, ~out)
        beyond = _beyond(figure, allowed)
        loss = np.tile(figure, (len(lam), 1)) if beyond.all() else np.where(beyond, np.inf, pairs.loss(lam))
        best = loss.argmin(1)
        counted = _counted(limit, np.concatenate([*_walked(pairs.policies.take(best), fitted.calibrators, log)]))
        # Queries whose seconds are not known count as the others that are left out do.
        counted = np.where(np.isnan(counted), _mean(counted[:, out])[:, None], counted)
        outcomes = Outcomes(counted, np.zeros_like(counted), np.zeros_like(counted))
        return [Entry(lambda *_: outcomes, figure[best])]

    losses = contest(log, Contest(("within",), Targets(lam), within_limit, log.cost), fold)
    return max(0.0, losses.luck("within", losses.targets.prices))


def _beyond(figure: np.ndarray, allowed: float) -> np.ndarray:
    return figure > allowed * (1 + 1e-9)


def _figures(
    limit: SecondsLimit, policies: Policies, calibrators: Calibrator, log: Log, rows: Any = slice(None)
) -> np.ndarray:
    """(C,) of policies, on some queries: the share beyond the limit, or the mean; an expectation over lots."""
    parts, owner, weight = policies.on_host().unsplit()
    walked = [_mean(_counted(limit, waits[:, rows])) for waits in _walked(parts, calibrators, log)]
    return np.bincount(owner, weight * np.concatenate(walked), len(policies.first))


def _counted(limit: SecondsLimit, waits: np.ndarray) -> np.ndarray:
    """What counts of seconds: these, or whether they are beyond the limit; NaN where they are not known."""
    return waits if limit.share is None else np.where(np.isnan(waits), np.nan, waits > limit.seconds)


def _mean(counted: np.ndarray) -> np.ndarray:
    """(C,) of figures (C, n), over those that are known; infinite where none is."""
    count = (~np.isnan(counted)).sum(1)
    return np.where(count > 0, np.nansum(counted, 1) / np.maximum(count, 1), np.inf)


def _walked(policies: Policies, calibrators: Calibrator, log: Log) -> Iterator[np.ndarray]:
    """(C, n) seconds of all the queries of a log under some policies after the other."""
    packed = pack_policies(calibrators, policies, log.logprob.dtype)
    everyone = np.ones(len(log.models), bool)
    logprob, _, _, codes = columns_of(log, log.models, everyone)
    seconds = seconds_columns(log, log.models, everyone)
    assert seconds is not None  # as `admission` requires them
    for waits, _ in path_seconds(packed, logprob, seconds, codes):
        yield waits


def within(frontier: Frontier, admitted: Admission) -> Frontier:
    """The points of a frontier that keep to a limit. Raises InfeasibleError where there are none."""
    indices = np.flatnonzero(admitted.admits(frontier.policies.on_host(), frontier.model))
    if not indices.size:
        raise admitted.refuse(frontier.model)
    figures = {name: getattr(frontier, name) for name in ("lam", "error", "cost", "status", "abstention")}
    taken = {
        name: None if column is None else jnp.asarray(np.asarray(column)[indices]) for name, column in figures.items()
    }
    policies = jax.device_put(frontier.policies.on_host().take(indices))
    return dataclasses.replace(frontier, **taken, policies=policies, bands=None, seconds=None)


def with_limit(problem: InfeasibleError, admitted: Admission) -> InfeasibleError:
    """The message that nothing meets a target, which tells of the limit too."""
    error = InfeasibleError(f"{problem} (among the policies that take {admitted.limit})")
    error.tuned = problem.tuned
    return error


def _rounded_up(seconds: float) -> float:
    """To three digits, upwards: a limit that will do."""
    if not 0 < seconds < np.inf:
        return seconds
    unit = 10.0 ** (np.floor(np.log10(seconds)) - 2)
    return float(np.ceil(seconds / unit - 1e-9) * unit)
