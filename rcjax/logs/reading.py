"""Reading a log from a file or dataframe, and checking every row of it.

`read_log` turns a long table, one row per query and model, into the (n queries, k models) matrices that the
rest of the package works on.  What it cannot use it refuses with one line: where, what, and what to do.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rcjax._base.arguments import check_arguments, what_it_is
from rcjax._base.variants import base_model, is_variant_in, of_model, samples_of
from rcjax.logs.answers import Compared, read_answer_table
from rcjax.logs.checked_rows import (
    SAMPLE,
    TOKENS,
    Rows,
    numbers,
    require_models,
    require_money,
)
from rcjax.logs.errors import LogError
from rcjax.logs.labels import Labeller, UsableCalls, read_labels
from rcjax.logs.listing import brief, listed, near
from rcjax.logs.log import IncompleteLogWarning, LeftOutWarning, Log, PartsWarning, _chosen, _log, _mean_cost
from rcjax.logs.log_files import LogFiles
from rcjax.logs.matrices import Matrices
from rcjax.logs.prices import read_prices
from rcjax.logs.sampled_rows import SampledRows, checked_votes

__all__ = ["read_answers", "read_log"]


_ONE_ROW = "keep one row per query and model, or tell several answers apart by a column sample"


def read_log(
    source: Any,
    *,
    prices: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    models: Iterable[str] | None = None,
    task: Literal["generation", "choice"] = "generation",
    labels: Any = None,
    answers: Any = None,
    votes: int | Iterable[int] | None = None,
) -> Log:
    """Read and check a log with one row per query and model.

    The columns are `query` (integers or strings), `model`, `correct`, one of `logprob` (at most 0, may be -inf) and
    `confidence` (0 to 1), and either `cost` (money for this call, 0 or from 1e-18 to 1e18) or `input_tokens` and
    `output_tokens`. A column `answer` says what was answered, so that the answers of models can be compared: of
    choices the letter, of texts without regard to case, white space, punctuation around them and how numbers are
    written. A column `answer_key` goes before it, and is compared as it is. Others are ignored. Names of columns may be
    in capitals, and have spaces for underscores.

    With a column `sample` there are several answers per query and model, and each model becomes several: `small`, its
    first answer with its own confidence, and votes such as `small ×3`, three answers together. Of a vote, the
    confidence is the share of the most common answer (of equally common ones, that which came first), the cost that of
    all, and it is right where the first sample that gave this answer is. Samples come by number, or where they are no
    whole numbers by first appearance.

    Args:
        source: the path of a `.csv`, `.tsv`, `.parquet`, `.jsonl` or `.ndjson` file, or a dataframe (pandas, polars,
            pyarrow or any other that narwhals knows).
        prices: what tokens cost, which goes before a column `cost`: anything that `read_prices` takes.
        models: the models to keep, in this order; without it all are kept, sorted by mean cost, ties by first
            appearance.
        task: "choice" or "generation": what the raw confidence is of.
        labels: a file or dataframe that tells right from wrong in place of the column `correct`: by `query`, `model`
            and `correct`, or by `query` and `answer`, a right answer, with which the log's own column `answer` is
            compared but for case and white space. Rows without a label are left out.
        answers: a file or dataframe of what was answered, in place of the log's own columns, by `query`, `model` and
            `answer` or `answer_key`.
        votes: how many samples vote: 3, or [1, 3]; 1 for none. By default 1, 2, 3 and 5, each as far as half of a
            model's queries have so many; a query that has fewer lacks that variant. With `models`, those named.

    The separator of a text file (`,` `;` tab or `|`) and its encoding (UTF-8, or UTF-16 or UTF-32 with a byte order
    mark) are told by its beginning. Files, and lazy frames of polars, are read a batch of rows at a time: memory is
    that of the log, not of its text, unless the text is not UTF-8.

    The file of a `CallLog` is read as it is: calls that failed or were cut off, repeated answers, and queries that
    did not go to all models (`shadow`) are left out. To learn from the latter would be to take hard queries for
    a sample of all; a frame without the columns `call_log` and `shadow` is taken as a whole. With the file are read the
    parts that rolled off it (`CallLog(…, roll=Roll(…))`), in order of time, which a `PartsWarning` counts; a part that
    is given by its own path is read alone.

    A model may be right always or never: calibration then gives it one confidence, (c + 1/2) / (n + 1) for c
    right answers of n. Queries that lack some model are kept, with an `IncompleteLogWarning`; for rows left out
    there is a `LeftOutWarning` with the counts.

    Raises `LogError`, on the first batch of rows with something wrong, where the log, its labels or the prices cannot
    be used; labels that are the log's own answers are refused. It is a `MissingPricesError` where the log counts
    tokens, has no `cost`, and no prices are given.
    """
    check_arguments(read_log, locals())
    tables = {"labels": labels, "answers": answers}
    beside = {name: table for name, table in tables.items() if table is not None}
    for name, table in {"source": source, **beside}.items():
        if table is None or isinstance(table, bytes | int | float | list | type):
            raise TypeError(f"{name} must be the path of a file, or a dataframe, not {what_it_is(table)}")
    return _read(source, prices, models, task, (labels, answers), votes, fewest=2)


def read_answers(
    source: Any,
    models: Iterable[str],
    *,
    prices: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    task: Literal["generation", "choice"] = "generation",
    labels: Any = None,
    answers: Any = None,
) -> Log:
    """Read what some models answered, as `read_log` does, except that one model is enough.

    There is nothing to tune on one model, but a policy that asks only one can be replayed.

    Args:
        source, prices, task, labels, answers: as `read_log` takes them.
        models: the models to keep, in this order.

    >>> import polars as pl
    >>> table = {"query": [1, 2], "model": ["small"] * 2, "correct": [0, 1], "confidence": [0.4, 0.9]}
    >>> read_answers(pl.DataFrame(table | {"cost": [1.0, 3.0]}), ["small"]).cost.tolist()
    [2.0]
    """
    return _read(source, prices, models, task, (labels, answers), None, fewest=1)


def _read(
    source: Any,
    prices: Any,
    models: Iterable[str] | None,
    task: Any,
    beside: tuple[Any, Any],
    votes: int | Iterable[int] | None,
    fewest: int,
) -> Log:
    """The log, with what is told `beside` it: (labels, answers)."""
    if task not in ("generation", "choice"):
        raise LogError(f"task {brief(task)!r} is unknown: choose generation or choice")
    rates = None if prices is None else read_prices(prices)
    wanted = None if models is None else (models,) if isinstance(models, str) else tuple(models)
    labels, answers = beside
    table = None if answers is None else read_answer_table(answers, task)
    calls, compared, sampled = UsableCalls(), Compared(task, table), SampledRows(checked_votes(votes), wanted)
    held, every, name = _scattered(source, rates, wanted, labels, (calls, compared, sampled))
    names = _names(held, every, wanted, name, fewest)
    columns = [held.models[model] for model in names]
    answered = held.take("row") >= 0
    _require_answers(answered[:, columns], names, name)
    matrices = [held.take("logprob"), held.take("correct"), held.take("cost"), answered]
    if models is None:  # a stable sort: models of equal cost stay in order of first appearance
        columns = np.argsort(_mean_cost(matrices[2], answered), kind="stable")
        names = tuple(names[j] for j in columns)
    queries = _ids(held.queries)
    answer = compared.codes(held, columns)
    used = rates and {name: of_model(rates, name) for name in names}
    origin = str(source) if isinstance(source, str | os.PathLike) else name
    matrices = [np.ascontiguousarray(matrix[:, columns]) for matrix in matrices]
    del held  # before jax has matrices of its own
    told = sampled.asked(names, compared.how) | calls.asked
    asked = {name: told[name] for name in names if name in told} or None
    facts: dict[str, Any] = {"task": task, "source": origin, "prices": used, "asked": asked}
    facts |= {} if answer is None else {"answer": answer, "compare": compared.how}
    log = _log(*matrices, models=names, queries=queries, **facts)
    if not log.complete.all():
        warnings.warn(log.describe(), IncompleteLogWarning, stacklevel=3)
    return log


def _scattered(
    source: Any,
    rates: Mapping | None,
    wanted: tuple[str, ...] | None,
    labels: Any,
    takers: tuple[UsableCalls, Compared, SampledRows],
) -> tuple[Matrices, list[str], str]:
    """(matrices of all rows to use, all models' names by first appearance, the source's name for messages).

    `takers` see every row that is used: what a call log tells besides, which answers are equal, and which are several
    to one query.
    """
    calls, compared, sampled = takers
    held = Matrices(logprob=math.nan, correct=False, cost=0.0)
    files, every = LogFiles(source), dict[str, None]()
    for rows in _judged_rows(files, rates is not None, labels, every, calls):
        require_models(rows)
        several = SAMPLE in rows.frame.columns
        if several:
            sampled.check_names(rows)
        if wanted is not None:
            rows = rows.keep(rows.frame["model"].is_in([base_model(name) if several else name for name in wanted]))
        if not rows.frame.height:
            continue
        place = held.place(rows)
        if several:
            values = {"logprob": _logprob(rows), "correct": numbers(rows, "correct") == 1}
            values["cost"] = _cost(rows, list(held.models), place[1], rates)
            sampled.add(rows, place, compared.hashes(rows), **values)
            continue
        again = held.repeated(rows, place)
        if again.any():
            i = int(np.argmax(again))
            first = rows.place(int(held.take("row")[place[0][i], place[1][i]]))
            rows.refuse(again, "query", f"was answered already in {first}: {_ONE_ROW}")
        logprob, correct = _logprob(rows), numbers(rows, "correct") == 1
        held.put(place, logprob=logprob, correct=correct, cost=_cost(rows, list(held.models), place[1], rates))
        compared.put(held, place, rows)
    compared.finish(files.name, held)
    if sampled.any:
        held = sampled.variants(held)
        return held, list(dict.fromkeys([*held.models, *every])), files.name
    sampled.require_none(files.name)
    return held, list(every), files.name


def _judged_rows(
    files: LogFiles, priced: bool, labels: Any, every: dict[str, None], calls: UsableCalls
) -> Iterator[Rows]:
    """The rows to use, some at a time, each with its column correct; at the end warnings count parts and other rows.

    `every` gets the names of all models of the source by first appearance, those with no row to use too.
    """
    known = None if labels is None else read_labels(labels, files.source)
    judged = {None: "correct", "correct": None, "answer": "answer"}[known and known.by]
    labeller = known and Labeller(known)
    read, usable = 0, set[str]()
    for rows in files.rows(priced, judged):
        if labeller and labeller.by == "correct" and SAMPLE in rows.frame.columns:
            what = "labels by query and model do not tell samples apart"
            raise LogError(f"{files.name}: {what}: give labels by query and answer, or a column correct")
        read += rows.frame.height
        every |= dict.fromkeys(rows.frame["model"].drop_nulls().unique(maintain_order=True))
        rows = calls.keep(rows)
        rows = labeller.keep(rows) if labeller else rows
        if rows.frame.height:
            usable |= {*rows.frame["model"].drop_nulls().unique()}
            yield rows
    calls.finish(files.name)
    left_out = {"cut off": files.cut, **calls.left_out}
    if labeller:
        labeller.finish(files.name)
        left_out["without a label"] = labeller.left_out
    if files.told:
        warnings.warn(files.told, PartsWarning, stacklevel=5)
    if any(left_out.values()):
        reasons = "; ".join(f"{count:,} {why}" for why, count in left_out.items() if count)
        lost = [model for model in every if model not in usable]
        whole = f"; that is all of {listed(lost)}" if lost else ""
        what = f"{sum(left_out.values()):,} of {read + files.cut:,} rows are left out: {reasons}{whole}"
        warnings.warn(f"{files.name}: {what}", LeftOutWarning, stacklevel=5)


def _names(
    held: Matrices, every: list[str], wanted: tuple[str, ...] | None, where: str, fewest: int
) -> tuple[str, ...]:
    """The models, by first appearance or as wanted."""
    for name in wanted or ():
        if name not in every and is_variant_in(name, every):
            what = f"{brief(name)} is the vote of {samples_of(name)} answers of {brief(base_model(name))}"
            raise LogError(f"{where}: {what}: the log needs as many to a query, with columns sample and answer")
    names = tuple(held.models) if wanted is None else _chosen(wanted, every, where)
    unused = [name for name in (every if wanted is None else names) if name not in held.models]
    if unused and (wanted is not None or not held.models):
        why = "its calls failed, did not go to all models or have no label"
        raise LogError(f"{where}, model {brief(unused[0])}: no row can be used: {why}")
    if len(names) < fewest:
        raise LogError(f"{where}: only one model, {', '.join(names)}: a cascade needs at least two")
    return names


def _require_answers(answered: np.ndarray, names: Sequence[str], where: str) -> None:
    answers = answered.sum(axis=0)
    if answers.min() < 2:
        rare = names[int(answers.argmin())]
        raise LogError(f"{where}, model {rare}: only 1 answer, 2 are needed: leave it out of the models")


def _ids(texts: Iterable[str]) -> tuple[int | str, ...]:
    """Query ids as ints, where all are whole numbers.

    Text files do not tell 7 from "7": one rule for every source makes the same log of each.
    """
    whole = re.compile(r"0|-?[1-9][0-9]*").fullmatch
    return tuple(map(int, texts)) if all(map(whole, texts)) else tuple(texts)


def _logprob(rows: Rows) -> np.ndarray:
    with np.errstate(divide="ignore"):  # a confidence of 0 is -inf, as meant
        has_logprob = "logprob" in rows.frame.columns
        return numbers(rows, "logprob") if has_logprob else np.log(numbers(rows, "confidence"))


def _cost(rows: Rows, names: Sequence[str], by_model: np.ndarray, rates: Mapping | None) -> np.ndarray:
    """Return the money that each row cost."""
    if rates is None:
        cost = numbers(rows, "cost")
        require_money(rows, cost, "cost")
        return cost
    for name in names:
        if of_model(rates, name) is None:
            meant = f"{near(name, {*rates} - {*names})}; the prices know {listed(rates)}"
            raise LogError(f"{rows.name}, model {brief(name)}: no price{meant}: add one, or leave it out of the models")
    tokens = np.stack([numbers(rows, column) for column in TOKENS], axis=1)
    per_million = np.array([of_model(rates, name) for name in names])[by_model]
    with np.errstate(over="ignore"):  # what overflows is refused
        cost = (tokens * per_million).sum(axis=1) / 1e6
    require_money(rows, cost, TOKENS[0])
    return cost
