"""The rows of a log gathered into matrices as they come in: those to learn from, with what is
told beside them: labels, answers, a reference."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.arguments import what_it_is
from rcjax.logs.answer_codes import Compared, read_answer_table
from rcjax.logs.checked_rows import Rows, logprobs, measured_cells, name_of, read_rows, require_models
from rcjax.logs.columns import SAMPLE, tells_no_confidence
from rcjax.logs.costs import Costs, mend_matrix, tell_lost
from rcjax.logs.errors import listed
from rcjax.logs.labels import Labeller, UsableCalls, empty_cell, label_cells, read_labels
from rcjax.logs.log import FailedCalls, LeftOutWarning, NoConfidenceWarning, PricesWarning
from rcjax.logs.matrices import Matrices
from rcjax.logs.sameness import Same, Sameness
from rcjax.logs.sampled_rows import SampledRows
from rcjax.logs.scoring import RIGHT_OR_WRONG, Scoring
from rcjax.logs.ways_of_asking import UNTOLD
from rcjax.policy.reference import Reference


class Beside(NamedTuple):
    """What is told beside a log, and what is needed of it."""

    labels: Any
    answers: Any
    needed: bool
    """Whether models need labels."""
    sameness: Sameness | None = None
    """What tells whether answers are those of a reference."""
    scoring: Scoring = RIGHT_OR_WRONG
    """How labels are written."""


def scoring_of(score_max: float, labels: Any) -> Scoring:
    """How labels are written, for these arguments of `read_log`; ValueError for what cannot be."""
    return Scoring(float(score_max), beside=labels is not None).check()


def sameness_of(reference: str | Reference | None, same: Same | None) -> Sameness | None:
    """What gathers whether answers are those of a reference, for these arguments of `read_log`; None without one.

    ValueError for a function of the same without a reference.
    """
    if reference is None:
        if same is not None:
            what = f"same, {what_it_is(same)}, needs reference"
            raise ValueError(f"{what}: give the model whose answers the others are compared with")
        return None
    return Sameness(Reference(reference) if isinstance(reference, str) else reference, same)


_ONE_ROW = "keep one row per query and model, or tell several answers apart by a column sample"


class Gathered(NamedTuple):
    """What the rows of a log come to."""

    held: Matrices
    """Of all rows to use, one per query and model."""
    models: list[str]
    """All of the log, by first appearance, those with no row to use too."""
    source: str
    """The path as it was given, or the kind of dataframe."""
    name: str
    """The log's, for messages."""
    compared: Compared
    """Which answers are equal."""
    asked: dict[str, dict[str, Any]]
    """How models were asked, as far as the log tells."""
    failed: tuple[FailedCalls, ...]
    """Which queries lack an answer as a call failed."""


class _Takers(NamedTuple):
    """Those who see every row that is used: each takes of it what it is about."""

    calls: UsableCalls
    compared: Compared
    sampled: SampledRows
    sameness: Sameness | None

    def columns(self, name: str, columns: list[str]) -> list[str]:
        """The columns of a log to read besides."""
        return [] if self.sameness is None else [*self.sameness.columns(name, columns)]


def gather(source: Any, rates: Mapping | None, wanted: tuple[str, ...] | None, task: str, beside: Beside) -> Gathered:
    """Read a log, row by row. Raises `LogError` for a row that cannot be used, and warns of those that are left out.

    Args:
        source: as `read_log` takes it.
        rates: money per million tokens of input and of output, by model; None where the log tells costs.
        wanted: the models whose rows are used; None for all.
        task: what the models did.
        beside: what is told beside the log.
    """
    table = None if beside.answers is None else read_answer_table(beside.answers, task)
    takers = _Takers(UsableCalls(), Compared(task, table), SampledRows(), beside.sameness)
    name = name_of(source)
    held, models = Matrices(logprob=math.nan, correct=False, labelled=False, cost=0.0), dict[str, None]()
    costs = Costs(rates)
    for rows in _judged_rows(source, rates is not None, beside, models, takers):
        require_models(rows)
        if wanted is not None:
            rows = rows.keep(rows.frame["model"].is_in(list(wanted)))
        if rows.frame.height:
            _put(held, rows, costs, takers)
    if (said := costs.describe()) is not None:
        warnings.warn(f"{name}: {said}", PricesWarning, stacklevel=4)
    takers.compared.finish(name, held)
    held = _settled(held, name, takers)
    ways = takers.calls.ways.asked
    return Gathered(
        held=held,
        models=list(models),
        source=str(source) if isinstance(source, str | os.PathLike) else name,
        name=name,
        compared=takers.compared,
        asked=ways | takers.sampled.asked(takers.compared.how, ways),
        failed=takers.calls.failed(held),
    )


