"""Files that commands read: logs, what `rcjax tune` wrote, what a judge is asked; what is told of them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rcjax._base.json_checks import load
from rcjax._base.wording import choose_unit, figure
from rcjax.cli.options import full_score
from rcjax.cli.printing import warn
from rcjax.policy.counted import recorded_reference, recorded_scores
from rcjax.policy.ladder import policy_from_json
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.record import recorded_tuning

if TYPE_CHECKING:
    from rcjax.frontier.frontier import Frontier
    from rcjax.logs.log import Log

T = TypeVar("T")
#: What becomes of queries that only some models answered.
OTHERS_USED = "the others are used where they can be"


def read_file(read: Callable[..., Log], path: Path, others: str, **options: Any) -> Log:
    """Read a log; if it is incomplete, a line on standard error says so, and what becomes of the `others`."""
    import rcjax
    from rcjax.collecting.graders import same_by
    from rcjax.logs.errors import MissingPricesError

    if options.get("reference") is not None:
        options["same"] = same_by(options["reference"].same)

    segment = options.pop("segment", None)
    categories = (
        rcjax.logs.LeftOutWarning,
        rcjax.logs.NoConfidenceWarning,
        rcjax.logs.PricesWarning,
    )
    with echoed(*categories, rcjax.logs.UnlabelledWarning):
        warnings.simplefilter("ignore", rcjax.logs.IncompleteLogWarning)
        try:
            log = read(path, **options)
            log = log if segment is None else rcjax.logs.with_segments(log, path, segment)
        except MissingPricesError:
            advice = "give --prices FILE, or add a column cost"
            raise MissingPricesError(f"{path.name}: token counts but no prices: {advice}") from None
    complete = int(log.complete.sum())
    if complete < log.n_queries:
        counts = f"{complete:,} of {log.n_queries:,} queries have an answer of every model"
        warn(f"{path.name}: {counts}; {others}")
    return log


@contextmanager
def echoed(*categories: type[Warning]) -> Iterator[None]:
    """Show warnings of some kinds as lines on standard error, once the work is done."""
    with warnings.catch_warnings(record=True) as caught:
        for category in categories:
            warnings.simplefilter("always", category)
        yield
    for warning in caught:
        if issubclass(warning.category, categories):
            warn(warning.message)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def read_pair(log: Path, test: Path | None, others: str, models: Any, **options: Any) -> tuple[Log, Log | None]:
    """Read a log and, where there is one, a second one of the same models."""
    import rcjax

    first = read_file(rcjax.read_log, log, others, models=models, **options)
    other = {**options, "answers": None}  # they are of the queries of the first
    return first, read_file(rcjax.read_log, test, others, models=first.models, **other) if test else None


PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="What `rcjax tune --out` wrote.")]


def _policy_of(data: Any) -> AnyPolicy:
    policy = policy_from_json(data)
    recorded_tuning(policy)  # every command reads it: here what is wrong with it is told with the file's name
    return policy


def load_tuned(path: Path, read: Callable[[Any], T] = _policy_of) -> T:
    """Load what `rcjax tune --out` wrote; ValueError names the file and the place of what is wrong."""
    if path.suffix.lower() in (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson"):
        raise ValueError(f"{path}: it looks like a log: the policy comes first, then the log")
    return load(path, read)


def policy_or_frontier_of(data: Any) -> AnyPolicy | Frontier:
    """What `rcjax tune` wrote with --out or --frontier, from its JSON form."""
    from rcjax.frontier.files import frontier_from_json

    is_frontier = isinstance(data, dict) and data.get("format") == "rcjax-frontier"
    return frontier_from_json(data) if is_frontier else _policy_of(data)


def at_traffic_of(path: Path, policy: AnyPolicy) -> tuple[AnyPolicy, list[str]]:
    """(a policy, what its money for a period is for each query of a log; what that is, in words).

    The money is spread over as many queries a day as came while a service wrote the log, or else as many as it was
    tuned for. A policy without money for a period is as it was.
    """
    from rcjax.policy.following import PERIODS
    from rcjax.serving.billing import queries_per_day

    if policy.period is None or policy.budget is None:
        return policy, []
    money, days = policy.period.money, PERIODS[policy.period.every]
    counted, tuned_for = queries_per_day(path), money / policy.budget / days
    budget, whose = money / days / (counted or tuned_for), "of this log" if counted else "that it was tuned for"
    queries = f"{figure(counted or tuned_for)} queries a day {whose}"
    followed = f"it follows {policy.period} as {choose_unit([budget]).full(budget)}, at the {queries}"
    return dataclasses.replace(policy, budget=budget), [followed]  # type: ignore[type-var]


def read_for(subject: AnyPolicy | Frontier, path: Path, how: Mapping[str, Any]) -> Log:
    """Read a log for a policy: all models that it was chosen from, or where the log lacks one, its own models.

    Args:
        subject: the policy, or a frontier, at whose prices tokens are priced where nothing else tells any.
        path: of the log.
        how: to read it (`Reading.options`); what is not said is as it was tuned.
    """
    from rcjax.logs.errors import LogError, MissingPricesError
    from rcjax.logs.reading import read_log

    tuning = recorded_tuning(subject) if isinstance(subject, AnyPolicy) else subject.model

    def read(models: tuple[str, ...]) -> Log:
        options = _as_tuned(subject, how) | {"models": models}
        try:
            return read_file(read_log, path, OTHERS_USED, **options)
        except MissingPricesError:
            if not tuning.prices:
                raise
            return read_file(read_log, path, OTHERS_USED, **options | {"prices": tuning.prices})

    try:
        return read(tuning.models)
    except LogError:
        return read(subject.models)


def _as_tuned(subject: AnyPolicy | Frontier, how: Mapping[str, Any]) -> dict[str, Any]:
    """How a log is read for a policy or a frontier: as is said, and else as it was tuned.

    The task is that of the policy; its own are the reference, whose answers take the place of right ones, and the
    scale of scores.
    """
    if isinstance(subject, AnyPolicy):
        provenance, transform, segment = subject.provenance, subject.transform, subject.segment_column
    else:
        provenance, transform, segment = subject.model.provenance, subject.model.calibrators.transform, None
    scores = recorded_scores(provenance)
    scale = {} if scores is None else {"score_max": scores.most}
    said = {name: value for name, value in how.items() if value is not None}
    task = {"task": "choice" if transform == "choice" else "generation"}
    own = {"reference": recorded_reference(provenance), "segment": segment}
    return {**own, **scale, **said, **task}


GradeScale = Annotated[
    Any,
    full_score(
        "The full score that a judge, a function or a program gives: 10 if they go from 0 to 10. [default: a judge "
        "says right or wrong, the scores of others go from 0 to 1]"
    ),
]


def read_rubric(path: Path | None) -> str | None:
    """The text of a rubric; None for what is built in. Raises ValueError where the answer has no place in it."""
    if path is None:
        return None
    try:
        words = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name}: not UTF-8 text: save the file as UTF-8") from None
    if "{answer}" not in words:
        raise ValueError(f"{path.name}: the rubric has no {{answer}}: say where the answer goes")
    return words
