"""What people type as options of the command line: files, money, shares, names."""

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax.cli.option_records import option_name, usage
from rcjax.cli.parsers import family, fraction, names, positive
from rcjax.cli.plausible import Really, require_plausible_prices
from rcjax.policy.spec import READ, SEARCH, TARGET, Spec, SpecError

if TYPE_CHECKING:
    from rcjax.policy.following import Period
    from rcjax.policy.reference import Reference


LogFile = Annotated[
    Path,
    typer.Argument(
        metavar="LOG",
        help="CSV, Parquet or JSON Lines, a row per query and model: query, model, correct, logprob or confidence, "
        "cost or input_tokens and output_tokens; answer, if answers are to be compared.",
    ),
]


Prices = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Money per million tokens, by model (TOML or JSON), where LOG has tokens and no cost; or the list of "
        "prices of LiteLLM or OpenRouter.",
    ),
]


Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Which answers were right, in place of a column correct: a table of query, model, correct, or of query "
        "and answer (the right one).",
        rich_help_panel=READ,
    ),
]


Answers = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="What the models answered to the queries of LOG, so that policies may compare answers, in place of a "
        "column answer: a table of query, model and answer (or answer_key).",
        rich_help_panel=READ,
    ),
]


ReferenceModel = Annotated[
    str | None,
    typer.Option(
        "--reference",
        metavar="MODEL",
        help="A model of LOG whose answers take the place of right ones: counted is how often answers differ.",
        rich_help_panel=READ,
    ),
]


SameBy = Annotated[
    str | None,
    typer.Option(
        "--same",
        metavar="GRADER",
        help="By what an answer is that of `--reference`: **exact**, **choice**, **number**, **contains**, "
        "**python:module:function**, or **judge:MODEL** after `rcjax grade`. [default: answer, as policies compare]",
        rich_help_panel=READ,
    ),
]


def full_score(words: str, panel: str | None = None) -> Any:
    """The option of the full score, where scores are what is read or given."""
    return typer.Option("--score-max", parser=positive, metavar="NUMBER", help=words, rich_help_panel=panel)


ScoreMax = Annotated[
    Any,
    full_score(
        "The full score, where labels are scores: 10 if they go from 0 to 10. Counted is the score that is lost.", READ
    ),
]


AsJson = Annotated[
    bool,
    typer.Option("--json", help='Print one JSON document; where something is wrong, with "error".'),
]


GraderNames = Annotated[
    list[str] | None,
    typer.Option(
        "--grade",
        metavar="[KIND=]GRADER",
        help="**exact**, **choice**, **number**, **contains**, **regex:…**, **python:module:function**, "
        "**command:…** or **judge:MODEL**; again for other kinds of question. [default: what suits the answers]",
    ),
]


Rubric = Annotated[
    Path | None,
    typer.Option(
        "--rubric",
        metavar="FILE",
        help="What a judge is asked: {question}, {reference} and {answer}, fenced by {fence}.",
    ),
]


MaxDifference = Annotated[
    Any,
    typer.Option(
        parser=fraction,
        metavar="SHARE",
        help="Least money at this share of answers that differ from those of `--reference`: 0.03 or 3%.",
        rich_help_panel=TARGET,
    ),
]


def with_difference(spec: Spec, max_difference: float | None, **more: Any) -> Spec:
    """How to tune, where a limit on the difference is one on the error; a usage error beside another target.

    Args:
        spec: how else.
        max_difference: the limit, None where it is not given.
        more: other fields that options of their own tell.
    """
    try:
        spec = replace(spec, **more)
    except SpecError as problem:
        raise usage(problem) from None
    if max_difference is None:
        return spec
    if spec.target:
        raise typer.BadParameter(f"give one target, not {option_name(spec.aim)} and --max-difference")
    return replace(spec, max_error=max_difference)


