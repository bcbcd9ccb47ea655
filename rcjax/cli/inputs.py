"""Files that commands read: logs, what `rcjax tune` wrote, what a judge is asked; what is told of them."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax._base.json_checks import load
from rcjax.cli.options import full_score
from rcjax.cli.printing import warn
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.policy_files import KINDS, policy_from_json
from rcjax.policy.record import recorded_tuning
from rcjax.policy.reference import recorded_reference
from rcjax.policy.scores import recorded_scores

if TYPE_CHECKING:
    from rcjax.frontier.frontier import Frontier
    from rcjax.logs.log import Log


def read_file(read: Callable[..., Log], path: Path, others: str, **options: Any) -> Log:
    """Read a log; if it is incomplete, a line on standard error says so, and what becomes of the `others`."""
    import rcjax
    from rcjax.collecting.graders.registry import same_by
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


def load_tuned(path: Path) -> AnyPolicy | Frontier:
    """Load what `rcjax tune` wrote, told by its "format"; ValueError names the file and the place of what is wrong."""
    if path.suffix.lower() in (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson"):
        raise ValueError(f"{path}: it looks like a log: the policy comes first, then the log")
    return load(path, _tuned_from_json)


def _tuned_from_json(data: Any) -> AnyPolicy | Frontier:
    from rcjax.frontier.frontier_files import frontier_from_json

    kind = data.get("format") if isinstance(data, dict) else "rcjax-policy"  # whose reader says that it is no object
    if kind == "rcjax-frontier":
        return frontier_from_json(data)
    if kind not in [*KINDS]:
        what = "a policy or a frontier that rcjax tune wrote with --out or --frontier"
        raise ValueError(f"its format is {reprlib.repr(kind)}: give {what}")
    policy = policy_from_json(data)
    recorded_tuning(policy)  # every command reads it: here what is wrong with it is told with the file's name
    return policy


def read_for(subject: AnyPolicy | Frontier, path: Path, how: Mapping[str, Any]) -> Log:
    """Read the log for a replay: the models of the policy or frontier, at its prices where tokens have no others.

    Args:
        subject: the policy or frontier.
        path: of the log.
        how: to read it (`Reading.options`); what is not said is as it was tuned.
    """
    prices = subject.prices if isinstance(subject, AnyPolicy) else subject.model.prices
    return _priced(path, "the others are left out", prices, _as_tuned(subject, how) | {"models": subject.models})


def _priced(path: Path, others: str, prices: Any, options: dict[str, Any]) -> Log:
    """`read_file`, at these prices where the log has tokens and nothing else tells any."""
    from rcjax.logs.errors import MissingPricesError
    from rcjax.logs.reading import read_log

    try:
        return read_file(read_log, path, others, **options)
    except MissingPricesError:
        if not prices:
            raise
        return read_file(read_log, path, others, **options | {"prices": prices})


def is_training_log(subject: AnyPolicy | Frontier, log: Log, path: Path, how: Mapping[str, Any]) -> bool:
    """Whether a file, read as `log` for the models of a policy, is the log that it was tuned on, by its hash."""
    from rcjax.collecting.graders.registry import same_by
    from rcjax.logs.errors import LogError
    from rcjax.logs.reading import read_log

    if not isinstance(subject, AnyPolicy):
        return log.digest == subject.model.provenance.get("digest")
    provenance, tuning = subject.provenance, recorded_tuning(subject.policies[0])
    if "digest" not in provenance:
        return False
    if tuning.models != log.models:  # the hash is that of all models that it was chosen from
        options = _as_tuned(subject, how) | {"models": tuning.models, "task": log.task, "reference": log.reference}
        options |= {"prices": how.get("prices") or tuning.prices, "answers": None}
        del options["segment"]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                options["same"] = None if log.reference is None else same_by(log.reference.same)
                log = read_log(path, **options)
        except LogError:
            return False
    return log.digest == provenance["digest"]


def _as_tuned(subject: Any, how: Mapping[str, Any]) -> dict[str, Any]:
    """How a log is read for a policy or frontier: as is said, and else as it was tuned.

    The task is that of the policy; its own are the reference, whose answers take the place of right ones, and the
    scale of scores.
    """
    policy = isinstance(subject, AnyPolicy)
    provenance = subject.policies[0].provenance if policy else subject.model.provenance
    transform = subject.transform if policy else subject.model.calibrators.transform
    scores = recorded_scores(provenance)
    scale = {} if scores is None else {"score_max": scores.most}
    said = {name: value for name, value in how.items() if value is not None}
    task = {"task": "choice" if transform == "choice" else "generation"}
    segment = subject.segment_column if policy else None
    return {"reference": recorded_reference(provenance), "segment": segment, **scale, **said, **task}


_OTHERS = "the others are used where they can be"


PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="What `rcjax tune --out` wrote.")]


def _load(path: Path) -> AnyPolicy:
    tuned = load_tuned(path)
    if not isinstance(tuned, AnyPolicy):
        kind = type(tuned).__name__.lower()
        raise ValueError(f"{path}: it is a {kind}: give a policy, which rcjax tune writes with --out")
    return tuned


def _read(policy: AnyPolicy, path: Path, how: Mapping[str, Any]) -> Log:
    """The answers of all models that the policy was chosen from, or where the log lacks one, of its own models."""
    from rcjax.logs.errors import LogError

    tuning, options = recorded_tuning(policy), _as_tuned(policy, how)
    try:
        return _priced(path, _OTHERS, tuning.prices, options | {"models": tuning.models})
    except LogError:
        return _priced(path, _OTHERS, tuning.prices, options | {"models": policy.models})


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
