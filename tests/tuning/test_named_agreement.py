"""A cascade that the user names: policies that compare answers compete with it, and are used where they gain."""

import json

import numpy as np
import polars as pl
import pytest
from agreement_logs import MODELS, make_log
from command_line import run, succeed

import rcjax
from rcjax.frontier.policies import ABSTAIN
from rcjax.replaying.replay import replay
from rcjax.tuning.agreement_odds import expected_on_log
from rcjax.tuning.named_agreement import named_positions, tune_named, with_agreement

LAM = 1000.0


@pytest.fixture(scope="module")
def log():
    return make_log(300, 0.0, seed=0)


@pytest.fixture(scope="module")
def tuned(log):
    return rcjax.tune(log, cascade=list(MODELS), lam=LAM)


def loss(policy, log, lam=LAM):
    outcome = replay(policy, log)
    return float(outcome.error) + lam * float(outcome.cost)


def test_where_agreement_pays_it_is_used(log, tuned):
    (one,) = tuned.policy.agreements.values()
    assert (one.earlier, one.action, one.model) == ("small", "ask", "large")
    assert tuned.policy.models == MODELS
    assert "asking large where small and medium differ does better (by" in tuned.verdict
    assert "than the cascade small → medium → large" in tuned.verdict
    plain = rcjax.tune(make_log(300, 0.0, seed=0, answers=False), cascade=list(MODELS), lam=LAM, intervals=False)
    fresh = make_log(20_000, 0.0, seed=99)
    assert loss(tuned.policy, fresh) < 0.95 * loss(plain.policy, fresh)
    expected = tuned.policy.expected
    assert expected["error"] == pytest.approx(float(replay(tuned.policy, fresh).error), abs=0.05)
    assert expected["cost"] == pytest.approx(float(replay(tuned.policy, fresh).cost), rel=0.1)
    assert expected["error_low"] < expected["error"] < expected["error_high"]


def test_the_frontier_is_one_and_can_be_saved(tuned, tmp_path):
    frontier = tuned.frontier
    assert frontier.search == (MODELS,)
    assert (np.diff(np.asarray(frontier.lam)) >= 0).all()
    assert (np.diff(np.asarray(frontier.cost)) < 0).all()
    assert (np.diff(np.asarray(frontier.error)) > 0).all()
    frontier.save(tmp_path / "frontier.json")
    again = rcjax.load_frontier(tmp_path / "frontier.json")
    assert again.point(0).to_json()["agreements"] == frontier.point(0).to_json()["agreements"]
    for budget in (5e-5, 1e-4, 2e-4):
        assert frontier.policy(budget=budget).expected["cost"] <= budget


@pytest.mark.parametrize("seed", range(3))
def test_where_it_is_worthless_the_cascade_is_as_named(seed):
    log, plain = make_log(200, 1.0, seed), make_log(200, 1.0, seed, answers=False)
    tuned = rcjax.tune(log, cascade=list(MODELS), lam=LAM, intervals=False)
    assert tuned.frontier.policies.agreements is None
    assert tuned.verdict == (
        "the cascade small → medium → large as named; going by whether answers agree is not shown to do better"
    )
    other = rcjax.tune(plain, cascade=list(MODELS), lam=LAM, intervals=False)
    assert other.verdict is None
    np.testing.assert_array_equal(tuned.frontier.error, other.frontier.error)
    np.testing.assert_array_equal(tuned.frontier.thresholds, other.frontier.thresholds)


@pytest.mark.thorough
def test_two_models_that_may_refuse():
    log = make_log(400, 0.0, seed=2).select(["small", "medium"])
    tuned = rcjax.tune(log, cascade=["small", "medium"], lam=LAM, abstain_price=0.2, intervals=False)
    assert tuned.verdict is not None
    assert tuned.verdict.startswith("refusing where small and medium differ")
    (one,) = tuned.policy.agreements.values()
    assert (one.earlier, one.action) == ("small", "abstain")
    outcome = replay(tuned.policy, make_log(20_000, 0.0, seed=98).select(["small", "medium"]))
    assert float(outcome.abstention) == pytest.approx(tuned.policy.expected["abstention"], abs=0.05)
    # Without refusals there is nothing to do where they differ.
    assert rcjax.tune(log, cascade=["small", "medium"], lam=LAM, intervals=False).verdict is None


@pytest.mark.parametrize("search", ["all", "full", "adaptive", [["small", "large"]], [["small"], list(MODELS)]])
def test_other_searches_are_of_the_model_alone(log, search):
    frontier = rcjax.solve_frontier(rcjax.fit(log), cascades=search, lam=[LAM])
    assert with_agreement(frontier, log) == (frontier, None)


def test_too_few_queries_to_compare_on(log):
    few = log.take(np.arange(9))
    frontier = rcjax.solve_frontier(rcjax.fit(log), cascades=[MODELS], lam=[LAM])
    assert with_agreement(frontier, few)[1] is None


