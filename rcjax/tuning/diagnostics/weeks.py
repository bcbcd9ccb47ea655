"""The weeks of a log: the window of a check, and the traffic of the last week against the weeks before.

Labels are few, and traffic is not: two thousand queries of a week show a shift of a model's confidences where a hundred
labelled queries show nothing. The last week of a call log is compared with the eight weeks before it; if these have too
few queries, with the queries that the policy carries. The confidences of a model come from calls that any query might
make: the first call of a path, and calls of shadow queries. Repeated questions count once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from rcjax._base.figures import choose_unit, count, percent
from rcjax._core.batching import as_json_values
from rcjax.logs.checked_rows import read_times
from rcjax.logs.errors import LogError, join_names
from rcjax.logs.kept_sample import carried_log
from rcjax.logs.log import Log, sort_by_time
from rcjax.logs.sources import load_table, name_source
from rcjax.model.goodness_of_fit.two_samples import SampleMean, distribution_change, rise_of_mean
from rcjax.policy.bills import MAX_COST_RATIO
from rcjax.policy.policy import AbstractPolicy
from rcjax.tuning.diagnostics.findings import (
    FINDING_KINDS,
    WEEKLY,
    WINDOW,
    Finding,
    assess_together,
    confidence_finding,
    relative,
)

_WEEK = 7 * 86_400.0  # seconds


@dataclasses.dataclass(frozen=True)
class CheckWindow:
    """The weeks that the last look of a check took, and the number of looks per year."""

    looks: int
    """Looks per year. Without drift, at most 5 % of years have an alarm."""
    weeks: int
    """Number of weeks in the window; 0 for a log without times."""
    begin: str | None
    """First day of these weeks."""
    earlier: int
    """Number of queries of earlier weeks without an alarm, which joined the queries tuned on."""
    alarms: tuple[str, ...] = ()
    """First day of each week at whose end a look raised an alarm."""
    since: str | None = None
    """First day of the week in which the drift probably began; None without drift."""

    def describe(self) -> str:
        """Describe the window in words; empty for a log that is looked at once."""
        often = {WEEKLY: "weekly", 1: "once a year"}.get(self.looks, f"{self.looks} times a year")
        if not self.weeks:
            return "" if self.looks == 1 else f"Checked {often} (--looks)."
        joined = f" and {self.earlier:,} queries of earlier weeks, which were fine" if self.earlier else ""
        last = "week" if self.weeks == 1 else count(self.weeks, "week")
        weeks = f"The last {last}, since {self.begin}"
        return f"{weeks}, beside the queries tuned on{joined}; checked {often} (--looks)."


def weeks_before(times: np.ndarray) -> np.ndarray:
    """Return the whole weeks from each of the times (n,), in seconds since 1970, to the last: (n,); 0 for NaN.

    >>> weeks_before(np.array([0.0, 5e5, 1.3e6, np.nan])).tolist()
    [2, 1, 0, 0]
    """
    end = np.nanmax(times) if np.isfinite(times).any() else 0.0
    return np.floor((end - np.where(np.isnan(times), end, times)) / _WEEK).astype(int)


class Weeks(NamedTuple):
    """The weeks of a log, counted back from its last query."""

    ago: np.ndarray
    """(n,) whole weeks before the last query; 0 for a log without times."""
    end: float | None
    """Time of the last query, in seconds since 1970; None for a log without times."""

    @classmethod
    def of(cls, log: Log) -> Weeks:
        """Return the weeks of a log's queries; a query without a time is in the last week."""
        times = np.full(log.n_queries, np.nan) if log.time is None else np.asarray(log.time, float)
        if np.isnan(times).all():
            return cls(np.zeros(log.n_queries, int), None)
        return cls(weeks_before(times), float(np.nanmax(times)))

    @property
    def in_window(self) -> np.ndarray:
        """(n,) bool: the queries of the last eight weeks."""
        return self.ago < WINDOW

    def windows(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield (weeks ago, queries in the window then, queries before it), (n,) bool each, from the first look on."""
        for ago in range(int(self.ago.max(initial=0)), -1, -1):
            age = self.ago - ago
            yield ago, (age >= 0) & (age < WINDOW), age >= WINDOW

    def first_day(self, ago: int) -> str | None:
        """Return the first day of the week that ended `ago` weeks ago; None without times.

        >>> Weeks(np.zeros(1, int), 1_767_571_200.0).first_day(0)
        '2025-12-29'
        """
        return None if self.end is None else _date(self.end - (ago + 1) * _WEEK)

    def name_window(self, source: str) -> str:
        """Name a log for messages, with its last eight weeks if other queries are earlier."""
        if self.end is None or self.in_window.all():
            return source
        queries = count(int(self.in_window.sum()), "query")
        return f"{source}, the {queries} of the {WINDOW} weeks up to {_date(self.end)}, its latest time"

    def start_of_rise(self, values: np.ndarray, before: float) -> int:
        """Estimate how many weeks ago values (n,) rose: the start of the largest standardised surplus since."""

        def surplus(ago: int) -> float:
            later = values[self.ago <= ago]
            return float((later - before).sum() / math.sqrt(max(len(later), 1)))

        return max(range(min(int(self.ago.max(initial=0)), WINDOW - 1) + 1), key=surplus)


def _date(time: float) -> str:
    """Return the day of a time in seconds since 1970, in ISO 8601."""
    return datetime.fromtimestamp(time, UTC).date().isoformat()


def last_weeks(log: Log) -> Log:
    """Take the queries of the last eight weeks of a log, in their order; all queries of a log without times.

    >>> import dataclasses, rcjax
    >>> log = dataclasses.replace(rcjax.sample_log(300, seed=0), time=tuple(i * 86_400.0 for i in range(300)))
    >>> last_weeks(log).n_queries
    56
    """
    log = sort_by_time(log)
    recent = Weeks.of(log).in_window
    return log if recent.all() else log.take(recent)


_COLUMNS = ("query", "model", "logprob", "cost", "input_tokens", "output_tokens", "shadow", "error", "time")
_OTHERS = ("has_no_confidence", "not_judged", "prompt_digest", "step", "attempts", "signal_cost")
_MIN_PER_SIDE = 20  # queries or calls on each side, below which there is no finding

#: Most confidences of a model on each side of a comparison: a change that only more of them would show is too small.
MAX_CONFIDENCES = 20_000


@dataclasses.dataclass(frozen=True)
class TrafficCheck:
    """The check of a policy's traffic of the last week, beside the traffic before."""

    queries: int
    """Number of queries of the last week."""
    before: int
    """Number of queries of the eight weeks before; 0 if the queries that the policy carries take their place."""
    looks: int
    """Number of looks per year."""
    findings: tuple[Finding, ...]
    """Findings, with p-values adjusted for their number and the looks; a "bad" figure has changed."""
    expensive_calls_note: str | None = None
    """Note on calls that cost a hundred times the mean of their model; None without any."""

    @property
    def changed(self) -> bool:
        """Whether a figure has changed."""
        return any(finding.verdict == "bad" for finding in self.findings)

    def describe(self) -> str:
        """Describe in words which queries are compared."""
        earlier = f"{self.before:,} of the weeks before" if self.before else "the queries that the policy carries"
        return f"{count(self.queries, 'query')} of the last week beside {earlier}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, with `changed` and `describe` as `described`."""
        findings = [finding.to_json() for finding in self.findings]
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return as_json_values(fields | {"findings": findings, "changed": self.changed, "described": self.describe()})


def is_call_log(columns: Collection[str]) -> bool:
    """Return whether columns are those of a call log, in which few queries have the answers of all models."""
    return {"call_log", "query", "model", "time"} <= {*columns}


def check_traffic(policy: AbstractPolicy, source: Any, looks: int | None = None) -> TrafficCheck:
    """Check whether the traffic of a policy has changed, by figures that need no label.

    Args:
        policy: the policy in service.
        source: call log of the policy, as `read_log` takes it.
        looks: number of looks per year; None: weekly.

    Raises LogError if the log has no call of the policy's models.
    """
    every = _read_calls(source)
    calls = every.filter(pl.col("model").is_in([*policy.models]))
    if calls.is_empty():
        there = join_names(every["model"].unique(maintain_order=True)) or "no call"
        name = name_source(source)
        raise LogError(f"{name}: no call of the policy's models, {join_names(policy.models)}: it has {there}")
    ago = weeks_before(calls["time"].to_numpy())
    now, before = calls.filter(ago == 0), calls.filter((ago > 0) & (ago <= WINDOW))
    earlier, looks = before["query"].n_unique(), looks or WEEKLY
    has_earlier = earlier >= _MIN_PER_SIDE
    findings = [*_confidence_findings(policy, now, before if has_earlier else None)]
    if has_earlier:
        findings += _call_findings(policy, now, before)
        findings += [] if policy.follows else _bill_findings(now, before)  # following a bill changes it on purpose
    return TrafficCheck(
        now["query"].n_unique(),
        earlier if has_earlier else 0,
        looks,
        tuple(assess_together(findings, looks)),
        _describe_expensive_calls(policy, now),
    )


def _describe_expensive_calls(policy: AbstractPolicy, now: pl.DataFrame) -> str | None:
    """Describe calls that cost a hundred times the mean of their model, and the dearest; None without any."""
    limits = {name: MAX_COST_RATIO * policy.cost[name] for name in policy.models}
    limit = pl.col("model").replace_strict(limits, return_dtype=pl.Float64)
    expensive = now.filter((pl.col("cost") > limit) & (limit > 0)).sort("cost")
    if expensive.is_empty():
        return None
    model, cost = expensive["model"][-1], expensive["cost"][-1]
    dearest = f"(the dearest ${cost:.3g}, of {model}, where ${policy.cost[model]:.3g} is usual)"
    fact = f"{count(len(expensive), 'call')} cost over a hundred times the mean of the model {dearest}"
    return f"{fact}: does its server count too many tokens, or is max_tokens too high?"


def _read_calls(source: Any) -> pl.DataFrame:
    """Read the calls of policies from a call log, with typed columns, each question once, in the order of time.

    A line without an attempt is no call: the query ended before the model was asked.
    """

    def choose(_: str, names: list[str]) -> list[str]:
        return [name for name in (*_COLUMNS, *_OTHERS) if name in names]

    frame = pl.concat([*load_table(source, choose).frames], how="diagonal_relaxed")
    missing = [name for name in (*_COLUMNS, *_OTHERS) if name not in frame.columns]
    frame = frame.with_columns(pl.lit(None, pl.String).alias(name) for name in missing)
    times = read_times(frame["time"], name_source(source))
    texts = frame.with_columns(pl.all().exclude("time").cast(pl.String), time=times)
    numbers = ("logprob", "cost", "input_tokens", "output_tokens", "step", "attempts")
    calls = texts.with_columns(pl.col(numbers).cast(pl.Float64, strict=False)).drop_nulls(["query", "model", "time"])
    calls = calls.filter(pl.col("not_judged").is_null(), pl.col("attempts").ne_missing(0)).sort("time")
    first_query = pl.col("query").first().over("prompt_digest")
    repeated = pl.col("prompt_digest").is_not_null() & (pl.col("query") != first_query)
    flags = ("shadow", "has_no_confidence")
    shadow, is_answer = (pl.col(name).str.to_lowercase().eq_missing("true") for name in flags)
    calls = calls.filter(~repeated).with_columns(failed=pl.col("error").is_not_null() & ~is_answer)
    return calls.with_columns(any_query=shadow | (pl.col("step") == 1), billed=pl.col("step").is_not_null())


def _confidence_findings(policy: AbstractPolicy, now: pl.DataFrame, before: pl.DataFrame | None) -> Iterator[Finding]:
    """Compare the raw confidences of each model with the weeks before, or else with the carried queries."""
    carried = None
    if before is None and policy.provenance.get("kept_sample") is not None:
        carried = carried_log(policy)
    for name in policy.models:
        last_week = _take_confidences(now, name)
        if before is not None:
            earlier = _take_confidences(before, name)
        elif carried is not None:
            j = carried.models.index(name)
            earlier = np.asarray(carried.logprob)[np.asarray(carried.answered)[:, j], j].astype(np.float32)
        else:
            continue
        if min(len(last_week), len(earlier)) < _MIN_PER_SIDE:
            continue
        change = distribution_change(earlier, last_week)
        yield confidence_finding(name, change, (np.exp(np.median(earlier)), np.exp(np.median(last_week))))


def _take_confidences(calls: pl.DataFrame, model: str) -> np.ndarray:
    any_query, answered = pl.col("any_query"), ~pl.col("failed") & ~pl.col("logprob").is_null()
    chosen = calls.filter((pl.col("model") == model) & any_query & answered)
    return chosen["logprob"].to_numpy().astype(np.float32)[-MAX_CONFIDENCES:]


def _call_findings(policy: AbstractPolicy, now: pl.DataFrame, before: pl.DataFrame) -> Iterator[Finding]:
    """Compare failed calls and tokens of each model and, unless the bill is followed, its share of the queries."""
    queries = [side.filter("billed")["query"].n_unique() for side in (before, now)]
    for name in policy.models:
        sides = [side.filter(pl.col("model") == name) for side in (before, now)]
        if min(side.height for side in sides) < _MIN_PER_SIDE:
            continue
        failed = [SampleMean.estimate(side["failed"].to_numpy().astype(float)) for side in sides]
        fact = f"{percent(failed[1].mean)} of the calls of {name} failed, {percent(failed[0].mean)} before"
        advice = f"{fact}: see the column error of the log"
        gap = failed[1].mean - failed[0].mean
        yield FINDING_KINDS["failed calls"].finding(name, gap, advice, p_value=rise_of_mean(*failed)[1])
        tokens = _tokens(sides)
        if min(map(len, tokens)) >= _MIN_PER_SIDE:
            earlier, last_week = (SampleMean.estimate(part) for part in tokens)
            fact = f"a call of {name} has {last_week.mean:,.0f} tokens on average, {earlier.mean:,.0f} before"
            advice = f"{fact}: are prompts or answers longer?"
            rise = relative(last_week.mean, earlier.mean)
            yield FINDING_KINDS["tokens"].finding(name, rise, advice, p_value=rise_of_mean(earlier, last_week)[1])
        if policy.follows or min(queries) < _MIN_PER_SIDE:
            continue
        shares = [
            SampleMean.estimate((np.arange(n) < side.filter("billed")["query"].n_unique()).astype(float))
            for n, side in zip(queries, sides, strict=True)
        ]
        p, gap = rise_of_mean(*shares)[1], shares[1].mean - shares[0].mean
        advice = f"{name} is asked about {percent(shares[1].mean)} of the queries, {percent(shares[0].mean)} before"
        yield FINDING_KINDS["asked"].finding(
            name, abs(gap), advice, p_value=min(1.0, 2 * min(p, 1 - p)) if gap else 1.0
        )


def _tokens(sides: list[pl.DataFrame]) -> list[np.ndarray]:
    """Return the tokens of the calls on each side: of those with a question for the confidence, or without, if more."""
    kinds = [[side.filter(pl.col("signal_cost").is_null() == lacks) for side in sides] for lacks in (True, False)]
    kind = max(kinds, key=lambda parts: min(part.height for part in parts))
    return [(part["input_tokens"] + part["output_tokens"]).drop_nulls().to_numpy() for part in kind]


def _bill_findings(week: pl.DataFrame, weeks_before: pl.DataFrame) -> Iterator[Finding]:
    """Compare the cost of answers by the model asked first: a change of rung or of shadow queries changes no cost."""
    bills = [_bills(calls) for calls in (weeks_before, week)]
    for (first,) in bills[1].select("first").unique().sort("first").iter_rows():
        earlier, last_week = (side.filter(pl.col("first") == first)["cost"].to_numpy() for side in bills)
        if min(len(earlier), len(last_week)) < _MIN_PER_SIDE:
            continue
        before, now = SampleMean.estimate(earlier), SampleMean.estimate(last_week)
        unit = choose_unit([now.mean])
        money = f"{unit.full(now.mean)}, ${unit.show(before.mean)} before"
        advice = f"queries that {first} is asked first cost {money}: have prices, prompts or answer lengths changed?"
        rise = relative(now.mean, before.mean)
        yield FINDING_KINDS["bill"].finding(first, rise, advice, p_value=rise_of_mean(before, now)[1])


def _bills(calls: pl.DataFrame) -> pl.DataFrame:
    paid = calls.filter("billed").sort("step")
    cost = pl.col("cost").fill_null(0.0) - pl.col("signal_cost").cast(pl.Float64, strict=False).fill_null(0.0)
    return paid.group_by("query").agg(pl.col("model").first().alias("first"), cost.sum())
