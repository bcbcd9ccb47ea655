"""What people type as options of the command line: files, money, shares, names."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rcjax.cli.option_records import usage
from rcjax.cli.parsers import budget as parse_budget, family, names, positive, queries_a_day
from rcjax.cli.plausible import Really, require_plausible_prices
from rcjax.policy.spec import READ, SEARCH, TARGET, Spec, SpecError

if TYPE_CHECKING:
    from rcjax.policy.counted import Reference


LogFile = Annotated[
    Path,
    typer.Argument(
        metavar="LOG",
        help="CSV, Parquet or JSON Lines, a row per query and model: query, model, correct, logprob or confidence, "
        "cost or input_tokens and output_tokens, answer if there is one.",
    ),
]


Prices = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Where LOG has no cost: money per million tokens, by model (TOML or JSON), or the price list of LiteLLM "
        "or OpenRouter.",
    ),
]


def full_score(words: str, panel: str | None = None) -> Any:
    """The option of the full score, where scores are what is read or given."""
    return typer.Option("--score-max", parser=positive, metavar="NUMBER", help=words, rich_help_panel=panel)


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


BudgetOrPeriod = Annotated[
    Any,
    typer.Option(
        "--budget",
        parser=parse_budget,
        metavar="MONEY",
        help="Fewest errors for this money per query: 0.00015, or 150/M (per million); or for a day, week or month: "
        "500/month.",
        rich_help_panel=TARGET,
    ),
]


Queries = Annotated[
    Any,
    typer.Option(
        "--queries",
        parser=queries_a_day,
        metavar="N/month",
        help="How many queries come, for money for a period. [default: as in LOG, if that is of a service]",
        rich_help_panel=TARGET,
    ),
]


def spread(spec: Spec, budget: Any, per_day: float | None, log: Path) -> Spec:
    """How to tune for a budget, which is per query or for a period; a usage error where that cannot be.

    Args:
        spec: how else.
        budget: as `parsers.budget` reads it.
        per_day: queries that come in a day; None where they are to be counted in the log.
        log: perhaps that of a service.
    """
    from rcjax.policy.following import PERIODS, Period
    from rcjax.serving.billing import queries_per_day

    period = budget if isinstance(budget, Period) else None
    if period is not None:
        per_day = queries_per_day(log) if per_day is None else per_day
        if per_day is None:
            what = f"is missing: say how many queries come, such as 200000/{period.every}"
            raise typer.BadParameter(f"{what}: LOG is no log of a service, of a day or more", param_hint="--queries")
        budget = period.money / (per_day * PERIODS[period.every])
    elif per_day is not None:
        raise typer.BadParameter("goes with money for a period, such as --budget 500/month", param_hint="--queries")
    try:
        return replace(spec, budget=budget, period=period)
    except SpecError as problem:
        raise usage(problem) from None


def as_period(spec: Spec) -> str:
    """Money for a period as the options that `spread` reads; empty where a budget is for each query, or there is none.

    >>> from rcjax.policy.following import Period
    >>> as_period(Spec(budget=1e-4, period=Period(500.0, "month")))
    '--budget 500/month --queries 5000000/month'
    """
    if spec.period is None or spec.budget is None:
        return ""
    money, every = spec.period.money, spec.period.every
    return f"--budget {money:.10g}/{every} --queries {money / spec.budget:.10g}/{every}"


@dataclass(frozen=True)
class Reading:
    """How a log is read, as the command line says it."""

    prices: Prices = None
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Which answers were right, in place of a column correct: a table of query, model, correct, or of "
            "query and answer (the right one).",
            rich_help_panel=READ,
        ),
    ] = None
    answers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What the models answered to the queries of LOG, so that policies may compare answers, in place of a "
            "column answer: a table of query, model and answer (or answer_key).",
            rich_help_panel=READ,
        ),
    ] = None
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="MODEL",
            help="A model of LOG whose answers take the place of right ones: errors are then answers that differ.",
            rich_help_panel=READ,
        ),
    ] = None
    same: Annotated[
        str | None,
        typer.Option(
            "--same",
            metavar="GRADER",
            help="By what an answer is that of `--reference`: **exact**, **choice**, **number**, **contains**, "
            "**python:module:function**, or **judge:MODEL** after `rcjax grade`. [default: answer, as policies "
            "compare]",
            rich_help_panel=READ,
        ),
    ] = None
    score_max: Annotated[
        Any,
        full_score(
            "The full score, where labels are scores: 10 if they go from 0 to 10. Counted is the score that is lost.",
            READ,
        ),
    ] = None
    task: Annotated[
        Literal["generation", "choice"],
        typer.Option("--task", help="What the models did: wrote text, or picked a choice.", rich_help_panel=READ),
    ] = "generation"
    models: Annotated[
        Any,
        typer.Option(
            "--models",
            parser=names,
            metavar="A,B,…",
            help="Use these models, in this order. [default: by cost]",
            rich_help_panel=SEARCH,
        ),
    ] = None
    really: Really = False

    def inputs(self, log: Path) -> list[tuple[str, Path | None]]:
        """The files that are read, by the option, for `require_distinct`."""
        return [("LOG", log), ("--prices", self.prices), ("--labels", self.labels), ("--answers", self.answers)]

    def options(self) -> dict[str, Any]:
        """What `read_log` takes, except the models; a usage error for what needs a reference."""
        reference = _reference(self.reference, self.same)
        given = {"prices": self.prices, "labels": self.labels, "answers": self.answers, "reference": reference}
        return given | {"task": self.task} | ({} if self.score_max is None else {"score_max": self.score_max})

    def as_options(self) -> dict[str, Any]:
        """The same as options of a command that is to read the log alike."""
        files = {"prices": self.prices, "labels": self.labels, "answers": self.answers}
        task = None if self.task == "generation" else self.task
        counted = {"task": task, "reference": self.reference, "same": self.same}
        score = None if self.score_max is None else f"{self.score_max:g}"
        return files | counted | {"score-max": score, "models": self.models and ",".join(self.models)}

    def require_plausible(self) -> None:
        """Refuse prices that are per token (`require_plausible_prices`)."""
        require_plausible_prices(self.prices, self.really)


def _reference(reference: str | None, same: str | None) -> "Reference | None":
    """The reference that `--reference` and `--same` name, if any; a usage error for `--same` alone."""
    from rcjax.collecting.grader import GraderError
    from rcjax.collecting.graders import require_sameness
    from rcjax.policy.counted import BY_ANSWER, Reference

    if reference is None:
        if same is not None:
            what = "needs --reference, the model whose answers the others are compared with"
            raise typer.BadParameter(what, param_hint="--same")
        return None
    if not reference:
        raise typer.BadParameter("is empty: give the name of a model of LOG", param_hint="--reference")
    try:
        require_sameness(same or BY_ANSWER)
    except GraderError as problem:
        raise typer.BadParameter(str(problem), param_hint="--same") from None
    return Reference(reference, same or BY_ANSWER)


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
