"""The report: its figures against loops, its words, a page that needs nothing else."""

import dataclasses
import json
import re

import numpy as np
import pytest
from helpers.command_line import fail, run, succeed, write_folder
from helpers.page_samples import MODELS, embedded, policy_for
from helpers.timed_logs import timed_log

import rcjax
from rcjax.policy.spec import Spec, Target
from rcjax.report.page import _policies, context
from rcjax.tuning.diagnostics.findings import worst_verdict
from rcjax.tuning.replaying.comparing import compare_policy

pytestmark = pytest.mark.usefixtures("float64")


# -- figures


def test_a_page_without_a_target_opens_at_the_least_money_for_a_point_more_error(report):
    assert not report.has_target
    assert report.start == Target("match", 0.01)
    assert report.aim == f"at most 1 point more error than {report.tuned.spec.today} alone"
    assert report.headline().lower().startswith(report.tuned.advice.lower())
    assert "beside" not in report.to_json()  # there is no other model that answers are compared with
    assert report.to_json()["target"] == {}
    assert "your target" not in report.to_html()


def test_a_model_that_the_policy_does_not_ask_does_not_decide_whether_it_can_be_trusted(report):
    asked = {name for rung in report.policy.adjacent_rungs for name in rung.models}
    fine = {
        "accuracy_p": 1.0,
        "calibration_error": 0.0,
        "separation": 0.9,
        "slope": 3.0,
        "separation_p": 0.0,
        "certain_share": 0.0,
    }
    small = dataclasses.replace(report.diagnosis.calibration[0], **fine)

    def verdict(model, slope):
        calibration = (dataclasses.replace(small, model=model, slope=slope),)
        diagnosis = dataclasses.replace(report.diagnosis, n_queries=300, calibration=calibration, promise=None)
        return dataclasses.replace(report, diagnosis=diagnosis).verdict

    assert [verdict("another model", slope) for slope in (3.0, -3.0)] == ["fine", "fine"]
    assert [verdict(next(iter(asked)), slope) for slope in (3.0, -3.0)] == ["fine", "bad"]
    badge = re.search(r'id="trust-title">.*<span class="badge (\w+)">', report.to_html())
    assert badge is not None
    assert badge[1] == report.verdict == report.to_json()["verdict"]


def test_findings_on_models_that_the_policy_does_not_ask_stand_apart(report):
    own, others = report.findings
    assert {finding.subject for finding in own} <= {"", *report.asked}
    assert not {finding.subject for finding in others} & {"", *report.asked}
    shown = {(finding.name, finding.subject) for finding in (*own, *others)}
    left_out = {(finding.name, finding.subject) for finding in report.diagnosis.findings} - shown
    assert left_out == {("certain answers", "large")}  # no threshold reads the confidence of the dearest model
    assert len(own) + len(others) + 1 == len(report.diagnosis.findings)
    assert report.verdict == worst_verdict(own)
    assert report.verdict_text.endswith("are fine." if report.verdict == "fine" else "are not fine.")
    assert report.verdict_text.startswith("All ") == (report.verdict == "fine")
    assert report.verdict_text in report.to_html()


def test_figures_beyond_their_limits_that_chance_explains_are_counted_apart(report):
    model = dataclasses.replace(report.diagnosis.calibration[0], model=report.asked[0], calibration_p=0.5)
    pages = []
    for error in (0.05, 0.071):  # the limit is 5 %
        calibration = (dataclasses.replace(model, calibration_error=error),)
        diagnosis = dataclasses.replace(report.diagnosis, calibration=calibration)
        pages.append(dataclasses.replace(report, diagnosis=diagnosis).to_html())
    before, after = (page.count("(beyond its limit by chance)") for page in pages)
    assert after == before + 1
    assert f"findings are fine, {after} of them beyond the limit by chance</summary>" in pages[1]


def test_a_finding_of_the_check_takes_the_place_of_the_one_of_the_diagnosis(report, logs):
    check = rcjax.check_policy(report.policy, logs[1], retuning=False)
    checked = dataclasses.replace(report, check=check)
    found = [finding for group in checked.findings for finding in group]
    names = [(finding.name, finding.subject) for finding in found]
    assert len(names) == len({*names})
    assert {*map(id, check.findings)} <= {*map(id, found)}
    assert ("calibration error", report.asked[-1]) in names


