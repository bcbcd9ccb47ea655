"""Reading a log from a file or dataframe, and checking every row of it.

`read_log` turns a long table, one row per query and model, into the (n queries, k models) matrices that the
rest of the package works on.  What it cannot use it refuses with one line: where, what, and what to do.
"""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import jax
import numpy as np

from rcjax._base.arguments import check_arguments, what_it_is
from rcjax.logs.answers import Compared, read_answer_table
from rcjax.logs.beside import Beside, sameness_of, scoring_of
from rcjax.logs.checked_rows import Rows, logprobs, require_models
from rcjax.logs.columns import SAMPLE, tells_no_confidence
from rcjax.logs.costs import cost_cells, mend_matrix, tell_lost
from rcjax.logs.errors import LogError
from rcjax.logs.hand_labels import HandLabels
from rcjax.logs.label_cells import empty_cell, hand_labels_of, label_cells, settle_labels
from rcjax.logs.label_counts import label_counts
from rcjax.logs.labels import Labeller, UsableCalls, read_labels
from rcjax.logs.listing import brief, listed
from rcjax.logs.log import (
    IncompleteLogWarning,
    LeftOutWarning,
    Log,
    NoConfidenceWarning,
    PartsWarning,
    PricesWarning,
    UnlabelledWarning,
    _log,
)
from rcjax.logs.log_files import LogFiles
from rcjax.logs.matrices import Matrices, query_ids
from rcjax.logs.models_of_log import by_cost, labelled_models, models_named, require_answers
from rcjax.logs.prices import price_for, priced_words, read_prices
from rcjax.logs.sameness import Same, count_differences, tells_errors
from rcjax.logs.sampled_rows import SampledRows
from rcjax.logs.scoring import as_labels
from rcjax.logs.seconds import seconds_cells
from rcjax.logs.segments import Segments
from rcjax.logs.ways_of_asking import UNTOLD
from rcjax.policy.record import refuse_votes
from rcjax.policy.reference import Reference
from rcjax.policy.scores import Scores

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
    votes: Any = None,
    unlabelled: bool = False,
    by: str | None = None,
    reference: str | Reference | None = None,
    same: Same | None = None,
    score_max: float = 1.0,
    wrong: str | None = None,
) -> Log:
    """Read and check a log with one row per query and model.

    The columns are `query` (integers or strings), `model`, `correct`, one of `logprob` (at most 0, may be -inf) and
    `confidence` (0 to 1), and either `cost` (money for this call, 0 or from 1e-18 to 1e18) or `input_tokens` and
    `output_tokens`. A column `answer` says what was answered, so that the answers of models can be compared: of
    choices the letter, of texts without regard to case, white space, punctuation around them and how numbers are
    written. A column `answer_key` goes before it, and is compared as it is. A column `seconds`, or `latency_ms`, says
    how long the answer took; a cell may be empty. A log with a column `answer` or `answer_key` may tell no confidence:
    all answers then count as sure, with a `NoConfidenceWarning`. Others are ignored. Names of columns may be in
    capitals, and have spaces for underscores.

    With a column `sample` there are several answers per query and model, as many as at least half of the queries of a
    model have, and they vote: the confidence is the share of the most common answer (of equally common ones, that which
    came first), the cost that of all, the seconds those of the longest, as all are asked for at once, and it is right
    where the first sample that gave this answer is. A query that has fewer lacks the model. Samples come by number, or
    where they are no whole numbers by first appearance. A `LeftOutWarning` says how many vote.

    Args:
        source: the path of a `.csv`, `.tsv`, `.parquet`, `.jsonl` or `.ndjson` file, or a dataframe (pandas, polars,
            pyarrow or any other that narwhals knows).
        prices: what tokens cost, which goes before a column `cost`: anything that `read_prices` takes. Of a list of
            LiteLLM or OpenRouter, a `PricesWarning` says which entries were taken.
        models: the models to keep, in this order; without it all are kept, sorted by mean cost, ties by first
            appearance.
        task: "choice" or "generation": what the raw confidence is of.
        labels: a file or dataframe that tells right from wrong: by `query`, `model` and `correct` (and `sample`, where
            the log has it; and `label_probability`), or by `query` and `answer`, a right answer, with which the log's
            own column `answer` is compared but for case and white space. A full column `correct` of the log is
            replaced; one with empty cells is added to, and of two labels that from here counts.
        answers: a file or dataframe of what was answered, in place of the log's own columns, by `query`, `model` and
            `answer` or `answer_key`.
        votes: leave it out: votes as models beside their own were measured to bring nothing, and are gone.
        unlabelled: read a log that has no labels too, or none of some models.
        by: a column that is known before the first call, such as a language, and the same in all rows of a query: it
            becomes `Log.segment`, for `tune_segments`. The log of a service tells it in its column `segment`, empty
            where it was told none.
        reference: a model whose answers take the place of right ones: an answer is wrong where it is another one.
            With labels, that it is the same is a judge's verdict, `judged_same`, which they correct; a
            `Reference` whose `counts` is "differences" counts differences all the same. `Log.reference` says which.
        same: whether two answers are the same, of (query, answer, answer of the reference), None where that cannot
            be told. By default they are as policies compare them (`answer`), or as a judge has said, by a
            `Reference` whose `same` names it.
        score_max: the full score: labels, of the log and from elsewhere, are divided by it. True stands for it.
        wrong: a column of errors, from 0 to `score_max`, in place of `correct`.

    `correct`, or where there is none `score`, may be a score: any number from 0 to `score_max`. The error of an answer
    is then the share of the score that is missing, and `Log.scores` tells the scale.

    Labels need not be there for all answers: a cell of `correct` may be empty, and beside verdicts of judges, or with
    `labels`, so may the whole column. Judges (a larger model, a heuristic) have columns `judged`, or `judged_a`,
    `judged_b` and so on: from 0, wrong, to 1, right, or empty. Which answers have labels must be chance. Where some
    were likelier to be drawn than others, a column `label_probability` says how likely each was, above 0 and at most 1.
    An `UnlabelledWarning` says how many labels there are, and `Log.hand` which. A model needs 2 at least; one that has
    none is left out with a `LeftOutWarning`, or refused where `models` names it.

    The separator of a text file (`,` `;` tab or `|`) and its encoding (UTF-8, or UTF-16 or UTF-32 with a byte order
    mark) are told by its beginning. Files, and lazy frames of polars, are read a batch of rows at a time: memory is
    that of the log, not of its text, unless the text is not UTF-8.

    The file of a `CallLog` is read as it is: calls that failed or were cut off, repeated answers, queries that did not
    go to all models (`shadow`), and calls that were asked otherwise than most of their model are left out. To learn
    from queries that were deferred would be to take hard ones for a sample of all; a frame without the columns
    `call_log` and `shadow` is taken as a whole. With the file are read the parts that rolled off it
    (`CallLog(…, roll=Roll(…))`), in order of time, which a `PartsWarning` counts; a part that is given by its own path
    is read alone.

    Rows of cost 0 of a model whose other rows cost money have lost their cost, as streamed calls do whose usage is not
    told: they are left out of the mean, and a `LeftOutWarning` counts them. A model of which all rows cost 0 is free.

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
    refuse_votes(votes)
    counted = sameness_of(reference, same)
    scoring = scoring_of(score_max, wrong, labels)
    beside_it = Beside(labels, answers, not unlabelled, fewest=2, by=by, sameness=counted, scoring=scoring)
    return _read(source, prices, models, task, beside_it)


def read_answers(
    source: Any,
    models: Iterable[str],
    *,
    prices: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    task: Literal["generation", "choice"] = "generation",
    labels: Any = None,
    answers: Any = None,
    by: str | None = None,
    reference: str | Reference | None = None,
    same: Same | None = None,
    score_max: float = 1.0,
    wrong: str | None = None,
) -> Log:
    """Read what some models answered, as `read_log` does, except that one model is enough.

    There is nothing to tune on one model, but a policy that asks only one can be replayed.

    Args:
        source, prices, task, labels, answers, by, reference, same, score_max, wrong: as `read_log` takes them.
        models: the models to keep, in this order.

    >>> import polars as pl
    >>> table = {"query": [1, 2], "model": ["small"] * 2, "correct": [0, 1], "confidence": [0.4, 0.9]}
    >>> read_answers(pl.DataFrame(table | {"cost": [1.0, 3.0]}), ["small"]).cost.tolist()
    [2.0]
    """
    counted = sameness_of(reference, same)
    scoring = scoring_of(score_max, wrong, labels)
    beside = Beside(labels, answers, True, fewest=1, by=by, sameness=counted, scoring=scoring)
    return _read(source, prices, models, task, beside)


def _read(
    source: Any,
    prices: Any,
    models: Iterable[str] | None,
    task: Any,
    beside: Beside,
) -> Log:
    """The log, with what is told beside it."""
    if task not in ("generation", "choice"):
        raise LogError(f"task {brief(task)!r} is unknown: choose generation or choice")
    rates = None if prices is None else read_prices(prices)
    wanted = None if models is None else (models,) if isinstance(models, str) else tuple(models)
    sameness = beside.sameness
    read = wanted
    if sameness is not None and wanted is not None:  # its answers are needed even where it is none of the models
        read = tuple(dict.fromkeys([*wanted, sameness.reference.model]))
    table = None if beside.answers is None else read_answer_table(beside.answers, task)
    calls, compared, sampled = UsableCalls(), Compared(task, table), SampledRows()
    segments = None if beside.by is None else Segments(beside.by)
    held, every, name = _scattered(source, rates, read, beside, (calls, compared, sampled, segments))
    replaced = settle_labels(held)
    reference = None if sameness is None else sameness.settle(held, name)
    names = models_named(held, every, wanted, name, beside.fewest)
    require_answers((held.take("row") >= 0)[:, [held.models[model] for model in names]], names, name)
    differences = reference is not None and reference.counts == "differences"
    if beside.needed and not differences:
        names = labelled_models(held, names, wanted, name, beside.fewest)
    if models is None:
        names = by_cost(held, names)
    columns = [held.models[model] for model in names]
    by_labels = _labels(held, columns) if differences and tells_errors(held, columns, name) else None
    if differences:
        count_differences(held)
    matrices = [held.take("logprob"), held.take("correct"), held.take("cost"), held.take("row") >= 0]
    matrices = [np.ascontiguousarray(matrix[:, columns]) for matrix in matrices]
    matrices[1] = as_labels(matrices[1])
    told = calls.ways.asked | sampled.asked(compared.how, calls.ways.asked)
    facts: dict[str, Any] = {
        "task": task,
        "source": str(source) if isinstance(source, str | os.PathLike) else name,
        "prices": rates and {name: price_for(rates, name) for name in names},
        "asked": {name: told[name] for name in names if name in told} or None,
        "hand": hand_labels_of(held, columns),
        "answer": compared.codes(held, columns),
        "seconds": np.ascontiguousarray(held.take("seconds")[:, columns]) if held.has("seconds") else None,
    }
    facts |= {} if facts["answer"] is None else {"compare": compared.how}
    facts["reference"] = reference
    scores = Scores(beside.scoring.most)
    facts["scores"] = None if matrices[1].dtype == bool else scores
    facts |= {} if segments is None else {"by": beside.by, "segment": segments.of(held.queries)}
    queries = query_ids(held.queries)
    del held  # before jax has matrices of its own
    log = _log(*matrices, models=names, queries=queries, **facts)
    beside.scoring.require_scale(log.source, np.asarray(log.correct)[np.asarray(log.labelled)])
    if by_labels is not None and reference is not None:
        judging = dataclasses.replace(reference, counts="errors")
        right, hand, scored = by_labels
        of_labels: dict[str, Any] = {"reference": judging, "scores": scores if scored else None}
        errors = dataclasses.replace(log, correct=right, hand=hand, **of_labels)
        log = dataclasses.replace(log, errors=errors)
    if not matrices[3].any(1).all():  # of models that have no label
        log = log.take(matrices[3].any(1))
    if not log.complete.all():
        warnings.warn(log.describe(), IncompleteLogWarning, stacklevel=3)
    if (priced := priced_words(rates, names)) is not None:
        warnings.warn(priced, PricesWarning, stacklevel=3)
    if beside.needed and not differences and not log.labelled[np.asarray(log.answered)].all():
        _warn_of_labels(log, replaced)
    return log


def _labels(held: Matrices, columns: list[int]) -> tuple[jax.Array, HandLabels | None, bool]:
    """(which answers of some models are labelled right, who has labelled what, whether these are scores)."""
    right = as_labels(np.ascontiguousarray(held.take("correct")[:, columns]))
    return jax.device_put(right), hand_labels_of(held, columns), right.dtype != bool


def _scattered(
    source: Any,
    rates: Mapping | None,
    wanted: tuple[str, ...] | None,
    beside: Beside,
    takers: tuple[UsableCalls, Compared, SampledRows, Segments | None],
) -> tuple[Matrices, list[str], str]:
    """(matrices of all rows to use, all models' names by first appearance, the source's name for messages).

    `takers` see every row that is used: what a call log tells besides, which answers are equal, and which are several
    to one query, and of which segment it is.
    """
    calls, compared, sampled, segments = takers
    held = Matrices(logprob=math.nan, correct=False, labelled=False, cost=0.0)
    sameness = beside.sameness
    more = [taker.columns for taker in (segments, sameness) if taker is not None]

    def besides(name: str, columns: list[str]) -> list[str]:
        return [column for choose in more for column in choose(name, columns)]

    files = LogFiles(source, besides, beside.scoring)
    every = dict[str, None]()
    for rows in _judged_rows(files, rates is not None, beside, every, calls):
        require_models(rows)
        if wanted is not None:
            rows = rows.keep(rows.frame["model"].is_in(list(wanted)))
        if not rows.frame.height:
            continue
        place = held.place(rows)
        if segments is not None:
            segments.put(rows)
        if sameness is not None:
            sameness.put(held, place, rows)
        values = {"logprob": logprobs(rows), **label_cells(rows), **seconds_cells(rows)}
        values["cost"] = cost_cells(rows, list(held.models), place[1], rates)
        ways = calls.ways.of(rows)
        if SAMPLE in rows.frame.columns:
            sampled.add(rows, place, compared.hashes(rows), way=ways, **values)
            continue
        again = held.repeated(rows, place)
        if again.any():
            i = int(np.argmax(again))
            first = rows.place(int(held.take("row")[place[0][i], place[1][i]]))
            rows.refuse(again, "query", f"was answered already in {first}: {_ONE_ROW}")
        for name in values:
            held.add(name, empty_cell(name))
        if (ways != UNTOLD).any():
            held.add("way", UNTOLD)
        held.put(place, **values, **({"way": ways} if held.has("way") else {}))
        compared.put(held, place, rows)
    compared.finish(files.name, held)
    if sampled.any:
        sampled.leave_out(lambda model, way: calls.ways.settle(files.name, held.models, model, way))
    else:
        _leave_out_others(held, calls, files.name)
    # After that: a mean must not count what calls cost that are left out.
    lost = tell_lost(sampled.mend_costs(list(held.models)) if sampled.any else mend_matrix(held))
    if lost is not None:
        warnings.warn(f"{files.name}: {lost}", LeftOutWarning, stacklevel=4)
    if sampled.any:
        held = sampled.voted(held)
        if (said := sampled.told()) is not None:
            warnings.warn(f"{files.name}: {said}", LeftOutWarning, stacklevel=4)
    return held, list(every), files.name


def _leave_out_others(held: Matrices, calls: UsableCalls, name: str) -> None:
    """Clear the rows that were asked otherwise than most of their model."""
    if held.has("way"):
        query, model = np.nonzero(held.take("row") >= 0)
        otherwise = calls.ways.settle(name, held.models, model, held.take("way")[query, model])
        held.clear((query[otherwise], model[otherwise]))


def _judged_rows(
    files: LogFiles, priced: bool, beside: Beside, every: dict[str, None], calls: UsableCalls
) -> Iterator[Rows]:
    """The rows to use, some at a time, with what is known of right and wrong; at the end warnings count the others.

    `every` gets the names of all models of the source by first appearance, those with no row to use too.
    """
    known = None if beside.labels is None else read_labels(beside.labels, files.source, beside.scoring)
    needed = beside.needed and beside.sameness is None
    told_by = "answer" if known and known.by == "answer" else "correct" if known is None and needed else None
    labeller = known and Labeller(known)
    read, usable, untold = 0, set[str](), False
    for rows in files.rows(priced, told_by):
        untold = tells_no_confidence(rows.frame.columns)
        read += rows.frame.height
        every |= dict.fromkeys(rows.frame["model"].drop_nulls().unique(maintain_order=True))
        rows = calls.keep(rows)
        rows = labeller.mark(rows) if labeller else rows
        if rows.frame.height:
            usable |= {*rows.frame["model"].drop_nulls().unique()}
            yield rows
    calls.finish(files.name)
    left_out = {"cut off": files.cut, **calls.left_out}
    remark = labeller.finish(files.name) if labeller else None
    if remark is not None:
        warnings.warn(remark, LeftOutWarning, stacklevel=5)
    if untold:
        what = (
            "no column logprob or confidence: every answer counts as sure, and whether models agree is all that tells"
        )
        warnings.warn(f"{files.name}: {what}", NoConfidenceWarning, stacklevel=5)
    if files.told:
        warnings.warn(files.told, PartsWarning, stacklevel=5)
    if any(left_out.values()):
        reasons = "; ".join(f"{count:,} {why}" for why, count in left_out.items() if count)
        lost = [model for model in every if model not in usable]
        whole = f"; that is all of {listed(lost)}" if lost else ""
        what = f"{sum(left_out.values()):,} of {read + files.cut:,} rows are left out: {reasons}{whole}"
        warnings.warn(f"{files.name}: {what}", LeftOutWarning, stacklevel=5)


def _warn_of_labels(log: Log, replaced: bool) -> None:
    own = "the log's own column correct is not used: if a judge filled it in, call it judged" if replaced else ""
    assert log.hand is not None
    said = label_counts(log.models, np.asarray(log.answered), np.asarray(log.correct), log.hand).told()
    name = os.path.basename(log.source)
    warnings.warn("; ".join(filter(None, [f"{name}: {said}", own])), UnlabelledWarning, stacklevel=4)
