"""What people type as options of the command line: files, money, shares, names."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax.cli.parsers import family, fraction, money, names, positive, seconds_limit

if TYPE_CHECKING:
    from rcjax.policy.following import Period
    from rcjax.policy.reference import Reference
    from rcjax.policy.spec import Spec
    from rcjax.policy.targets import Target


#: The panels of `--help`, in the order of what most people look for.
TARGET = "Target: give one"
OUTPUT = "Output"
READ = "What LOG holds"
SEARCH = "Models and search"
PROMISES = "Promises"
WAITING = "Waiting"


LogFile = Annotated[
    Path,
    typer.Argument(
        show_default=False,
        metavar="LOG",
        help="CSV, Parquet or JSON Lines, a row per query and model: query, model, correct, logprob or confidence, "
        "cost or input_tokens and output_tokens; answer, if answers are to be compared.",
    ),
]


Prices = Annotated[
    Path | None,
    typer.Option(
        show_default=False,
        metavar="FILE",
        help="Money per million tokens, by model (TOML or JSON), where LOG has tokens and no cost; or the list of "
        "prices of LiteLLM or OpenRouter.",
    ),
]


Labels = Annotated[
    Path | None,
    typer.Option(
        show_default=False,
        metavar="FILE",
        help="Which answers were right, in place of a column correct: a table of query, model, correct, or of query "
        "and answer (the right one).",
        rich_help_panel=READ,
    ),
]


Answers = Annotated[
    Path | None,
    typer.Option(
        show_default=False,
        metavar="FILE",
        help="What the models answered to the queries of LOG, so that policies may compare answers, in place of a "
        "column answer: a table of query, model and answer (or answer_key, which is compared as it is).",
        rich_help_panel=READ,
    ),
]


ReferenceModel = Annotated[
    str | None,
    typer.Option(
        "--reference",
        show_default=False,
        metavar="MODEL",
        help="A model of LOG whose answers take the place of right ones: counted is how often answers differ.",
        rich_help_panel=READ,
    ),
]


SameBy = Annotated[
    str | None,
    typer.Option(
        "--same",
        show_default=False,
        metavar="GRADER",
        help="By what an answer is that of `--reference`: **exact**, **choice**, **number**, **contains**, "
        "**python:module:function**, or **judge:MODEL** after `rcjax grade`. [default: answer, as policies compare]",
        rich_help_panel=READ,
    ),
]


def full_score(words: str, panel: str | None = None) -> Any:
    """The option of the full score, where scores are what is read or given."""
    return typer.Option(
        "--score-max", parser=positive, show_default=False, metavar="NUMBER", help=words, rich_help_panel=panel
    )


ScoreMax = Annotated[
    Any,
    full_score(
        "The full score, where labels are scores: 10 if they go from 0 to 10. Counted is the score that is lost.", READ
    ),
]


AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help='Print one JSON document; where something is wrong, with "error".',
    ),
]


GraderNames = Annotated[
    list[str] | None,
    typer.Option(
        "--grade",
        show_default=False,
        metavar="[KIND=]GRADER",
        help="**exact**, **choice**, **number**, **contains**, **regex:…**, **python:module:function**, "
        "**command:…** or **judge:MODEL**; again for other kinds of question. [default: what suits the answers]",
    ),
]


Rubric = Annotated[
    Path | None,
    typer.Option(
        "--rubric",
        show_default=False,
        metavar="FILE",
        help="What a judge is asked: {question}, {reference} and {answer}, fenced by {fence}.",
    ),
]


Budget = Annotated[
    Any,
    typer.Option(
        parser=money,
        metavar="MONEY",
        help="Fewest errors for this money per query: 0.00015, 0.15/k (per thousand), 150/M (per million).",
        rich_help_panel=TARGET,
    ),
]


MaxError = Annotated[
    Any,
    typer.Option(
        parser=fraction,
        metavar="SHARE",
        help="Least money at this share of wrong answers: 0.05 or 5%.",
        rich_help_panel=TARGET,
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


ErrorCost = Annotated[
    Any, typer.Option(parser=positive, metavar="MONEY", help="What one wrong answer costs you.", rich_help_panel=TARGET)
]


SecondCost = Annotated[
    Any,
    typer.Option(
        parser=money,
        metavar="MONEY",
        help="What a second of waiting costs you, such as 0.0005: costs and `--budget` then count it. Needs a column "
        "seconds or latency_ms.",
        rich_help_panel=WAITING,
    ),
]


MaxSeconds = Annotated[
    Any,
    typer.Option(
        parser=seconds_limit,
        metavar="SECONDS|p95=SECONDS",
        help="How long queries may wait: 2 on average, or p95=4 for all but 5 % of them. Needs a column "
        "seconds or latency_ms.",
        rich_help_panel=WAITING,
    ),
]


def one_target(
    budget: float | None,
    max_error: float | None,
    error_cost: float | None,
    max_difference: float | None = None,
) -> "Target | None":
    """The target, None where there is none; a usage error for several. A limit on the difference is one on the error.

    Args:
        budget, max_error, error_cost, max_difference: the options, None where they are not given.
    """
    from rcjax.policy.targets import Target  # imported when a command starts to work

    targets = Target.those(budget=budget, max_error=max_error, error_cost=error_cost)
    if max_difference is not None:
        if targets:
            other = targets[0].name.replace("_", "-")
            raise typer.BadParameter(f"give one target, not --{other} and --max-difference")
        return Target("max_error", max_difference)
    if len(targets) > 1:
        options = " and ".join("--" + target.name.replace("_", "-") for target in targets)
        raise typer.BadParameter(f"give one target, not {options}")
    return targets[0] if targets else None


def spread(budget: Any, per_day: float | None, log: Path) -> "tuple[float | None, Period | None]":
    """(the budget per query, the money for a period that it is made of); None for what there is none of.

    Args:
        budget: as `parsers.budget` reads it.
        per_day: queries that come in a day; None where they are to be counted in the log.
        log: perhaps that of a service.
    """
    from rcjax.policy.following import PERIODS, Period
    from rcjax.serving.spending import queries_per_day

    if not isinstance(budget, Period):
        if per_day is not None:
            raise typer.BadParameter("goes with money for a period, such as --budget 500/month", param_hint="--queries")
        return budget, None
    per_day = queries_per_day(log) if per_day is None else per_day
    if per_day is None:
        what = f"is missing: say how many queries come, such as 200000/{budget.every}"
        raise typer.BadParameter(f"{what}: LOG is no log of a service, of a day or more", param_hint="--queries")
    return budget.money / (per_day * PERIODS[budget.every]), budget


def counted(reference: str | None, same: str | None, max_difference: float | None = None) -> "Reference | None":
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


def scoring(score_max: float | None) -> dict[str, float]:
    """How labels are written, as `read_log` takes it, of what is said.

    >>> scoring(10.0), scoring(None)
    ({'score_max': 10.0}, {})
    """
    return {} if score_max is None else {"score_max": score_max}


def as_options(settings: Mapping[str, float]) -> dict[str, str]:
    """The same as options of a command.

    >>> as_options({"score_max": 10.0})
    {'score-max': '10'}
    """
    return {name.replace("_", "-"): f"{value:g}" for name, value in settings.items()}


def checked(spec: "Spec", held_out: bool = False) -> None:
    """A usage error where options do not go together: `Spec.check`, in the words of the command line."""
    from rcjax.policy.spec import SpecError

    try:
        spec.check(held_out)
    except SpecError as problem:
        raise typer.BadParameter(problem.say(_option), param_hint=_option(problem.option)) from None


def _option(name: str) -> str:
    """An option as the command line has it.

    >>> _option("max_error")
    '--max-error'
    """
    return "--" + name.replace("_", "-")


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
        show_default=False,
        metavar="FILE",
        help="Judge by this log, of queries that LOG does not hold. [default: LOG itself, in five folds]",
    ),
]