def test_the_reasons_of_a_decision_keep_the_capital_letters_of_names(report, logs):
    check = rcjax.check_policy(report.policy, logs[1], retuning=False)
    for reasons, shown in (((), ""), (("the log lacks GPT-4o", "use Qwen"), " The log lacks GPT-4o. Use Qwen.")):
        decision = dataclasses.replace(check.decision, reasons=reasons)
        page = dataclasses.replace(report, check=dataclasses.replace(check, decision=decision)).to_html()
        assert f"{check.decision.sentence}.</strong>{shown}</p>" in page
        assert "As it stands:" not in page


def test_a_page_on_a_policy_that_broke_its_promise_says_so_before_it_says_use(report, logs):
    check = rcjax.check_policy(report.policy, logs[1], retuning=False)
    decision = dataclasses.replace(check.decision, state="worse than expected", advice="tune again")
    page = dataclasses.replace(report, check=dataclasses.replace(check, decision=decision)).to_html()
    assert page.index("On the fresh queries: tune again (") < page.index('<p class="headline">Keep ')


def test_a_policy_outside_of_the_curve_that_was_tried_is_said_to_be(report):
    promise = report.diagnosis.promise
    dear = dataclasses.replace(promise, predicted_cost=promise.predicted_cost + 1.0)
    outside = dataclasses.replace(report, diagnosis=dataclasses.replace(report.diagnosis, promise=dear))
    told = [context(each)["points"][0]["observed"] for each in (report, outside)]
    assert ["lies outside of the curve that was tried" in text for text in told][1]


@pytest.mark.thorough
def test_figures_of_fresh_queries_stand_in_the_headline(logs):
    train, test = logs
    found = rcjax.make_report(train, test=test, today=MODELS[1], budget=1e-3, replicates=50)
    assert found.diagnosis.held_out
    assert found.fresh == compare_policy(found.policy, test, MODELS[1], money=1e-3)
    assert f"on {test.n_queries} fresh queries it " in found.headline()
    assert "As it was tuned, it " in found.headline()
    page = context(found)
    assert "the tuning has not seen" in page["judged"]
    assert page["promise"].startswith(f"On {test.n_queries} fresh queries")
    for index in (0, page["start"]):
        policy = policy_for(found, page["points"][index]["target"])
        seen = compare_policy(policy, test, MODELS[1])
        told = f"{100 * seen.error:.1f} % error on them, at {found.money.full(seen.cost)}"
        assert page["points"][index]["observed"].startswith(f"This one had {told}")
    again = rcjax.diagnose(rcjax.fit(train), test, training=train, frontier=found.frontier, replicates=50)
    for name, value in vars(again.promise).items():
        np.testing.assert_array_equal(getattr(found.diagnosis.promise, name), value)


def test_a_page_of_a_policy_in_service_that_stays_has_its_intervals_on_this_log(logs):
    train, test = logs
    today = rcjax.tune(test, budget=5e-5, intervals=False).policy
    report = rcjax.make_report(train, match=0.0, today=today, replicates=20)
    expected = report.policy.expected
    assert expected["error_low"] < expected["error"] < expected["error_high"]
    for rung in report.policy.rungs:
        assert rung.expected["cost_low"] < rung.expected["cost"] < rung.expected["cost_high"]
    assert report.headline().startswith("Keep ")
    assert "as before" in report.headline()
    page = report.to_html()
    assert page.startswith("<!doctype html>")
    assert "--today IN_SERVICE.json</span> --out policy.json" in page
    assert "IN_SERVICE.json is the file of the policy in service." in page


def test_the_table_of_the_page_has_the_rungs_that_its_policy_mixes(report):
    own = [part.expected["cost"] for part in (report.policy, *report.policy.adjacent_rungs)]
    shown = [row["cost"] for row in context(report)["rows"]]
    assert {f"${report.money.show(cost)}" for cost in own} <= {*shown}


def test_the_headline_says_that_an_error_is_a_prediction_of_the_model(report):
    predicted = dataclasses.replace(report.frontier, spec=Spec(cascade="full"))
    modelled = dataclasses.replace(report, tuned=dataclasses.replace(report.tuned, frontier=predicted))
    note = "is a prediction of the model, its interval is by the labels of this log"
    assert [note in each.headline() for each in (report, modelled)] == [False, True]


def test_todays_must_be_a_model(logs):
    with pytest.raises(rcjax.LogError, match="today's gpt is not a model of the log: its models are small"):
        rcjax.make_report(logs[0], today="gpt")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["budget", "max_error"])
