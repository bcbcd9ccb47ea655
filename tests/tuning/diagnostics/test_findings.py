"""From figures to verdicts: limits, size and chance together, all findings together; what is no drift."""

import dataclasses

import numpy as np
import pytest

import rcjax
from rcjax._base.figures import choose_unit
from rcjax.policy.error_kind import ERRORS
from rcjax.policy.ladder import Queries
from rcjax.policy.spec import Spec
from rcjax.tuning.cross_validation import Gain
from rcjax.tuning.diagnostics.causes import ModelChange
from rcjax.tuning.diagnostics.decision import DecisionGrounds, LimitSaving, Replacement, decide
from rcjax.tuning.diagnostics.diagnosis import ModelCalibration, Promise
from rcjax.tuning.diagnostics.findings import (
    FINDING_KINDS,
    PrimaryFigure,
    PrimaryFigures,
    assess_figure,
    assess_together,
    separate_looks,
)
from rcjax.tuning.diagnostics.policy_check import _LastLook
from rcjax.tuning.diagnostics.weeks import Weeks
from rcjax.tuning.retuning_gain import RetuningGain


@pytest.mark.parametrize(
    "name", [name for name, kind in FINDING_KINDS.items() if kind.limits.bad != kind.limits.doubtful]
)
def test_a_figure_is_judged_by_its_limits(name):
    limits = FINDING_KINDS[name].limits
    sign = 1 if limits.bad > limits.doubtful else -1
    beyond, before = limits.bad + sign * 1e-6, limits.doubtful - sign * 1e-6
    between = (limits.doubtful + limits.bad) / 2
    for by_chance, expected in (
        (False, ("bad", "doubtful", "doubtful", "fine", "fine")),
        (True, ("doubtful", "fine", "fine", "fine", "fine")),
    ):
        figures = beyond, limits.bad, between, limits.doubtful, before
        assert tuple(assess_figure(name, figure, by_chance=by_chance) for figure in figures) == expected
        assert assess_figure(name, np.nan, by_chance=by_chance) == "doubtful"


@pytest.mark.parametrize(("band", "verdict"), [(1.0, "doubtful"), (0.001, "bad")])
def test_a_promise_that_chance_can_break_is_doubtful(band, verdict):
    seen = {"error": np.full(4, 0.25), "cost": np.full(4, 2.0), "predicted_error": np.full(4, 0.2)}
    bands = {"error_band": np.full(4, band), "cost_band": np.full(4, band), "predicted_cost": np.full(4, 2.0)}
    findings = [*Promise("labels", np.ones(4), **seen, **bands).findings()]
    assert [finding.verdict for finding in findings] == [verdict, "fine"]
    assert [bool(finding.advice) for finding in findings] == [True, False]


def test_an_error_and_a_cost_below_the_expected_ones_are_fine():
    """An error that was 3.4 points lower was doubtful, with the advice to label more."""
    seen = {"error": np.full(4, 0.15), "cost": np.full(4, 1.5), "predicted_error": np.full(4, 0.2)}
    bands = {"error_band": np.full(4, 0.001), "cost_band": np.full(4, 0.001), "predicted_cost": np.full(4, 2.0)}
    findings = [*Promise("labels", np.ones(4), **seen, **bands).findings()]
    assert [(finding.verdict, finding.advice) for finding in findings] == [("fine", "")] * 2


# -- of a policy


def finding_of(figure, p_value):
    return FINDING_KINDS["error"].finding("", figure, "it errs", p_value=p_value)


@pytest.mark.parametrize(
    ("figure", "p_value", "verdict"),
    [
        (0.019, 1e-9, "fine"),
        (0.021, 1e-9, "bad"),
        (0.021, 0.09, "doubtful"),
        (0.2, 0.3, "doubtful"),
        (-0.2, 1e-9, "fine"),
    ],
)
def test_a_finding_is_bad_if_it_is_large_and_chance_does_not_explain_it(figure, p_value, verdict):
    (finding,) = assess_together([finding_of(figure, p_value)])
    assert (finding.verdict, bool(finding.advice)) == (verdict, verdict != "fine")


