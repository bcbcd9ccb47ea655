"""The ten queries that a report asks people to look at again: which they are, what is said of them, and why not."""

import dataclasses
import re

import numpy as np
import pytest
from stated_samples import stated_log

import rcjax
from rcjax._base.wording import Money
from rcjax.report.influential import find_influential, influential_context
from rcjax.report.page import render

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def log(logs):
    return logs[0]


@pytest.mark.thorough
def test_they_are_those_that_move_the_promise_most(report, log):
    policy = report.frontier.point(report.chosen)
    moved, rows = rcjax.diagnostics.influence(policy, log), report.influential.rows
    assert [row.query for row in rows] == [
        moved.queries[i] for i in np.argsort(-np.abs(moved.error), kind="stable")[:10]
    ]
    confidence = np.asarray(report.model.calibrate(log))
    for row in rows:
        number = int(row.query)
        columns = [log.models.index(name) for name in moved.models]
        assert row.confidence == pytest.approx(dict(zip(moved.models, confidence[number, columns], strict=True)))
        right = np.asarray(log.correct)[number, columns].tolist()
        assert row.correct == dict(zip(moved.models, right, strict=True))
        assert (row.error, row.cost) == pytest.approx((moved.error[number], moved.cost[number]))
    # By the labels: the dear model is wrong on what costs the promise most.
    assert report.to_json()["influential"]["rows"][0]["query"] == rows[0].query


@pytest.mark.thorough
def test_the_page_has_a_row_for_each_and_says_what_to_do(report):
    page = render(report)
    (section,) = re.findall(r"<summary>The 10 queries that move.*?</details>", page, re.DOTALL)
    assert section.count('<tr><th scope="row">') == 10
    assert "Correct what is wrong in the log, and tune again" in section
    first = report.influential.rows[0]
    name = report.influential.models[0]
    sure, right = first.confidence[name], first.correct[name]
    assert f'<td data-label="{name}">{sure:.2f}, {"right" if right else "wrong"}</td>' in section
    assert f"{'+' if first.error > 0 else '−'}{100 * abs(first.error):#.2g}</td>" in section
    other = dataclasses.replace(report.influential, rows=(), note="none of it is known")
    assert "is not shown: none of it is known." in render(dataclasses.replace(report, influential=other))


@pytest.mark.thorough
def test_where_it_is_not_known_the_page_says_why(report, log):
    policy = report.frontier.point(report.chosen)
    few = stated_log("stated", 96, models=2)
    of_few = rcjax.solve_frontier(rcjax.fit(few), lam=[300.0], cascades="full").point(0)
    alone = rcjax.solve_frontier(report.model, lam=[300.0], cascades=[log.models[1:2]]).point(0)
    for other, queries, message in (
        (alone, log, "asks one model"),
        (dataclasses.replace(policy, expected={}), log, "price of an error"),
        (of_few, few, "so few values that copulas are fitted by likelihood"),
    ):
        result = find_influential(other, report.model, queries)
        assert result.rows == ()
        assert message in result.note


def test_what_was_not_answered_or_labelled_is_said(report):
    names = report.influential.models
    row = dataclasses.replace(
        report.influential.rows[0],
        confidence=dict.fromkeys(names, None) | {names[-1]: 0.5},
        correct=dict.fromkeys(names, None),
        error=-0.00123,
        cost=2e-7,
    )
    (shown,) = influential_context(dataclasses.replace(report.influential, rows=(row,)), Money(1e6, "million"))["rows"]
    assert shown["said"] == ["no answer"] * (len(names) - 1) + ["0.50, no label"]
    assert (shown["error"], shown["cost"]) == ("−0.12", "+$0.200")