def test_the_page_opens_at_the_policy_for_the_target(report, logs, name):
    """Between two points of the curve it is a ladder, whose figures the headline has, too."""
    frontier = report.frontier
    dearest, cheapest = float(frontier.cost.max()), float(frontier.cost.min())
    target = (
        {"budget": 0.6 * dearest + 0.4 * cheapest} if name == "budget" else {"max_error": float(frontier.error.max())}
    )
    aimed = rcjax.make_report(logs[0], replicates=50, **target)
    page, expected = context(aimed), aimed.frontier.policy(**target).expected
    point = page["points"][page["start"]]
    assert aimed.to_json()["expected"] == pytest.approx(dict(expected))
    assert point["policy"]["expected"] == pytest.approx(dict(expected))
    assert f"{point['error']} (90 % interval {point['errors']}" in aimed.headline()
    assert "your target" in aimed.to_html()


# -- the page


@pytest.mark.thorough
def test_the_page_needs_nothing_else(page):
    assert len(page.encode()) < 3_000_000
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']+|@import|url\((?!["']?[#d])""", page)
    assert not re.findall(r"https?://(?!www\.w3\.org/)", page)


def test_no_two_elements_have_one_id(page):
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'(?:href="|url\()#([^")]+)', page):
        assert target in ids


def test_names_are_text_and_never_markup(report):
    models = ("<b>one</b>", *MODELS[1:])
    model = dataclasses.replace(report.frontier.model, models=models)
    log = dataclasses.replace(report.log, models=models, prices=None)
    frontier = dataclasses.replace(report.frontier, model=model)
    every = zip(report.tuned.single_models, models, strict=True)
    singles = tuple(dataclasses.replace(each, model=name) for each, name in every)
    policy = frontier.policy_at(0)
    tuned = dataclasses.replace(report.tuned, log=log, frontier=frontier, policy=policy, single_models=singles)
    diagnosis = dataclasses.replace(report.diagnosis, models=models)
    odd = dataclasses.replace(report, tuned=tuned, judged=log, diagnosis=diagnosis)
    html = odd.to_html()
    assert "<b>one</b>" not in html
    assert "&lt;b&gt;one&lt;/b&gt;" in html


def test_every_point_brings_the_policy_of_its_target(report, page):
    points, shared = embedded(page), embedded(page, "shared")
    assert 1 < len(points) <= len(report.frontier.rung_indices) + 1
    for point, (target, policy) in zip(points, _policies(report), strict=True):
        document = shared["policy"] | point["policy"]
        document["provenance"]["kept_sample"] = shared["kept_sample"]
        assert type(policy).from_json(document) == policy
        if target.name == "match":
            assert policy == report.policy
            continue
        assert policy == report.tuned.policy_for(target)
        assert policy_for(report, point["target"]).expected["cost"] == pytest.approx(policy.expected["cost"], rel=1e-5)


@pytest.mark.thorough
def test_every_point_has_its_seconds():
    log, test = timed_log(300, seed=1).split(0.6, seed=0)
    report = rcjax.make_report(log, test=test, replicates=20, error_cost=0.01)
    page = report.to_html()
    points = embedded(page)
    told = report.frontier.seconds
    assert len(points) == len(told.mean)
    kept = 0
    for index, point in enumerate(points):
        policy = point["policy"]
        seconds, tail = policy["expected"]["seconds"], policy["expected"]["seconds_p95"]
        assert float(point["seconds"]) == pytest.approx(seconds, rel=5e-3)
        assert f"{float(f'{tail:.3g}'):g}" in point["tail"]
        if tuple(policy["models"]) == report.frontier.policy_at(index).models:  # no single model stands in its place
            assert (seconds, tail) == pytest.approx((told.mean[index], told.p95[index]))
            kept += 1
    assert kept > len(points) / 2
    assert report.to_json()["frontier"][0]["seconds_p95"] == pytest.approx(float(told.p95[0]))


# -- the command


def test_the_command_writes_a_page(tmp_path):
    folder = write_folder(tmp_path)
    out = tmp_path / "out.html"
    files = folder / "train.csv", "--test", folder / "test.csv", "-o", out
    document = json.loads(succeed("report", *files, "--json"))
    assert document["written"] == str(out)
    assert out.read_text("utf-8").startswith("<!doctype html>")


def test_the_command_refuses_before_any_work(tmp_path):
    folder = write_folder(tmp_path)
    assert "there is no folder" in fail("report", folder / "train.csv", "-o", tmp_path / "none" / "report.html")
    assert "today's gpt is not a model of the log" in fail("report", folder / "train.csv", "--today", "gpt")
    assert run("report").exit_code == 2
    assert run("report", folder / "train.csv", "--budget", "1/M", "--error-cost", "1").exit_code == 2