def spread(budget: Any, per_day: float | None, log: Path) -> "tuple[float | None, Period | None]":
    """(the budget per query, the money for a period that it is made of); None for what there is none of.

    Args:
        budget: as `parsers.budget` reads it.
        per_day: queries that come in a day; None where they are to be counted in the log.
        log: perhaps that of a service.
    """
    from rcjax.policy.following import PERIODS, Period
    from rcjax.serving.billing import queries_per_day

    if not isinstance(budget, Period):
        if per_day is not None:
            raise typer.BadParameter("goes with money for a period, such as --budget 500/month", param_hint="--queries")
        return budget, None
    per_day = queries_per_day(log) if per_day is None else per_day
    if per_day is None:
        what = f"is missing: say how many queries come, such as 200000/{budget.every}"
        raise typer.BadParameter(f"{what}: LOG is no log of a service, of a day or more", param_hint="--queries")
    return budget.money / (per_day * PERIODS[budget.every]), budget


class Task(StrEnum):
    """What the models did."""

    generation = "generation"
    choice = "choice"


TaskOption = Annotated[
    Task, typer.Option("--task", help="What the models did: wrote text, or picked a choice.", rich_help_panel=READ)
]


Models = Annotated[
    Any,
    typer.Option(
        "--models",
        parser=names,
        metavar="A,B,…",
        help="Use these models, in this order. [default: by cost]",
        rich_help_panel=SEARCH,
    ),
]


@dataclass(frozen=True)
class Reading:
    """How a log is read, as the command line says it."""

    prices: Prices = None
    labels: Labels = None
    answers: Answers = None
    reference: ReferenceModel = None
    same: SameBy = None
    score_max: ScoreMax = None
    task: TaskOption = Task.generation
    models: Models = None
    really: Really = False

    def inputs(self, log: Path) -> list[tuple[str, Path | None]]:
        """The files that are read, by the option, for `require_distinct`."""
        return [("LOG", log), ("--prices", self.prices), ("--labels", self.labels), ("--answers", self.answers)]

    def options(self, max_difference: float | None = None) -> dict[str, Any]:
        """What `read_log` takes, but for the models; a usage error for what needs a reference."""
        reference = _reference(self.reference, self.same, max_difference)
        given = {"prices": self.prices, "labels": self.labels, "answers": self.answers, "reference": reference}
        return given | {"task": self.task.value} | ({} if self.score_max is None else {"score_max": self.score_max})

    def as_options(self) -> dict[str, Any]:
        """The same as options of a command that is to read the log alike."""
        files = {"prices": self.prices, "labels": self.labels, "answers": self.answers}
        task = None if self.task == Task.generation else self.task
        counted = {"task": task, "reference": self.reference, "same": self.same}
        score = None if self.score_max is None else f"{self.score_max:g}"
        return files | counted | {"score-max": score, "models": self.models and ",".join(self.models)}

    def require_plausible(self) -> None:
        """Refuse prices that are per token (`require_plausible_prices`)."""
        require_plausible_prices(self.prices, self.really)


def _reference(reference: str | None, same: str | None, max_difference: float | None) -> "Reference | None":
    """What is counted in place of errors by labels, None where that is they; a usage error for what needs a reference.

    Args:
        reference, same, max_difference: the options, None where they are not given.
    """
    from rcjax.collecting.graders.attempt import GraderError
    from rcjax.collecting.graders.registry import require_sameness
    from rcjax.policy.reference import BY_ANSWER, Reference

    if reference is None:
        for option, value in (("--same", same), ("--max-difference", max_difference)):
            if value is not None:
                what = "needs --reference, the model whose answers the others are compared with"
                raise typer.BadParameter(what, param_hint=option)
        return None
    if not reference:
        raise typer.BadParameter("is empty: give the name of a model of LOG", param_hint="--reference")
    try:
        require_sameness(same or BY_ANSWER)
    except GraderError as problem:
        raise typer.BadParameter(str(problem), param_hint="--same") from None
    return Reference(reference, same or BY_ANSWER, None if max_difference is None else "differences")


CopulaFamily = Annotated[
    Any,
    typer.Option(
        "--copula",
        parser=family,
        metavar="FAMILY|auto",
        help="How the confidences of two models depend on each other; **auto**: the best family for each pair. "
        "[default: gumbel]",
        rich_help_panel=SEARCH,
    ),
]


Fresh = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Judge by this log, of queries that LOG does not hold. [default: LOG itself, in five folds]",
    ),
]