def _put(held: Matrices, rows: Rows, costs: Costs, takers: _Takers) -> None:
    """Put rows into their cells; several answers of a model to a query are kept aside, until all are there."""
    cells = held.cells_of(rows)
    if takers.sameness is not None:
        takers.sameness.put(held, cells, rows)
    values = {"logprob": logprobs(rows), **label_cells(rows), **measured_cells(rows)}
    values["cost"] = costs.cells(rows, list(held.models), cells[1])
    ways = takers.calls.ways.of(rows)
    if SAMPLE in rows.frame.columns:
        takers.sampled.add(rows, cells, takers.compared.hashes(rows), way=ways, **values)
        return
    again = held.repeated(rows, cells)
    if again.any():
        i = int(np.argmax(again))
        first = rows.row_in_words(int(held.take("row")[cells[0][i], cells[1][i]]))
        rows.refuse(again, "query", f"was answered already in {first}: {_ONE_ROW}")
    for name in values:
        held.add(name, empty_cell(name))
    if (ways != UNTOLD).any():
        held.add("way", UNTOLD)
    held.put(cells, **values, **({"way": ways} if held.has("way") else {}))
    takers.compared.put(held, cells, rows)


def _settled(held: Matrices, name: str, takers: _Takers) -> Matrices:
    """The matrices once all rows are there: without those asked otherwise than most, and with one answer of several."""
    sampled, ways = takers.sampled, takers.calls.ways
    if sampled.any:
        sampled.leave_out(ways.settle(name, held.models, *sampled.models_and_ways()))
    elif held.has("way"):
        query, model = np.nonzero(held.take("row") >= 0)
        otherwise = ways.settle(name, held.models, model, held.take("way")[query, model])
        held.clear((query[otherwise], model[otherwise]))
    # After that: a mean must not count what calls cost that are left out.
    lost = tell_lost(sampled.mend_costs(list(held.models)) if sampled.any else mend_matrix(held))
    if lost is not None:
        warnings.warn(f"{name}: {lost}", LeftOutWarning, stacklevel=5)
    if not sampled.any:
        return held
    held = sampled.voted(held)
    if (said := sampled.describe()) is not None:
        warnings.warn(f"{name}: {said}", LeftOutWarning, stacklevel=5)
    return held


def _judged_rows(source: Any, priced: bool, beside: Beside, models: dict[str, None], takers: _Takers) -> Iterator[Rows]:
    """The rows to use, some at a time, with what is known of right and wrong; at the end warnings count the others.

    `models` gets the names of all models of the source by first appearance, those with no row to use too.
    """
    labels = None if beside.labels is None else read_labels(beside.labels, source, beside.scoring)
    needed = beside.needed and beside.sameness is None
    needed_label = "answer" if labels and labels.by == "answer" else "correct" if labels is None and needed else None
    labeller = labels and Labeller(labels)
    read, usable, untold = 0, set[str](), False
    name, calls = name_of(source), takers.calls
    all_rows, cut = read_rows(source, priced, needed_label, takers.columns, beside.scoring)
    for rows in all_rows:
        untold = tells_no_confidence(rows.frame.columns)
        read += rows.frame.height
        models |= dict.fromkeys(rows.frame["model"].drop_nulls().unique(maintain_order=True))
        rows = calls.keep(rows)
        rows = labeller.mark(rows) if labeller else rows
        if rows.frame.height:
            usable |= {*rows.frame["model"].drop_nulls().unique()}
            yield rows
    calls.finish(name)
    left_out = {"cut off": cut, **calls.left_out}
    if labeller:
        labeller.finish(name)
    if untold:
        what = (
            "no column logprob or confidence: every answer counts as sure, and whether models agree is all that tells"
        )
        warnings.warn(f"{name}: {what}", NoConfidenceWarning, stacklevel=5)
    if any(left_out.values()):
        reasons = "; ".join(f"{count:,} {why}" for why, count in left_out.items() if count)
        lost = [model for model in models if model not in usable]
        whole = f"; that is all of {listed(lost)}" if lost else ""
        what = f"{sum(left_out.values()):,} of {read + cut:,} rows are left out: {reasons}{whole}"
        warnings.warn(f"{name}: {what}", LeftOutWarning, stacklevel=5)