def test_expected_errors_are_those_of_the_default_search(log):
    """Of policies by agreement, what is expected is what `select_frontier` compares them by."""
    model = rcjax.fit(log)
    rows = log.logprob, log.correct, log.answered
    policies = tune_named(model.calibrators, (*rows, log.answer), log.cost, np.array([10.0, 1000.0]), None, (0, 1, 2))
    (mine,) = expected_on_log(model.calibrators, rows, log, [policies], (0, 1, 2))
    np.testing.assert_allclose(mine, expected_on_log(model.calibrators, rows, log, [policies])[0], rtol=1e-5)
    # And of the cascade itself, it is as often wrong as the labels say, on average.
    chain = rcjax.solve_frontier(model, cascades=[MODELS], lam=[10.0, 300.0, 1000.0])
    own = chain.policies.on_host().comparing()
    expected = expected_on_log(model.calibrators, rows, log, [own], (0, 1, 2))[0].mean(-1)
    np.testing.assert_allclose(expected, [float(error) for error in replay(chain, log).error], atol=0.04)


def test_a_search_that_names_no_such_models():
    assert named_positions((("a", "b", "c", "d"),), ("a", "b", "c", "d"), False) is None
    assert named_positions((("b", "c", "d"),), ("a", "b", "c", "d"), False) == (1, 2, 3)
    assert named_positions((("a",),), ("a",), True) is None
    assert named_positions((("a", "b"),), ("a", "b"), True) == (0, 1, ABSTAIN)


@pytest.mark.thorough
def test_tuning_again_and_what_a_check_expects(tuned):
    fresh = make_log(250, 0.0, seed=5)
    again = rcjax.retune(tuned.policy, fresh, bands=False)
    assert list(again.policy.agreements) == ["medium"]
    assert "differ" in again.remarks[0]
    assert not rcjax.check_policy(tuned.policy, fresh).drifted
    for judged in (fresh, tuned.log):  # as it stands, and searched again in five folds
        diagnosis = rcjax.diagnose(tuned.model, judged, frontier=tuned.frontier, replicates=50)
        assert diagnosis.promise is not None
        assert diagnosis.promise["search"] == (MODELS,)


def test_on_the_command_line(log, tmp_path):
    write(tmp_path, log)
    line = "tune", tmp_path / "log.csv", "--cascade", ",".join(MODELS), "--lam", LAM, "--no-bands"
    document = json.loads(succeed(*line, "--json", "--out", tmp_path / "policy.json"))
    assert document["policy"]["agreements"]["medium"]["model"] == "large"
    assert "asking large where small and medium differ" in document["remarks"][0]
    shown = " ".join(succeed(*line).split())
    assert "corrected for the luck of the choice" in shown
    assert "agree? → large" in shown
    evaluated = run("evaluate", tmp_path / "policy.json", tmp_path / "log.csv", "--json")
    assert evaluated.exit_code == 0, evaluated.stderr


def write(folder, log, answers=True):
    codes = np.asarray(log.answer)
    columns = {"query": np.repeat(np.arange(log.n_queries), 3), "model": np.tile(MODELS, log.n_queries)}
    figures = {"logprob": log.logprob, "correct": np.asarray(log.correct).astype(int), "cost": log.query_cost}
    table = pl.DataFrame(columns | {name: np.asarray(values).ravel() for name, values in figures.items()})
    if answers:
        table = table.with_columns(answer=pl.Series([f"said {code}" for code in codes.ravel()]))
    path = folder / ("log.csv" if answers else "plain.csv")
    table.write_csv(path)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--cascade", "full"], "--cascade full searches by the model of confidences alone"),
        (["--cascade", "small,large"], "a cascade goes by it that names three models, or two with --abstain-price"),
        (["--cascade", "small,large", "--abstain-price", "0.3"], None),
        (["--cascade", ",".join(MODELS)], None),
        ([], None),
    ],
)
def test_answers_that_are_not_used_are_told_in_a_line(options, says, log, tmp_path):
    some = log.take(np.arange(60))
    line = "--lam", LAM, "--no-bands", "--json", *options
    told = run("tune", write(tmp_path, some), *line).stderr.splitlines()
    assert [text for text in told if "what was answered is not used" in text] == (
        [] if says is None else [next(text for text in told if says in text)]
    )
    assert "answered is not used" not in run("tune", write(tmp_path, some, answers=False), *line).stderr


@pytest.mark.thorough
def test_a_sweep_does_not_use_answers(log, tmp_path):
    some = log.take(np.arange(60))
    write(tmp_path, some)
    write(tmp_path, some, answers=False)
    (tmp_path / "both.toml").write_text('logs = ["log.csv", "plain.csv"]\nlam = 3\nout = "both"\n')
    swept = run("sweep", tmp_path / "both.toml")
    assert swept.exit_code == 0, swept.stderr
    assert swept.stderr.count("what was answered in 1 log is not used: a sweep is of confidences alone") == 1
    (tmp_path / "one.toml").write_text('logs = ["plain.csv"]\nlam = 3\nout = "one"\n')
    assert "answered" not in run("sweep", tmp_path / "one.toml").stderr
