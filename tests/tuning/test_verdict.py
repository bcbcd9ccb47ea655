"""What is said of a policy that was chosen: every arm of the sentence, and never against its figures."""

import dataclasses
import itertools
import re

import numpy as np
import pytest

import rcjax
from rcjax.frontier.policies import Agreements, Policies
from rcjax.tuning.comparison import AtBudgets, AtErrors, Comparison, Gain, Gains, Luck, tell_choice, tell_corrections
from rcjax.tuning.select import Selection

pytestmark = pytest.mark.usefixtures("float64")

NAMES = ("small", "middle", "large")
COST = {1: 1.0, 2: 10.0, 3: 100.0}
MEMBERS = {"single": [0, 1, 0], "pair": [1, 0, 1], "answers": [1, 1, 1]}
ROWS = tuple(MEMBERS)
ALONE = np.array([0.3, 0.2, 0.08])  # how often each model errs


@pytest.fixture(scope="module")
def frontier(float64):
    """A point of each kind, at λ = 10 and a cost of 10."""
    log = rcjax.sample_log(60, seed=0).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    base = rcjax.solve_frontier(dataclasses.replace(rcjax.fit(log), models=NAMES), lam=[1.0])
    members = np.array([MEMBERS[row] for row in ROWS], bool)
    agreements = Agreements.none(members.shape)
    agreements.earlier[2:, 1], agreements.differ[2:, 1] = 0, 2
    policies = Policies.of_cascades(np.where(members, 0.5, 1.0), members, agreements=agreements)
    figures = np.full(len(ROWS), 10.0)
    return dataclasses.replace(base, lam=figures, cost=figures, error=figures / 100, policies=policies)


def shown(gain=0.0, gain_se=0.01, saved=0.0, saved_se=0.01, rival=None, luck=0.02):
    """A contest that shows at the middle of three prices, and budgets, what is given; elsewhere far more."""

    def amid(value):
        return np.array([9.0, value, -9.0])

    none = Gain(0.0, 0.0)
    pairs = Gains(Gain(amid(gain), np.full(3, gain_se)), none, none)
    arms = 2 + (rival is not None)
    less = np.where(np.arange(arms)[:, None] == 0, 0.0, amid(saved))
    spreads = np.full((arms, 3), saved_se)
    if rival is not None:  # what may compare answers saves twice as much
        less[2] = 2 * less[2]
    at = AtBudgets(np.geomspace(1, 100, 3), Gain(less, spreads))
    money = 1e-4 * less  # of bills of 1e-4: a share of them is told as it is of errors
    spared = Gain(money, 1e-4 * spreads)
    errors = AtErrors(np.array([0.05, 0.1, 0.15]), np.full((arms, 3), 1e-4), spared, ALONE)
    lucks = np.array([0.01, 0.01 + luck, 0.01 + luck][:arms])
    compared = None if rival is None else Gains(Gain(amid(rival), np.full(3, gain_se)), none, none)
    luck = Luck(0 * lucks, lucks)
    return Comparison(np.geomspace(1, 100, 3), pairs, compared, at_budgets=at, at_errors=errors, luck=luck)


def say(frontier, kind, target, **figures):
    return Selection(frontier, shown(**figures)).verdict(ROWS.index(kind), target)


SENTENCES = [
    ("single", {"budget": 10.0}, {}, "use middle alone: no cascade is shown to be better at this budget"),
    ("single", {"max_error": 0.1}, {}, "use middle alone: no cascade is shown to cost less within this limit"),
    ("single", {"lam": 10.0}, {}, "use middle alone: no cascade is shown to be better"),
    ("single", {}, {"rival": 0.1},
     "use middle alone: no cascade is shown to be better, nor is going by whether answers agree"),
    ("pair", {"budget": 10.0}, {"saved": 0.031, "saved_se": 0.009},
     "use small → large: 3.1 ± 0.9 points less error than the best single model for the same money, "
     "on queries left out"),
    ("pair", {"budget": 10.0}, {"saved": 0.017, "saved_se": 0.009},
     "use small → large, which is not shown to beat the best single model for the same money: "
     "1.7 ± 0.9 points less error on queries left out"),
    ("pair", {"max_error": 0.1}, {"saved": -0.02, "saved_se": 0.009},
     "use small → large, which is not shown to cost less than large alone (of the least error): "
     "$2.00 ± 0.900 per million queries (2 %) more on queries left out"),
    ("pair", {"max_error": 0.1}, {"saved": 0.031, "saved_se": 0.009},
     "use small → large: $3.10 ± 0.900 per million queries (3 %) less than large alone (of the least error), "
     "on queries left out"),
    ("pair", {"max_error": 0.05}, {},
     "use small → large: no single model keeps to this limit: large errs on 8.0 %, at $177 per million queries"),
    ("answers", {"max_error": 0.1}, {"rival": 0.0, "saved": 0.03, "saved_se": 0.01},
     "use small → middle → large, asking large where small and middle differ: "
     "$6.00 ± 1.00 per million queries (6 %) less than large alone (of the least error), on queries left out"),
    ("pair", {"error_cost": 0.1}, {"gain": 0.0312, "gain_se": 0.0123},
     "use small → large: $3,120 ± 1,230 per million queries less than the best single model where one error counts as "
     "$0.1, on queries left out"),
    ("pair", {"lam": 10.0}, {"gain": 0.02, "gain_se": 0.0123},
     "use small → large, which is not shown to beat the best single model where one error counts as $0.1: "
     "$2,000 ± 1,230 per million queries less on queries left out"),
    ("pair", {"lam": 10.0}, {"gain": -0.02, "gain_se": 0.0123},
     "use small → large, which is not shown to beat the best single model where one error counts as $0.1: "
     "$2,000 ± 1,230 per million queries more on queries left out"),
    ("answers", {"lam": 10.0}, {"rival": 0.03},
     "use small → middle → large, asking large where small and middle differ: "
     "$3,000 ± 1,000 per million queries less than the best pair where one error counts as $0.1, on queries left out"),
    ("answers", {"budget": 10.0}, {"rival": 0.0, "saved": 0.03, "saved_se": 0.01},
     "use small → middle → large, asking large where small and middle differ: "
     "6.0 ± 1.0 points less error than the best single model for the same money, on queries left out"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "target", "figures", "sentence"), SENTENCES)