def test_p_values_are_adjusted_for_all_findings_and_looks():
    first, *_ = assess_together([finding_of(0.1, 0.02), finding_of(0.0, 0.9)])
    assert (first.p_value, first.adjusted_p, first.verdict) == (0.02, pytest.approx(0.04), "bad")
    first, *_ = assess_together([finding_of(0.1, 0.002), finding_of(0.0, 0.9)], separate_looks(52))
    assert (first.p_value, first.verdict) == (0.002, "doubtful")
    assert first.adjusted_p == pytest.approx(2 * (1 - 0.998**40))


def model_change(**others):
    figures = {"accuracy": 0.7, "accuracy_tuned": 0.8, "confidence": 0.81, "distance": 0.2, "distance_p": 0.0005}
    figures |= {"calibration_error": 0.11, "calibration_error_tuned": 0.03, "calibration_p": 0.0005, "error_p": 0.002}
    return ModelChange("small", 300, **figures | {"median": 0.7, "median_tuned": 0.9} | others)


def test_every_finding_of_a_change_names_the_model():
    findings = assess_together(model_change().findings(ERRORS))
    assert {(finding.verdict, finding.subject) for finding in findings} == {("bad", "small")}
    assert all("small" in finding.advice for finding in findings)


@pytest.mark.parametrize("error", [0.06, 0.105])
def test_a_calibration_that_is_better_than_when_tuned_is_no_change(error):
    findings = assess_together(model_change(calibration_error=error, calibration_error_tuned=0.11).findings(ERRORS))
    assert {finding.name: finding.verdict for finding in findings}["calibration error"] == "fine"


@pytest.mark.parametrize(("p_value", "verdict"), [(0.01, "bad"), (0.05, "doubtful"), (np.nan, "doubtful")])
def test_a_figure_beyond_its_limit_is_doubtful_if_chance_explains_it(p_value, verdict):
    zero = dict.fromkeys((field.name for field in dataclasses.fields(ModelCalibration)), 0.0)
    small = ModelCalibration(**zero | {"model": "small", "calibration_error": 0.12, "calibration_p": p_value})
    assert {finding.name: finding.verdict for finding in small.findings()}["calibration error"] == verdict


def test_a_confidence_that_separates_few_answers_well_is_not_said_to_gain_little():
    fine = dict.fromkeys((field.name for field in dataclasses.fields(ModelCalibration)), 0.0)
    small = ModelCalibration(**fine | {"model": "small", "separation": 1.0, "slope": 3.0, "separation_p": 0.2})
    found = {finding.name: finding for finding in small.findings()}["separation"]
    assert (found.verdict, "gains little" in found.advice) == ("doubtful", False)
    assert "in 100.0 % of cases (by chance 50 %): but chance alone can make that" in found.advice
    weak = {finding.name: finding for finding in dataclasses.replace(small, separation=0.646).findings()}["separation"]
    assert (weak.verdict, "gains little" in weak.advice) == ("bad", True)


def figure(seen, expected, p_value=0.5, n=1000, before=300):
    return PrimaryFigure(seen, expected, 0.02, p_value, n, before)


SAME = figure(0.2, 0.2)
BETTER = RetuningGain(0.2, Gain(0.02, 0.005), 1000.0, 500)
MONEY = choose_unit([0.2])
TAKEN, ALIKE, LEFT = Replacement(0.02, held_out=BETTER), Replacement(0.001), Replacement(-0.02)


def decided(error=SAME, cost=SAME, replacement=None, difference=None, **others):
    figures = PrimaryFigures(error, cost, difference)
    primary = assess_together(figures.find(Spec()), separate_looks(others.get("looks", 1)))
    return decide(DecisionGrounds(figures, primary, [], MONEY, **{"tuned_on": 285} | others), replacement)


def test_a_log_of_few_labels_replaces_no_policy():
    few = decided(figure(0.2, 0.2, n=140), replacement=TAKEN, unlabelled=100)
    assert (few.tune_again, few.gain) == (False, "")
    assert few.reasons == ("a log with fewer than 100 labels and unlabelled queries replaces no policy",)
    assert decided(figure(0.2, 0.2, n=240), replacement=TAKEN, unlabelled=100).tune_again


