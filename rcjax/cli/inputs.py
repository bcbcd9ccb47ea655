"""Parsers of options, readers of logs, policies and frontiers, and refusals of bad input before any work.

An invalid value is a usage error. Implausible budgets, prices and logs are refused, too, unless `--yes` accepts them: a
budget of 60, which is $60 a query (60/M was meant); a price of 2.5e-7, which is per token (prices are per million); a
log without a right answer.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rcjax._base.codec import load_json
from rcjax._base.extras import how_to_install
from rcjax._base.figures import choose_unit, format_number, format_points, percent
from rcjax._base.files import is_stream, require_kind
from rcjax.cli.console import warn
from rcjax.policy.error_kind import recorded_reference, recorded_scores
from rcjax.policy.ladder import Ladder, Period, Queries, load_policy, policy_from_json, split_per_period
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import CASCADE_SETS, SecondsLimit, recorded_tuning

if TYPE_CHECKING:
    from rcjax.logs.log import Log
    from rcjax.logs.sources import JoinedTable
    from rcjax.policy.spec import Target
    from rcjax.serving.shadow import ShadowRate
    from rcjax.solving.frontier.frontier import Frontier


_MAX, _MIN = 1e30, 1e-30  # range of money and λ: beyond any currency, and products of three are finite
_PER = {"": 1.0, "query": 1.0, "k": 1e-3, "m": 1e-6}
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "K": 10**3, "M": 10**6, "G": 10**9}


def _number(number: str, text: str, requirement: str) -> float:
    """Parse a finite number, at least 0; the usage error says that the whole text is not a `requirement`."""
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise typer.BadParameter(f"{text!r} is not a {requirement}")
    return value


def _check_range(value: float, text: str) -> float:
    """Return a sum of money, or λ; a usage error beyond the range of computation."""
    if value != 0 and not _MIN <= value <= _MAX:
        raise typer.BadParameter(f"{text!r} is not from {_MIN:g} to {_MAX:g}, where sums of money must lie, and λ")
    return value


def money(text: str) -> float:
    """Parse money per query: `0.00015`, `150/M` (per million queries) or `0.15/k` (per thousand)."""
    amount, _, unit = text.strip().removeprefix("$").partition("/")
    number = amount if unit.strip().lower() in _PER else "nan"
    value = _number(number, text, "sum of money: give 0.00015, 0.15/k or 150/M")
    return _check_range(_PER.get(unit.strip().lower(), 1.0) * value, text)


def budget(text: str) -> float | Period:
    """Parse money per query, as `money` does, or money for a period of the calendar: `500/month`."""
    parts = split_per_period(text)
    return money(text) if parts is None else Period(positive(parts[0]), parts[1])


def queries(text: str) -> Queries:
    """Parse a number of queries in a period: `200000/month`, `200k/month` or `2M/month`."""
    parts = split_per_period(text)
    if parts is None:
        raise typer.BadParameter(f"{text!r}: give queries and a period, such as 200000/month, or /week or /day")
    number, unit = re.fullmatch(r"(.*?)\s*([km]?)", parts[0], re.DOTALL).groups()  # type: ignore[union-attr]
    return Queries(positive(number) / _PER[unit], parts[1])


def fraction(text: str) -> float:
    """Parse an error probability: `0.05` or `5%`."""
    number = text.strip()
    value = _number(number.removesuffix("%"), text, "share such as 0.05 or 5%") / (100 if number.endswith("%") else 1)
    if value > 1:
        raise typer.BadParameter(f"{text!r} is more than 1: give a share such as 0.05, or 5%")
    return value


def part(text: str) -> float:
    """Parse a share: `1/5`, `0.2` or `20%`."""
    number, slash, total = text.partition("/")
    value = positive(number) / positive(total) if slash else fraction(text)
    if not 0 < value <= 1:
        raise typer.BadParameter(f"{text!r}: give a share above 0 and at most 1, such as 1/5")
    return value


def shadow_rate(text: str) -> float | ShadowRate:
    """Parse a share, `5%`, or a number of queries in a period, `200/week`."""
    if "/" not in text:
        return fraction(text)
    from rcjax.serving.shadow import ShadowRate

    try:
        return ShadowRate.parse(text)
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


def positive(text: str) -> float:
    """Parse a number above 0."""
    value = _number(text.strip().removeprefix("$"), text, "number above 0")
    if value == 0:
        raise typer.BadParameter(f"{text!r} is not above 0")
    return _check_range(value, text)


def size(text: str) -> int:
    """Parse a number of bytes: `500KB`, `100MB` or `1GB`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?B?)", text.strip().upper())
    if match is None or float(match[1]) * _BYTES[match[2]] < 1:
        raise typer.BadParameter(f"{text!r} is not a size: give 500KB, 100MB or 1GB")
    return int(float(match[1]) * _BYTES[match[2]])