def test_each_arm_of_the_sentence(frontier, kind, target, figures, sentence):
    assert say(frontier, kind, target, **figures) == sentence


def test_a_target_is_told_at_its_own_figures(frontier):
    """At budgets of 1 and 100, and at an error of 15 %, the made-up contest shows something else."""
    for budget, words in ((1.0, "900.0 ± 1.0 points less"), (1e3, "900.0 ± 1.0 points more"), (9.0, "3.0 ± 1.0")):
        assert words in say(frontier, "pair", {"budget": budget}, saved=0.03)
    said = say(frontier, "pair", {"max_error": 0.25}, saved=0.03)
    assert "is not shown to cost less than middle alone (the cheapest within this limit): $900" in said


def test_words_and_figures_never_contradict_each_other(frontier):
    """The sign of the words is that of the figure, and only what is above two standard errors is shown."""
    misses = []
    limits = [{"budget": 10.0}, {"lam": 10.0}, {"error_cost": 0.1}, {}]
    values = [-0.3, -0.02, -1e-5, 0.0, 1e-5, 0.004, 0.0201, 0.3]
    for kind, target, value in itertools.product(("pair", "answers"), limits, values):
        said = say(frontier, kind, target, gain=value, saved=value, rival=value)
        limited = "budget" in target
        figure = value * (2 if limited and kind == "answers" else 1)
        sure = figure > 0.02
        told = re.search(r"([\d.,]+) ± ([\d.,]+) (points|per million queries) (less|more)", said)
        scale, rounding = (100, 0.051) if limited else (1e5, 0.51)  # points of errors, or money at $0.1 for one
        good = told is not None and float(told[1].replace(",", "")) == pytest.approx(
            scale * abs(figure), abs=rounding, rel=5e-3
        )
        good &= ("is not shown" in said) != sure
        good &= told is not None and (told[4] == "more") == (figure < 0)
        if not good:
            misses.append((kind, target, value, said))
    assert not misses, misses


def test_a_verdict_of_a_log_with_one_model(frontier):
    alone = shown()
    at = alone.at_budgets
    one = dataclasses.replace(at, saved=at.saved.at(slice(1)))
    alone = dataclasses.replace(alone, at_budgets=one, luck=Luck(*(luck[:1] for luck in alone.luck)))
    for target in ({"budget": 1.0}, {"lam": 1.0}):
        assert tell_choice(frontier, alone, 0, target).startswith("use middle alone: no cascade is shown to be better")
    assert "raised" not in tell_corrections(frontier, alone, "budget")


@pytest.mark.parametrize(
    ("luck", "cascades", "raised"),
    [
        (0.02, True, "that of cascades is raised by 2 points"),
        (0.0034, True, "raised by 0.34 points"),
        (0.0, True, ""),
        (-0.1, True, ""),
        (0.02, False, ""),
    ],
)
def test_what_is_counted_and_what_is_corrected(frontier, luck, cascades, raised):
    rows = slice(None) if cascades else slice(1)
    own = dataclasses.replace(frontier, policies=frontier.policies.take(rows))
    said = tell_corrections(own, shown(luck=luck), "budget")
    assert "raised" not in tell_corrections(own, shown(luck=luck), "lam")  # whose luck is none there
    assert said.startswith("costs are the bills of these queries, and the error of single models is counted on them")
    assert raised in said
    assert ("raised" in said) is bool(raised)