@pytest.mark.parametrize(
    ("cost", "state", "remarks"),
    [
        (figure(0.1, 0.2, 1 - 1e-9), "as expected", 1),
        (figure(0.3, 0.2, 1e-9), "worse than expected", 0),
        (figure(0.1, 0.2, 0.7), "as expected", 0),  # chance
        (figure(0.198, 0.2, 1 - 1e-9), "as expected", 0),  # too little to matter
    ],
)
def test_only_a_higher_cost_than_promised_is_drift(cost, state, remarks):
    found = decided(cost=cost)
    assert (found.state, found.alarm) == (state, state == "worse than expected")
    looked = _LastLook(PrimaryFigures(cost, cost), cost, [], np.zeros(0), [], None, None)
    assert len([*looked.remarks(MONEY, ERRORS)]) == remarks


def test_a_policy_as_good_replaces_only_a_policy_that_broke_its_promise():
    broken = figure(0.3, 0.2, 1e-9)
    assert [decided(replacement=one).tune_again for one in (TAKEN, ALIKE, LEFT)] == [True, False, False]
    assert [decided(broken, replacement=one).tune_again for one in (TAKEN, ALIKE, LEFT)] == [True, True, False]


@pytest.mark.parametrize(
    ("gap", "title", "tail"),
    [
        (0.004, "not shown to keep the margin", ", at worst (95 %) 1.4 points more, over the margin of 1 point;"),
        (0.0001, "the margin is kept", ", within the margin of 1 point;"),
        (-0.016, "the margin is kept", ";"),
        (0.02, "", ", over the margin of 1 point ("),
    ],
)
def test_a_margin_is_said_to_be_kept_only_if_its_upper_end_is_within_it(gap, title, tail):
    found = decided(difference=PrimaryFigure(gap, 0.01, 0.006, 0.9, 1000, 0, rival="large alone"))
    assert found.title == title
    assert f"large alone on the same queries{tail}" in found.sentence
    assert found.headline.startswith(title or "doubtful")
    assert ("log and label about 1,700 more queries" in found.advice) == (gap == 0.004)


@pytest.mark.parametrize(("rise", "tail"), [(0.03, ", and so are today's;"), (0.0, ";"), (None, ";")])
def test_errors_above_plan_are_mentioned_beside_a_margin(rise, tail):
    """A chip "as expected" stood above an error of 7.3 % where 4.1 % were expected."""
    found = decided(figure(0.235, 0.2, 0.04), difference=MARGIN, todays_rise=rise)
    assert found.state == "as expected"
    assert f"; errors are 3.5 points above plan{tail}" in found.sentence


@pytest.mark.parametrize(
    ("se", "title", "advice"),
    [(0.001, "as expected but for prices", "keep the policy"), (0.01, "not shown to keep the margin", "to show that")],
)
def test_changed_prices_are_no_sampling_error(se, title, advice):
    dearer = figure(0.26, 0.2, 0.14)
    found = decided(cost=dearer, difference=dataclasses.replace(MARGIN, se=se), repriced=True)
    assert (found.state, found.title) == ("doubtful", title)
    assert found.sentence.endswith("30.0 % more than the $200 expected at the old prices")
    assert found.advice.startswith(advice)
    assert "may be chance" in decided(cost=dearer, difference=MARGIN).sentence


def test_a_policy_as_expected_is_fine_to_keep_where_another_saves():
    saving = Replacement(-0.01, saving=LimitSaving(0.309, 0.0, 0.0, 0.01))
    found = decided(difference=MARGIN, replacement=saving)
    assert (found.tune_again, found.gain) == (True, "save 31 % of its bill")
    assert decided(replacement=TAKEN).gain == "gain what 2.0 points of error are worth"
    assert decided(figure(0.3, 0.2, 1e-9), replacement=TAKEN).gain == decided(replacement=LEFT).gain == ""


def test_an_improvement_has_its_sign_and_is_no_alarm():
    found = decided(figure(0.1, 0.2, 1 - 1e-6))
    assert (found.state, found.alarm) == ("better than expected", False)
    assert "10.0 ± 2.0 points less than the 20.0 % expected" in found.sentence


