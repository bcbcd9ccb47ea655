"""What a report is made of: the frontier with its intervals, single models beside it, and the checks."""

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rcjax._base.files import write_atomically
from rcjax._core.batching import as_here
from rcjax.diagnostics import Diagnosis, diagnose
from rcjax.logs.log import Log
from rcjax.model.fitting import fit
from rcjax.policy.spec import Spec
from rcjax.policy.targets import Target
from rcjax.replaying.replay import replay
from rcjax.report.findings import Findings, compare
from rcjax.tuning.searches import bootstrap
from rcjax.tuning.select import select_frontier
from rcjax.tuning.tune import count_waiting, describe_models, with_seconds


@dataclasses.dataclass(frozen=True)
class Report(Findings):
    """What `make_report` came to: the findings, and the page that shows them."""

    def to_html(self) -> str:
        """The report as one HTML page that needs nothing else. Raises ImportError without matplotlib or Jinja2."""
        from rcjax.report.page import render

        return render(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file; never leaves a half-written one."""
        write_atomically(path, self.to_html())


def make_report(
    log: Log,
    *,
    test: Log | None = None,
    copula: str = "gumbel",
    baseline: str | None = None,
    replicates: int = 200,
    budget: float | None = None,
    max_error: float | None = None,
    error_cost: float | None = None,
    lam: float | None = None,
    draw: bool = False,
    second_cost: float = 0.0,
) -> Report:
    """Tune on a log as `rcjax tune` does by default, look at how sure that is, and compare with single models.

    Args:
        log: the log to learn from.
        test: fresh queries to judge by; without them, the diagnosis is by five folds.
        copula: as `fit` takes it.
        baseline: the model that is in use today; by default the one that errs least.
        replicates: of the bootstraps, of intervals and tests alike.
        budget, max_error, error_cost, lam: at most one target, as `Frontier.policy` takes it; the page opens at its
            policy.
        draw: draw the figures meanwhile, in another thread, so that the page is there sooner.
        second_cost: what a second of waiting is worth, in money, as `tune` takes it.

    Raises ValueError for a baseline that is not a model of the log or several targets, InfeasibleError for a target
    that no policy meets, LogError as `fit`, `select_frontier` and `diagnose` do.

    >>> import rcjax
    >>> log = rcjax.sample_log(200, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> report = make_report(log, replicates=50)
    >>> print(report.headline())
    Asking llama3.1-70b for everything errs on 21.0 %, at $168 per million queries. ...
    """
    log, test = count_waiting(log, second_cost), None if test is None else test.with_waiting(second_cost)
    if baseline is not None and baseline not in log.models:
        raise ValueError(f"the baseline {baseline!r} is not a model of the log; they are {', '.join(log.models)}")
    aim = Spec(budget=budget, max_error=max_error, error_cost=error_cost, lam=lam).target
    target = Target.of(**aim) if aim else None
    judged = log if test is None else test.select(log.models)
    model = fit(log, copula=copula)
    selection = select_frontier(log, model=model, target="budget" if target is None else target.name)
    if target is not None:
        selection.frontier.policy(**aim)  # refuses what cannot be met

    def checked() -> tuple[Diagnosis, list[dict[str, Any]] | None]:
        frontier = selection.frontier
        diagnosis = diagnose(model, judged, training=log, replicates=replicates, frontier=frontier)
        if not draw:
            return diagnosis, None
        from rcjax.report.drawings import draw_checks

        return diagnosis, draw_checks(diagnosis, model, judged)

    # Side by side, as both spend most of their first run in XLA's compiler.
    with ThreadPoolExecutor(1) as beside:
        checks = beside.submit(as_here(checked))
        bands = bootstrap(selection.frontier, log, replicates=replicates)
        frontier = with_seconds(selection.frontier.with_bands(bands), log)
        replayed = None if test is None else replay(frontier, judged)
        shares = (replayed or replay(frontier, log)).share
        alone = describe_models(log, model)
        comparisons = tuple(compare(frontier, j, 1 - one.accuracy) for j, one in enumerate(alone))
        diagnosis, drawn = checks.result()
    return Report(
        log=log,
        model=model,
        frontier=frontier,
        selection=selection,
        shares=np.asarray(shares, float),
        comparisons=comparisons,
        baseline=baseline or min(comparisons, key=lambda one: one.error).model,
        diagnosis=diagnosis,
        judged=judged,
        seen=replayed,
        target=target,
        drawn=drawn,
    )