def seconds_limit(text: str) -> SecondsLimit:
    """Parse a limit on the seconds of a query: `2`, on average, or `p95=4`."""
    try:
        return SecondsLimit.of(text)
    except ValueError as problem:
        raise typer.BadParameter(str(problem).removeprefix("max_seconds").lstrip(": ")) from None


def today(text: str) -> AbstractPolicy | str:
    """Parse today's model or policy: the name of a model, or the file of a policy, which is read."""
    if not (text.endswith(".json") or os.path.isfile(text)):
        return text
    try:
        return load_policy(text)
    except OSError as problem:
        raise typer.BadParameter(f"{text}: {problem.strerror}") from None
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


def names(text: str) -> tuple[str, ...]:
    """Parse names of models, with commas between them."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(names) > len({*names}):
        raise typer.BadParameter(f"{text!r}: give names of models, each once, with commas between them")
    return names


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse pairs such as `old=new`, each name once; a usage error for any other text.

    >>> pairs(["correct=is_right", "model=engine"], "--column")
    {'correct': 'is_right', 'model': 'engine'}
    """
    parsed: dict[str, str] = {}
    for text in texts or ():
        left, _, right = (part.strip() for part in text.partition("="))
        if not (left and right) or left in parsed:
            raise typer.BadParameter(f"{text!r}: give pairs of two names, NAME=NAME, each once", param_hint=option)
        parsed[left] = right
    return parsed


def cascade(text: str) -> str | tuple[tuple[str, ...]]:
    """Parse a search by the model, for `Spec.cascade`: a word, or the names of the models of one cascade.

    >>> cascade("full"), cascade("small,large")
    ('full', (('small', 'large'),))
    """
    return text if text in CASCADE_SETS else (names(text),)


def models_to_read(models: tuple[str, ...] | None, cascade: Any) -> tuple[str, ...] | None:
    """Return the models of `--models`, or of a single `--cascade`, in the order given rather than by cost.

    >>> models_to_read(None, (("large", "small"),)), models_to_read(None, "full")
    (('large', 'small'), None)
    """
    return models or (cascade[0] if isinstance(cascade, tuple) else None)


_IF_RIGHT = "; if it is right, add --yes"


# Refusals before any work.