@pytest.mark.parametrize(
    ("figures", "said", "advice"),
    [
        ({"n": 100}, "the 100 queries of this log are too few to tell", "log and label more queries"),
        ({"n": 1500}, "the 285 queries that the policy was tuned on are too few to tell", "keep the policy"),
        ({"n": 100, "unlabelled": 7}, "the 93 labels of this log are too few", "label the 7 queries without a label"),
    ],
)
def test_more_labels_are_advised_only_where_they_would_decide(figures, said, advice):
    others = {"unlabelled": figures.pop("unlabelled", 0)}
    found = decided(figure(0.25, 0.2, 0.09, **figures), **others)
    assert (found.state, found.alarm) == ("doubtful", False)
    assert said in found.sentence
    assert found.advice.startswith(advice)


def test_queries_are_too_few_for_the_figure_that_is_in_doubt():
    """Here the money: few queries were tuned on, and the difference, which has no promise, is not in doubt."""
    same = dataclasses.replace(figure(0.0, 0.01, before=0), rival="large alone")
    found = decided(cost=figure(0.23, 0.2, 0.03, n=1500, before=20), difference=same, tuned_on=20)
    assert found.state == "doubtful"
    assert "the 20 queries that the policy was tuned on are too few to tell" in found.sentence


def test_a_difference_names_its_rival():
    """Beside another model that is in use today: the margin is still beside the one that it was tuned for."""
    over = dataclasses.replace(figure(0.03, 0.01, 1e-6, before=0), rival="large alone")
    found = decided(difference=over, replacement=LEFT)
    assert "3.0 ± 2.0 points more error than large alone on the same queries, over the margin of 1" in found.sentence
    assert found.advice == "see what has changed, and use large alone: nothing better is shown yet"
    same = dataclasses.replace(figure(0.0001, 0.01, 1.0, before=0), rival="large alone")
    same = decided(difference=same, replacement=LEFT)
    assert "the policy has the same error (± 2.0 points) as large alone on the same queries" in same.sentence


def test_a_difference_stands_beside_its_margin_and_a_bill_has_the_unit_of_the_tuning():
    found = dataclasses.replace(figure(0.003, 0.01, 0.9, before=0), rival="large alone").error_finding("difference")
    assert (found.figure, found.kind.label) == (0.003, "error above today's")
    assert found.kind.limits == pytest.approx((0.01, 0.03))
    monthly = figure(3e-4, 2e-4, 1e-9).money_finding(Spec(queries=Queries(2e6, "month")))
    assert monthly.advice.startswith("the policy costs $600 a month, 50.0 % more than the $400 expected: ")


def test_a_figure_beyond_its_limit_names_the_limit():
    assert (
        "more than the $200 expected (above the limit of 5.0 %, p = " in decided(cost=figure(0.22, 0.2, 0.01)).sentence
    )
    assert "expected (above the limit of 2.0 points, p = " in decided(figure(0.25, 0.2, 1e-6)).sentence


MARGIN = dataclasses.replace(figure(-0.003, 0.01, 1.0, before=0), rival="large alone")


@pytest.mark.parametrize("replacement", [None, TAKEN])
def test_a_policy_that_errs_as_its_rival_far_above_its_promise_is_not_kept(replacement):
    """Labels are inverted, say: the policy has 87 % error, and today's model has as much."""
    found = decided(figure(0.872, 0.189, 1e-12), difference=MARGIN, replacement=replacement)
    assert (found.state, found.alarm, found.tune_again) == ("something else has changed", True, False)
    assert found.headline == (
        "something else has changed: the policy errs on 87.2 %, 18.9 % when tuned, and large alone as much more: look "
        "at labels, prompts and provider first"
    )
    assert "keep the policy" not in found.advice
    broken = dataclasses.replace(figure(0.03, 0.01, 1e-6, before=0), rival="large alone")
    both = decided(figure(0.872, 0.189, 1e-12), difference=broken)
    assert both.state == "worse than expected"
    assert "it errs on 87.2 %, 68.3 ± 2.0 points more than the 18.9 % expected" in both.sentence
    harder = decided(figure(0.23, 0.19, 1e-12), difference=MARGIN)  # as questions may be
    assert harder.state == "as expected"


@pytest.mark.parametrize(("p_value", "state"), [(0.001, "worse than expected"), (0.3, "doubtful")])
def test_the_difference_at_worst_that_was_printed_belongs_to_the_verdict(p_value, state):
    found = decided(difference=dataclasses.replace(figure(0.012, 0.005, p_value), rival="large alone"))
    assert found.state == state
    assert "it has 1.2 ± 2.0 points more error than large alone, at worst 0.5 points more when tuned (p = " in (
        found.sentence
    )
    if found.alarm:
        assert "and use large alone" in decided(difference=worst(0.012), replacement=LEFT).advice


