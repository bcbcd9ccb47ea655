"""`rcjax import`: one log from evaluations that other programs ran."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from rcjax.cli.common import require_distinct, require_writable
from rcjax.cli.failures import attempt, conclude, reported
from rcjax.cli.options import AsJson, Prices, full_score
from rcjax.cli.parsers import pairs, score, token_counts
from rcjax.cli.plausible import Really, require_plausible_prices
from rcjax.cli.printing import warn


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Logs of Inspect AI (.eval, .json), samples of lm-eval, runs of HELM, results of promptfoo, logs of "
            "LiteLLM, spans of OpenTelemetry, output of OpenAI's batches, tables of your own; or folders of them.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="The log: CSV, TSV, Parquet or JSON Lines."),
    ],
    prices: Prices = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="**inspect**, **lm-eval**, **helm**, **promptfoo**, **litellm**, **otel**, **openai-batch**, "
            "**table** or **wide**: a table with columns for each model. [default: by the content; wide must be said]",
        ),
    ] = None,
    scorer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose scores count: a scorer of Inspect, a filter of lm-eval, …"),
    ] = None,
    right_from: Annotated[
        Any,
        typer.Option(
            parser=score,
            metavar="SCORE",
            help="An answer is right from this score on, on whatever scale: 0.5, 7, 80%. [default: scores stay scores]",
        ),
    ] = None,
    score_max: Annotated[
        Any,
        full_score("The full score, where scores stay scores. [default: 1]"),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="Another name for a model; may be given again."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OURS=THEIRS",
            help="What a table calls a column; `correct=is_right`, … Of LiteLLM and OpenTelemetry, what names the "
            "query: `query=metadata.requester_metadata.id`.",
        ),
    ] = None,
    tokens: Annotated[
        Any,
        typer.Option(
            parser=token_counts,
            metavar="IN,OUT",
            help="Tokens of a call, where the files count none. [default: a token per four characters]",
        ),
    ] = None,
    prompts: Annotated[
        bool,
        typer.Option("--prompts", help="Say in the log what was asked, for a person to label it."),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse files and samples that cannot be read. [default: left out and counted]"),
    ] = False,
    split: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Of HELM: whose instances count, as in its own accuracy; **test**, **valid** or **train**.",
        ),
    ] = "test",
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Make one log of evaluations that other programs ran.

    Many files become one log: models by name (`openai/gpt-4o-mini` is `gpt-4o-mini` where that stays unique), queries
    by what names them in their format. With `--prices`, the log holds money. Logs of calls do not tell right from
    wrong: give labels when you tune (`--labels`).
    """
    with reported(as_json=json_):
        require_writable(out)
        require_distinct([("--out", out)], [*(("FILES", file) for file in files), ("--prices", prices)])
        from rcjax.cli.collect_tables import show_import
        from rcjax.cli.console import busy
        from rcjax.importing.evaluations import KINDS, How, import_evaluations, write_table
        from rcjax.logs.errors import LogError
        from rcjax.logs.summaries import summarise

        if out.suffix.lower() not in ("", *KINDS):
            raise LogError(f"{out.name}: a log of kind {out.suffix!r} cannot be written: give {', '.join(KINDS)}")
        require_plausible_prices(prices, really)
        renamed, columns = pairs(rename, "--rename"), pairs(column, "--column")
        how = How(format_, scorer, right_from, renamed, columns, tokens, split, strict, prompts)
        how = how if score_max is None else replace(how, score_max=score_max)
        with busy("reading"):
            evaluations = import_evaluations(files, how, prices)
            problem = attempt(partial(write_table, evaluations.frame, out))
        for remark in filter(None, (evaluations.damage, evaluations.priced)):
            warn(remark)
        summary = summarise(evaluations.frame)
        document = summary | {"notes": list(evaluations.notes), "unreadable": list(evaluations.unreadable)}
        document |= {"priced_by": dict(evaluations.priced_by)} if evaluations.priced else {}
        conclude(
            document if problem else document | {"out": str(out)},
            partial(show_import, summary, evaluations.notes, None if problem else out),
            as_json=json_,
            problem=problem,
        )