def require_libraries(feature: str, extra: str, *names: str) -> None:
    """Raise ValueError if a library is not installed: `feature` needs it, and the `extra` brings it."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"{feature} needs {name}: {how_to_install(extra)}")


def require_outputs(
    outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None], kinds: Mapping[str, str] | None = None
) -> None:
    """Refuse outputs that cannot be written, that are inputs, or that are files of another kind.

    Args:
        outputs: paths by option; None if not given.
        inputs: as `outputs`.
        kinds: kind of file by option (`require_kind`), for outputs that replace a file, or append to it.
    """
    require_distinct([*outputs.items()], [*inputs.items()])
    for path in filter(None, outputs.values()):
        if path.is_dir():
            raise OSError(f"cannot write {path}: it is a folder: give a file")
        if not path.parent.is_dir():
            raise OSError(f"cannot write {path}: there is no folder {path.parent}: create it first")
        if not os.access(path if is_stream(path) else path.parent, os.W_OK):
            raise OSError(f"cannot write {path}: it is not writable")
    for option, kind in (kinds or {}).items():
        if (path := outputs[option]) is not None:
            try:
                require_kind(path, kind)
            except ValueError as problem:
                raise typer.BadParameter(str(problem), param_hint=option) from None


def require_distinct(outputs: Sequence[tuple[str, Path | None]], inputs: Sequence[tuple[str, Any]]) -> None:
    """Raise a usage error for an output that is the file of an input or of another output, also by links.

    Both arguments are pairs of an option or argument and its path; None if it is absent. Pipes and devices may be given
    more than once.
    """
    owners = {os.path.realpath(path): (name, path) for name, path in inputs if path is not None}
    for option, path in outputs:
        if path is None or is_stream(path):
            continue
        name, owned = owners.setdefault(os.path.realpath(path), (option, path))
        if name != option:
            problem = f"{path} must not be the file of {name}, {owned}: give another one"
            raise typer.BadParameter(problem, param_hint=option)


def require_plausible_prices(prices: Any, really: bool) -> None:
    """Raise LogError for prices per token, which must be per million, and for unreadable prices.

    Args:
        prices: a file or a mapping, as `rcjax.read_log` takes them, or None.
        really: whether `--yes` accepts them.
    """
    if prices is None or really:
        return
    from rcjax.logs.errors import LogError, PricesWarning
    from rcjax.logs.prices import read_prices

    with warnings.catch_warnings():
        warnings.simplefilter("error", PricesWarning)
        try:
            read_prices(prices)
        except PricesWarning as problem:
            raise LogError(f"{problem}{_IF_RIGHT}") from None


def require_plausible_models(path: Path | None, really: bool) -> None:
    """Raise LogError for prices per token in a `models.toml`, and ValueError for an unreadable file."""
    if path is None or really:
        return
    from rcjax._base.tokens import too_small
    from rcjax.logs.errors import LogError
    from rcjax.serving.models_file import read_models

    small = too_small({name: model.price for name, model in read_models(path).items()})
    if small is not None:
        raise LogError(f"{path.name}, {small}{_IF_RIGHT}")


_MAX_MODELS = 100  # models, whose pairs take 15 seconds of CPU time


def require_plausible_log(target: Target | None, log: Log, really: bool) -> None:
    """Warn of each oddity of a log; raise LogError if a policy is asked for and the log is implausible.

    Args:
        target: the target; None if no policy is asked for.
        really: whether `--yes` accepts the log.
    """
    from rcjax.logs.errors import LogError
    from rcjax.logs.oddities import MIN_QUERIES, describe_doubts, describe_oddities

    if len(log.models) > _MAX_MODELS and not really:
        advice = "name those that may answer (--models A,B,…), or add --yes"
        raise LogError(f"{Path(log.source).name}: {len(log.models)} models, whose pairs take minutes: {advice}")
    odd_facts = [*describe_oddities(log)]
    for oddity in (*odd_facts, *describe_doubts(log)):
        warn(f"{Path(log.source).name}: {oddity}")
    if odd_facts and target is not None and not really:
        few = f"too few queries ({log.n_queries})" if log.n_queries < MIN_QUERIES else "the log can hardly be right"
        raise LogError(f"{Path(log.source).name}: {few}: nothing was written; --yes tunes anyway")


_MAX_MARGIN = 0.1  # a larger margin may be typed as a share where a percentage was meant


def require_plausible_target(target: Target | None, log: Log, really: bool) -> None:
    """Refuse a target that may be in another unit.

    Such a target is a budget above the cost of asking every model, a limit on the error at or above the error of every
    model, and a margin above 10 points.

    Args:
        target: the target; None if no policy is asked for.
        log: the log with the costs and the labels of the models.
        really: whether `--yes` accepts the target.
    """
    from rcjax.logs.oddities import odd_budget
    from rcjax.tuning.replaying.comparing import single_model_errors

    if target is None or really:
        return
    value, option, problem = target.value, f"--{target.name.replace('_', '-')}", None
    meant = f"was {value:.4g}% meant? Then give {option} {value:.4g}%"
    if target.name == "budget":
        problem = odd_budget(value, log, "--budget {}/M".format)
    elif target.name == "match" and value > _MAX_MARGIN:
        problem = f"{value:.4g} is {format_points(value)} more {log.error_kind.noun} than today's: {meant}"
    elif target.name == "max_error" and value >= (most := float(single_model_errors(log).max())):
        problem = (
            f"no model alone has more {log.error_kind.noun} than {percent(most)}, and any policy meets it: {meant}"
        )
    if problem is not None:
        raise typer.BadParameter(f"{problem}{_IF_RIGHT}", param_hint=option)


# Logs.


def read_log(path: Path | JoinedTable, effect: str = "the others are used where they can be", **options: Any) -> Log:
    """Read a log with the options of `LogOptions.options`; a warning for an incomplete log ends with `effect`."""
    import rcjax
    from rcjax.logs.errors import MissingPricesError

    require_plausible_prices(options.get("prices"), options.pop("really", False))
    segment = options.pop("segment", None)
    logs = rcjax.logs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", logs.IncompleteLogWarning)
        try:
            log = rcjax.read_log(path, **options)
            log = log if segment is None else logs.with_segments(log, path, segment)
        except MissingPricesError:
            prices = "for each model a table [MODEL] with input = 0.1 and output = 0.4, money per million tokens"
            advice = f"give --prices prices.toml, {prices}, or --prices genai, for public ones; or add a column cost"
            raise MissingPricesError(f"{path.name}: token counts but no prices: {advice}") from None
    complete = int(log.complete.sum())
    if complete < log.n_queries:
        counts = f"{complete:,} of {log.n_queries:,} queries have an answer of every model"
        warn(f"{path.name}: {counts}; {effect}")
    return log


def read_pair(log: Path, test: Path | None, **options: Any) -> tuple[Log, Log | None]:
    """Read a log and, if it is given, a second log of the same models."""
    first = read_log(log, **options)
    options |= {"models": first.models, "answers": None}  # the file of answers belongs to the first log
    return first, sort_by_time(read_log(test, **options), test) if test else None


def sort_by_time(log: Log, path: Path) -> Log:
    """Sort the queries of a log by the column time of its file, if there is one, as a policy follows its bill."""
    from rcjax.logs.log import sort_by_time
    from rcjax.logs.reading import with_times

    return dataclasses.replace(sort_by_time(with_times(log, path)), time=None)


# Files of `rcjax tune`, and logs for them.


def load_tuned(path: Path, *, frontiers: bool = False) -> Any:
    """Load a policy, or with `frontiers` also a frontier, of `rcjax tune`; ValueError names the file and the place."""
    if path.suffix.lower() in (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson"):
        raise ValueError(f"{path}: it looks like a log: the policy comes first, then the log")

    def read(data: Any) -> AbstractPolicy | Frontier:
        if frontiers and isinstance(data, dict) and data.get("format") == "rcjax-frontier":
            from rcjax.solving.frontier.frontier import frontier_from_json

            return frontier_from_json(data)
        policy = policy_from_json(data)
        recorded_tuning(policy)  # every command reads the record: an error here has the file's name
        return policy

    return load_json(path, read)


def with_budget_per_query(policy: AbstractPolicy, log: Path) -> tuple[AbstractPolicy, list[str]]:
    """Return (the policy with its money for a period as a budget per query, remarks on that).

    The money is spread over the daily number of queries in the log of a service, or else the number that the policy was
    tuned for. A policy without money for a period is returned as it is.
    """
    from rcjax.serving.shadow import queries_per_day

    if not isinstance(policy, Ladder) or policy.period is None or policy.budget is None:
        return policy, []
    money, days = policy.period.money, policy.period.days
    counted = queries_per_day(log)
    per_day, origin = counted or money / policy.budget / days, "of this log" if counted else "that it was tuned for"
    budget = money / days / per_day
    rate = f"the {format_number(per_day)} queries a day {origin}"
    remark = f"it follows {policy.period} as {choose_unit([budget]).full(budget)}, at {rate}"
    return dataclasses.replace(policy, budget=budget), [remark]


def _repriced(before: Mapping[str, Any], path: Path, really: bool) -> Any:
    """Return the prices of a tuning, replaced by those of a file where it has them."""
    from rcjax.logs.prices import read_prices
    from rcjax.serving.price_lists import PriceList

    require_plausible_prices(path, really)
    prices = read_prices(path)
    if isinstance(prices, PriceList):
        prices = {name: prices[name] for name in before if name in prices}
    if not {*prices} & {*before}:
        return path
    if unpriced := [name for name in before if name not in prices]:
        warn(f"{path.name} does not price {', '.join(unpriced)}: as when the policy was tuned", "note")
    return {**before, **prices}


def read_for(subject: AbstractPolicy | Frontier, path: Path | JoinedTable, given: Mapping[str, Any]) -> Log:
    """Read a log for a policy: all models of its tuning or, if the log lacks any of them, the policy's own models.

    Args:
        subject: the policy, or a frontier; its prices apply if nothing else gives prices.
        given: options of reading (`LogOptions.options`). By default, the reference and the scale of scores are those of
            the tuning. The task, and prices that a file of prices lacks, are always those of the tuning.
    """
    from rcjax.logs.errors import LogError, MissingModelError, MissingPricesError

    if isinstance(subject, AbstractPolicy):
        tuning, provenance = recorded_tuning(subject), subject.provenance
        transform, recorded = tuning.spec.transform, {"segment": subject.segment_column}
    else:
        tuning, provenance = subject.model, subject.model.provenance
        transform, recorded = subject.model.calibrators.transform, {}
    scores = recorded_scores(provenance)
    recorded |= {"reference": recorded_reference(provenance)} | ({} if scores is None else {"score_max": scores.most})
    options: dict[str, Any] = recorded | {name: value for name, value in given.items() if value is not None}
    options |= {"task": "choice" if transform == "choice" else "generation"}
    if options.get("prices") is not None and tuning.prices:
        options["prices"] = _repriced(tuning.prices, options["prices"], options.get("really", False))

    def read(models: tuple[str, ...]) -> Log:
        try:
            return read_log(path, models=models, **options)
        except MissingPricesError:
            if not tuning.prices:
                raise
            return read_log(path, models=models, **options | {"prices": tuning.prices, "really": True})

    try:
        return read(tuning.models)
    except LogError:
        try:
            return read(subject.models)
        except MissingModelError as problem:
            raise MissingModelError(f"{problem}; this policy needs a log of {', '.join(subject.models)}") from None


def read_dated(
    policy: AbstractPolicy, files: Sequence[Path], source: Path | JoinedTable, given: Mapping[str, Any]
) -> Log:
    """Read files as one log with times, as `read_for` does; a warning counts by file the queries that are left out.

    These have no model of the policy, or no time where others have times. Raises LogError if a file that was named, not
    found in a folder, has no model of the policy.
    """
    import numpy as np
    import polars as pl

    from rcjax.logs.errors import LogError
    from rcjax.logs.reading import with_times
    from rcjax.logs.sources import load_table, name_source

    log = with_times(read_for(policy, source, given), source)
    dated = np.ones(log.n_queries, bool) if log.time is None else np.isfinite(log.time)
    if isinstance(source, Path) or len(source.parts) == 1:
        return log
    table = load_table(source, lambda _, names: [name for name in ("query", "model", "time") if name in names])
    frame, left_out = pl.concat([*table.frames]), list[str]()
    offset, has_times = 0, bool(dated.any() and not dated.all())
    for name, size in source.parts:
        rows, offset = frame.slice(offset, size), offset + size
        models = pl.col("model").is_in([*policy.models])
        others = rows["query"].n_unique() - (known := rows.filter(models))["query"].n_unique()
        if known.is_empty() and name in {path.name for path in files}:
            raise LogError(f"{name}: no answer of {', '.join(policy.models)}, the models of the policy")
        undated = known.filter(pl.col("time").is_null())["query"].n_unique() if has_times else 0
        left_out += [f"{others:,} of {name} have no answer of the policy's models"] * (others > 0)
        left_out += [f"{undated:,} of {name} have no time, unlike others"] * (undated > 0)
    if left_out:
        warn(f"{name_source(source)}: queries are left out: {'; '.join(left_out)}")
    return log.take(dated) if has_times else log
