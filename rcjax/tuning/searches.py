"""Tuning by either search: by the labels, the default, or by the fitted model, imported when it is asked for."""

from collections.abc import Sequence
from typing import Any

from rcjax._base.arguments import instance
from rcjax.copulas import Copula
from rcjax.frontier.bands import Bands
from rcjax.frontier.frontier import Frontier
from rcjax.logs.log import Log
from rcjax.policy.spec import Spec
from rcjax.policy.targets import SecondsLimit, Target
from rcjax.tuning.bootstrapping import draw_bands
from rcjax.tuning.select import BY_LABELS, SearchedBy
from rcjax.tuning.tune import Tuned, tune_in_stages


def searched_by(search: Any) -> SearchedBy:
    """The way to search that `Spec.search` or `Frontier.search` names."""
    if search == "selected":
        return BY_LABELS
    from rcjax.tuning.by_model import BY_MODEL

    return BY_MODEL


def tune(
    log: Log,
    *,
    budget: float | None = None,
    max_error: float | None = None,
    error_cost: float | None = None,
    lam: float | None = None,
    cascade: str | Sequence[Any] | None = None,
    copula: str | type[Copula] | Sequence[str | type[Copula]] | None = None,
    confidence: float | None = None,
    held_out: Log | None = None,
    judged: bool = False,
    intervals: bool = True,
    abstain_price: float | None = None,
    second_cost: float = 0.0,
    max_seconds: float | str | None = None,
) -> Tuned:
    """Find the best cascades for a log, at every trade-off of error and cost, and the policy for a target.

    Args:
        log: the log to learn from.
        budget, max_error, error_cost, lam: at most one target, as `Frontier.policy` takes it; without one there is a
            frontier, and no policy.
        cascade: None searches by the labels (`select_frontier`). Else the search is by the model alone
            (`solve_frontier`): "all", "full", "adaptive", the names of one cascade, or a list of cascades; what was
            answered has no part in it.
        copula: how the confidences of two models depend on each other, as `fit` takes it, for a search by the model.
        confidence: guarantee the `max_error` or `budget` with this probability, by a test on queries that the tuning
            does not see (`certify`).
        held_out: the log of these queries; by default half of those of `log`, drawn at random, or where answers lack
            labels, half of those labelled by hand.
        judged: the guarantee may rest on judges' verdicts besides, corrected by labels by hand; by default it rests on
            labels by hand alone.
        intervals: draw intervals around every point by the bootstrap (`bootstrap`).
        abstain_price: let models refuse to answer, where a refusal costs so many errors.
        second_cost: what a second of waiting is worth, in money: costs, and with them a budget, count it. Needs the
            seconds of every answer.
        max_seconds: how long queries may wait, by the target or along the whole frontier: 2.0, on average, or "p95=4",
            which all but 5 % keep to. Of each candidate the mean or that share, on the log and with one standard error
            more, must keep to it.

    Raises InfeasibleError where nothing meets the target: its `tuned` holds all but the policy. ValueError for options
    that do not go together; LogError as `fit` and `select_frontier` do.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> tuned = rcjax.tune(log, max_error=0.3, intervals=False)
    >>> tuned.policy.expected["error"] <= 0.3, [model.model for model in tuned.alone]
    (True, ['llama3.2-1b', 'llama3.1-70b'])
    """
    instance(log, Log, "log")
    target = Target.at_most_one(budget=budget, max_error=max_error, error_cost=error_cost, lam=lam)
    spec = Spec(
        targets=() if target is None else (target,),
        search="selected" if cascade is None else as_cascades(cascade),
        fit={} if copula is None else {"copula": copula},
        abstain_price=abstain_price,
        confidence=confidence,
        judged=judged,
        intervals=intervals,
        second_cost=second_cost,
        max_seconds=None if max_seconds is None else SecondsLimit.of(max_seconds),
    )
    return tune_in_stages(log, held_out, spec.check(held_out is not None), by=searched_by(spec.search))


def as_cascades(cascade: str | Sequence[Any] | None) -> Any:
    """A search by the model as `solve_frontier` takes it, from a word, one cascade or a list of them; None stays None.

    >>> as_cascades(["small", "large"]), as_cascades([["small"], ["small", "large"]]), as_cascades("all")
    ((('small', 'large'),), (('small',), ('small', 'large')), 'all')
    """
    if cascade is None or isinstance(cascade, str):
        return cascade
    if all(isinstance(name, str) for name in cascade):
        return (tuple(cascade),)
    if not all(isinstance(path, list | tuple) for path in cascade):
        raise TypeError("cascade must be a word, a list of names of models, or a list of such lists")
    return tuple(tuple(path) for path in cascade)


def bootstrap(
    frontier: Frontier,
    log: Log,
    *,
    replicates: int = 200,
    level: float = 0.9,
    refit: bool | None = None,
    seed: int = 0,
) -> Bands:
    """Intervals around every point of a frontier, from the log that it was tuned on.

    For error and the bill: where the figures of the policy in service will lie, with a probability of about `level`, by
    expanded percentiles around the figures on the log and the luck of the search in them. Replicates tell that by how
    much worse their policies do on queries that they were not tuned on; for the error of policies of
    `select_frontier`, the mean is taken of this and of what cross-validation has told. Thresholds are on the scale of
    the frontier's model. Where models may refuse to answer, the share of queries without one has intervals as well.

    Args:
        frontier: the frontier, of L points.
        log: the log that it was tuned on.
        replicates: how often the log's queries are drawn again, with replacement; 20 or more.
        level: the probability that each interval is to have, in (0, 1).
        refit: whether each replicate does all that led to the frontier over (`Frontier.search`), with copulas by
            Kendall's τ. With False policies stay as they are and only the queries vary, which is right for policies
            that were fixed before this log was seen, and all but right for a large one; None does so above 5,000
            queries.
        seed: of the draws.

    Raises ValueError for fewer than 20 replicates, a level outside (0, 1), or a frontier of `minimise` if it is to
    be solved again; LogError where no query was answered by all models of the frontier.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> frontier = rcjax.solve_frontier(rcjax.fit(log), lam=[300.0, 3000.0])
    >>> bands = rcjax.tuning.bootstrap(frontier, log, replicates=20)
    >>> bands.error.shape, bool((bands.error[:, 0] < bands.error[:, 1]).all())
    ((2, 2), True)
    """
    again = searched_by(frontier.search).again
    return draw_bands(frontier, log, again, replicates=replicates, level=level, refit=refit, seed=seed)
