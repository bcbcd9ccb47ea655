"""What is said of a policy that was chosen: every arm of the sentence, and never against its figures."""

import dataclasses
import itertools
import re

import numpy as np
import pytest

import rcjax
from rcjax.frontier.policies import Agreements, Policies
from rcjax.tuning.candidates import Targets
from rcjax.tuning.comparison import Comparison, Gain, Gains, Selection

pytestmark = pytest.mark.usefixtures("float64")

NAMES = ("small", "middle", "large")
MEMBERS = {"single": [0, 1, 0], "pair": [1, 0, 1], "answers": [1, 1, 1]}
ROWS = tuple(MEMBERS)
ALONE = np.array([0.3, 0.2, 0.08])  # how often each model errs


@pytest.fixture(scope="module")
def frontier(float64):
    """A point of each kind, at λ = 10 and a cost of 10."""
    log = rcjax.sample_log(60, seed=0).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    base = rcjax.tuning.select_frontier(log).frontier
    members = np.array([MEMBERS[row] for row in ROWS], bool)
    agreements = Agreements.none(members.shape)
    agreements.earlier[2:, 1], agreements.differ[2:, 1] = 0, 2
    policies = Policies.of_cascades(np.where(members, 0.5, 1.0), members, agreements=agreements)
    model, figures = dataclasses.replace(base.model, models=NAMES), np.full(len(ROWS), 10.0)
    return dataclasses.replace(base, model=model, lam=figures, cost=figures, error=figures / 100, policies=policies)


def shown(gain=0.0, gain_se=0.01, saved=0.0, saved_se=0.01, rival=None, luck=0.02):
    """A contest that shows at the middle of three prices, and budgets, what is given; elsewhere far more."""

    def amid(value):
        return np.array([9.0, value, -9.0])

    none = Gain(0.0, 0.0)
    arms = 2 + (rival is not None)
    less, spread = np.where(np.arange(arms)[:, None] == 0, 0.0, amid(saved)), np.full((arms, 3), saved_se)
    if rival is not None:  # what may compare answers saves twice as much
        less[2] = 2 * less[2]
    pairs, compared = (
        None if value is None else Gains(Gain(amid(value), np.full(3, gain_se)), none, none) for value in (gain, rival)
    )
    targets = Targets(np.geomspace(1, 100, 3), np.geomspace(1, 100, 3))
    lucks = np.array([0.01, 0.01 + luck, 0.01 + luck][:arms])
    return Comparison(targets, pairs, compared, Gain(less, spread), ALONE, np.stack([0 * lucks, lucks]))


def say(frontier, kind, target, **figures):
    return Selection(frontier, shown(**figures)).verdict(ROWS.index(kind), target)


SENTENCES = [
    ("single", {"budget": 10.0}, {}, "use middle alone: no cascade is shown to be better"),
    ("pair", {"max_error": 0.05}, {},
     "use small → large: no single model keeps to this limit: large errs on 8.0 %, at $177 per million queries"),
    ("pair", {"error_cost": 0.1}, {"gain": 0.0312, "gain_se": 0.0123},
     "use small → large: $3,120 ± 1,230 per million queries less than large alone, the best single model where one "
     "error counts as $0.1, on queries left out"),
    ("answers", {"lam": 10.0}, {"rival": 0.03},
     "use small → middle → large, asking large where small and middle differ: "
     "$3,000 ± 1,000 per million queries less than the best pair where one error counts as $0.1, on queries left out"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "target", "figures", "sentence"), SENTENCES)
def test_each_arm_of_the_sentence(frontier, kind, target, figures, sentence):
    assert say(frontier, kind, target, **figures) == sentence


@pytest.mark.parametrize("kind", ["single", "pair"])
def test_the_sentence_names_what_the_queries_go_by(frontier, kind):
    """Whatever the rung is by which most of them go; that no cascade is better is not said of a ladder with one."""
    contest, point, target = Selection(frontier, shown(saved=0.3)), ROWS.index(kind), {"budget": 10.0}
    said = contest.verdict(point, target, ["small → middle", "middle"])
    assert said.startswith(
        "use small → middle for some queries and middle for the others: 30.0 ± 1.0 points less error"
    )
    if kind == "single":
        alone = contest.verdict(point, target, ["small", "middle"])
        assert alone == "use small for some queries and middle for the others: no cascade is shown to be better"


def test_a_limit_on_the_error_is_told_by_the_bills(frontier):
    bill = 0.6 * float(frontier.model.cost[2])
    said = Selection(frontier, shown()).verdict(1, {"max_error": 0.1}, cost=bill)
    assert re.fullmatch(r"use small → large: \$70.\d per .* \(40 %\) less than large alone, the cheapest .*", said)
    assert Selection(frontier, shown()).verdict(1, {"max_error": 0.2}, cost=bill) == "use small → large"


def test_a_target_is_told_at_its_own_figures(frontier):
    """At budgets of 1 and 100 the made-up contest shows something else."""
    for budget, words in ((1.0, "900.0 ± 1.0 points less"), (1e3, "900.0 ± 1.0 points more"), (9.0, "3.0 ± 1.0")):
        assert words in say(frontier, "pair", {"budget": budget}, saved=0.03)


def test_words_and_figures_never_contradict_each_other(frontier):
    """The sign of the words is that of the figure, and what is within two standard errors of nothing is as good."""
    misses = []
    limits = [{"budget": 10.0}, {"lam": 10.0}, {"error_cost": 0.1}, {}]
    values = [-0.3, -0.02, -1e-5, 0.0, 1e-5, 0.004, 0.0201, 0.3]
    for kind, target, value in itertools.product(("pair", "answers"), limits, values):
        said = say(frontier, kind, target, gain=value, saved=value, rival=value)
        limited = "budget" in target
        figure = value * (2 if limited and kind == "answers" else 1)
        sure = abs(figure) > 0.02
        told = re.search(r"([\d.,]+) ± ([\d.,]+) (points|per million queries) (less|more)", said)
        scale, rounding = (100, 0.051) if limited else (1e5, 0.51)  # points of errors, or money at $0.1 for one
        good = told is not None and float(told[1].replace(",", "")) == pytest.approx(
            scale * abs(figure), abs=rounding, rel=5e-3
        )
        good &= ("as good as" in said) != sure
        good &= told is not None and (told[4] == "more") == (figure < 0)
        if not good:
            misses.append((kind, target, value, said))
    assert not misses, misses


def test_a_verdict_of_a_log_with_one_model(frontier):
    alone = shown()
    alone = dataclasses.replace(alone, saved=alone.saved.at(slice(1)), luck=alone.luck[:, :1])
    for target in ({"budget": 1.0}, {"lam": 1.0}):
        assert (
            Selection(frontier, alone)
            .verdict(0, target)
            .startswith("use middle alone: no cascade is shown to be better")
        )


@pytest.mark.parametrize(
    ("overall", "counted", "earned"),
    [
        (0.01, Gain(0.01, 1.0), True),
        (0.0019, Gain(0.01, 1.0), False),
        (0.0021, Gain(-2.9, 1.0), True),  # labels left out do not contradict
        (0.3, Gain(-3.1, 1.0), False),
    ],
)
def test_comparing_answers_must_gain_at_the_price_and_over_all(overall, counted, earned):
    gains = Gains(Gain(np.array([0.1, -0.1, 0.0]), np.zeros(3)), Gain(overall, 1.0), counted)
    assert dataclasses.replace(shown(), agreement=gains).agreeing.tolist() == [earned, False, False]
    assert not shown().agreeing.any()


# -- luck: what cascades have more of than single models is added to their errors, and nothing to a single model's
