"""The report: its figures against loops, its words, a page that needs nothing else."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_line import fail, run, succeed, write_folder
from page_samples import MODELS, embedded, policy_for
from timed_logs import timed_log

import rcjax
from rcjax.policy.ladder import Period
from rcjax.policy.spec import Spec, Target
from rcjax.report.findings import compare
from rcjax.report.page import _option, _policies, context

pytestmark = pytest.mark.usefixtures("float64")


# -- figures


def test_a_model_is_compared_with_the_ladder_for_its_money_and_for_its_errors(report):
    frontier = report.frontier
    cost, error = (np.asarray(each, float)[frontier.rungs] for each in (frontier.cost, frontier.error))
    for j, against in enumerate(report.comparisons):
        assert against.error == pytest.approx(1 - float(report.log.correct[:, j].mean()))
        assert against.cost == float(report.log.cost[j])
        assert (against.at_its_cost is None) == (cost[0] > against.cost * (1 + 1e-9))
        if against.at_its_cost is not None:
            assert against.at_its_cost == pytest.approx(np.interp(against.cost, cost, error), rel=1e-6)
        assert (against.at_its_error is None) == (error[-1] > against.error + 1e-9)
        if against.at_its_error is not None:
            assert against.at_its_error == pytest.approx(np.interp(-against.error, -error, cost), rel=1e-6)


def test_a_target_is_an_option_of_the_command(report):
    targets = [Target(name, 0.00015) for name in ("budget", "max_error", "error_cost", "lam")]
    told = ["--budget 150/M", "--max-error 0.00015", "--error-cost 0.00015", "--error-cost 6666.666667"]
    assert [_option(target) for target in targets] == told
    assert _option(Target("budget", 1e-4), Period(500.0, "month")) == "--budget 500/month --queries 5000000/month"
    assert report.aim == ""
    assert "beside" not in report.to_json()  # there is no other model that answers are compared with


def test_where_no_point_will_do_there_is_none(report):
    assert compare(report.frontier, 0, error=0.0).at_its_error is None
    dear = dataclasses.replace(report.frontier, cost=report.frontier.cost + 1.0)
    assert compare(dear, 0, error=1.0).at_its_cost is None


def with_figures(report, error, cost, alone):
    """The report of a frontier of three points, and of a baseline (error, cost)."""
    first = jax.tree.map(lambda leaf: leaf[:3], (report.frontier.lam, report.frontier.policies, report.frontier.bands))
    lam, policies, bands = first
    frontier = dataclasses.replace(
        report.frontier, lam=lam, policies=policies, bands=bands, error=jnp.asarray(error), cost=jnp.asarray(cost)
    )
    model = dataclasses.replace(frontier.model, cost=jnp.asarray([1e-6, 2e-6, alone[1]]))
    against = compare(dataclasses.replace(frontier, model=model), 2, alone[0])
    return dataclasses.replace(report, frontier=frontier, comparisons=(*report.comparisons[:2], against))


@pytest.mark.parametrize(
    ("error", "cost", "expected"),
    [
        (
            [0.07, 0.1, 0.3],
            [1e-4, 4e-5, 1e-6],
            r"for \$40.0 per million .* 10.0 % \(.*\): 40 % of the cost of large, the same error",
        ),
        ([0.05, 0.06, 0.08], [1e-4, 4e-5, 1e-6], r" 8.0 % \(.*\): 1 % of the cost of large, 2.0 points less error"),
        ([0.12, 0.2, 0.3], [1e-4, 4e-5, 1e-6], "No cascade of these models is expected to do as well for less money"),
    ],
)
def test_the_headline_says_what_is_to_be_had(report, error, cost, expected):
    found = with_figures(report, error, cost, alone=(0.1, 1e-4)).headline()
    assert found.startswith(f"Asking {MODELS[2]} for everything errs on 10.0 %, at $100 per million")
    assert re.search(expected, found)


@pytest.mark.thorough
def test_of_fresh_queries_the_shares_are_those_seen(logs):
    train, test = logs
    found = rcjax.make_report(train, test=test, baseline=MODELS[1], replicates=50)
    np.testing.assert_allclose(found.shares, rcjax.replay(found.frontier, test).share)
    assert found.diagnosis.held_out
    assert found.against.model == MODELS[1]
    page = context(found)
    assert "the tuning has not seen" in page["judged"]
    assert page["tried"].startswith(f"On {test.n_queries} fresh queries")
    for index in (0, page["start"]):
        replayed = rcjax.replay(policy_for(found, page["points"][index]["target"]), test)
        told = f"{100 * float(replayed.error):.1f} % error on them, at {found.money.full(float(replayed.spent))}"
        assert page["points"][index]["tried"].startswith(f"This one had {told}")
    again = rcjax.diagnose(found.model, test, training=train, replicates=50)
    for name, value in again.promise.items():
        np.testing.assert_array_equal(found.diagnosis.promise[name], value)


def test_a_baseline_must_be_a_model(logs):
    with pytest.raises(ValueError, match="baseline 'gpt' is not a model of the log; they are small"):
        rcjax.make_report(logs[0], baseline="gpt")


def test_the_page_opens_at_the_policy_for_the_target(report):
    """Between two points of the curve it is a ladder, whose figures the headline has, too."""
    frontier = report.frontier
    dearest, cheapest = float(frontier.cost.max()), float(frontier.cost.min())
    for target in ({"budget": 0.6 * dearest + 0.4 * cheapest}, {"max_error": float(frontier.error.max())}):
        aimed = dataclasses.replace(report, spec=Spec(**target))
        page, expected = context(aimed), frontier.policy(**target).expected
        point = page["points"][page["start"]]
        assert aimed.to_json()["expected"] == pytest.approx(dict(expected))
        assert point["policy"]["expected"] == pytest.approx(dict(expected))
        assert f"{point['error']} (90 % interval {point['errors']}" in aimed.headline()
        assert len(page["points"]) == len(frontier.rungs) + ("budget" in target)  # else it stands on a rung
    assert "your target" not in report.to_html()


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
    model = dataclasses.replace(report.model, models=models)
    log = dataclasses.replace(report.log, models=models, prices=None)
    frontier = dataclasses.replace(report.frontier, model=model)
    selection = dataclasses.replace(report.selection, frontier=frontier)
    comparisons = tuple(
        dataclasses.replace(each, model=name) for each, name in zip(report.comparisons, models, strict=True)
    )
    odd = dataclasses.replace(
        report, log=log, judged=log, model=model, frontier=frontier, selection=selection, comparisons=comparisons
    )
    html = odd.to_html()
    assert "<b>one</b>" not in html
    assert "&lt;b&gt;one&lt;/b&gt;" in html


def test_every_point_brings_the_policy_of_its_target(report, page):
    points, shared = embedded(page), embedded(page, "shared")
    assert len(points) - len(report.frontier.rungs) in (0, 1)  # where it starts between two points
    for point, (target, policy) in zip(points, _policies(report), strict=True):
        document = shared["policy"] | point["policy"]
        document["provenance"]["reference"] = shared["reference"]
        assert type(policy).from_json(document) == policy
        assert policy == report.frontier.policy(**target.to_json())
        assert policy_for(report, point["target"]).expected["cost"] == pytest.approx(policy.expected["cost"], rel=1e-5)


@pytest.mark.thorough
def test_every_point_tells_its_seconds():
    log, test = timed_log(300, seed=1).split(0.6, seed=0)
    report = rcjax.make_report(log, test=test, replicates=20, error_cost=0.01, second_cost=0.0005)
    page = report.to_html()
    points = embedded(page)
    told = report.frontier.seconds
    assert len(points) == len(told.mean)
    for point, mean, tail in zip(points, told.mean, told.p95, strict=True):
        assert float(point["seconds"]) == pytest.approx(mean, rel=5e-3)
        assert f"{float(f'{tail:.3g}'):g}" in point["tail"]
        assert point["policy"]["expected"]["seconds_p95"] == pytest.approx(tail)
    assert "Costs count $0.0005 for each second of waiting" in page
    assert re.search(r"and took [\d.]+ seconds on average", points[0]["tried"])
    assert report.to_json()["frontier"][0]["seconds_p95"] == pytest.approx(float(told.p95[0]))


# -- the command


def test_the_command_writes_a_page(tmp_path):
    folder = write_folder(tmp_path)
    out = tmp_path / "out.html"
    document = json.loads(succeed("report", folder / "train.csv", "-o", out, "--json"))
    assert document["written"] == str(out)
    assert out.read_text("utf-8").startswith("<!doctype html>")


def test_the_command_refuses_before_any_work(tmp_path):
    folder = write_folder(tmp_path)
    assert "there is no folder" in fail("report", folder / "train.csv", "-o", tmp_path / "none" / "report.html")
    assert "not a model of the log" in fail("report", folder / "train.csv", "--baseline", "gpt")
    assert run("report").exit_code == 2
    assert run("report", folder / "train.csv", "--budget", "1/M", "--error-cost", "1").exit_code == 2