def worst(seen):
    return dataclasses.replace(figure(seen, 0.005, 0.001), rival="large alone")


def test_a_policy_over_its_margin_is_not_as_promised_and_both_p_values_are_named():
    over = dataclasses.replace(figure(0.022, 0.01, 0.0085, before=0), rival="large alone", se=0.005)
    once, weekly = decided(difference=over), decided(difference=over, looks=52)
    assert (once.state, weekly.state) == ("worse than expected", "doubtful")
    assert "over the margin of 1 point (p = 0.0085);" in once.sentence
    looks = "(p = 0.0085 by these queries alone; 0.87 adjusted for 3 tests and 52 weekly looks, --looks);"
    assert looks in weekly.sentence
    three = decided(difference=dataclasses.replace(over, p_value=0.03))
    assert "over the margin of 1 point (p = 0.03; 0.09 adjusted for 3 tests);" in three.sentence
    assert weekly.sentence.endswith("too few to tell; at this excess some 1,900 in 8 weeks would")
    assert decided(difference=dataclasses.replace(over, p_value=0.6)).state == "doubtful"


def test_a_budget_is_said_to_be_kept_only_if_the_bill_is_within_it():
    cheapest = figure(0.05, 0.2, 1.0, before=0)
    kept, over = (decided(cost=cheapest, bill=bill).sentence for bill in (0.2001, 0.22))
    assert kept.endswith("it costs $200 per thousand queries, within its budget of $200")
    assert "it costs $220 per thousand queries here, 10.0 % over its budget of $200, which the service" in over


@pytest.mark.parametrize("error", [SAME, figure(0.3, 0.2, 1e-6), figure(0.25, 0.2, 0.09), figure(0.1, 0.2, 1 - 1e-6)])
@pytest.mark.parametrize("replacement", [None, TAKEN, LEFT])
def test_the_advice_is_to_tune_again_exactly_if_retune_would_write(error, replacement):
    found = decided(error, replacement=replacement)
    assert found.tune_again == (replacement is TAKEN) == ("tune again" in found.advice.replace("to tune again", ""))


# -- weeks


def test_weeks_count_back_from_the_last_query():
    day = 86_400.0
    weeks = Weeks(np.array([9, 8, 8, 7, 0, 0]), 1_767_571_200.0)
    assert weeks.in_window.tolist() == [False, False, False, True, True, True]
    looks = {ago: (int(rows.sum()), int(earlier.sum())) for ago, rows, earlier in weeks.windows()}
    assert (looks[0], looks[1], looks[9]) == ((3, 3), (3, 1), (1, 0))
    assert weeks.first_day(1) == "2025-12-22"
    log = rcjax.sample_log(64, seed=0)
    assert Weeks.of(log) == (pytest.approx(np.zeros(64)), None)
    times = tuple(np.arange(64) * day)
    ago = Weeks.of(log.take(slice(None)).__class__(**vars(log) | {"time": times})).ago
    assert (ago[0], ago[-1], ago[-8]) == (9, 0, 1)


def test_a_change_is_dated_to_the_week_that_it_began_in():
    rng = np.random.default_rng(0)
    ago = np.repeat(np.arange(7, -1, -1), 100)
    values = rng.random(800) < np.where(ago <= 2, 0.3, 0.1)
    assert Weeks(ago, 1e9).start_of_rise(values.astype(float), 0.1) == 2


@pytest.mark.thorough
@pytest.mark.usefixtures("float64")
def test_no_error_among_a_dozen_queries_is_no_drift():
    """Their spread is 0, and any promise was then missed by many standard errors."""
    log = rcjax.sample_log(600, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    train, fresh = log.take(slice(300)), log.take(slice(300, 600))
    policy = rcjax.tune(train, lam=1000.0, cascade="full", intervals=False).policy
    right = np.flatnonzero(np.asarray(fresh.correct).all(1))[:12]
    found = rcjax.check_policy(policy, fresh.take(right), retuning=False)
    assert (found.error.observed, found.drifted, found.decision.state) == (0.0, False, "doubtful")
