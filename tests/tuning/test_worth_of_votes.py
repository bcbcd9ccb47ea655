"""Variants of a model compete, and never stand in one cascade."""

import itertools

import jax
import numpy as np
import pytest
from sampled_logs import sampled_frame, sampled_log
from tiers import thorough

import rcjax
from rcjax._base.variants import base_model, rivals
from rcjax.logs.errors import LogError
from rcjax.model.pairs import barred_as_in, barred_pairs
from rcjax.solving.paths import candidate_paths
from rcjax.tuning.agreement_candidates import judge_answers, without_barred_models
from rcjax.tuning.comparison import VotesGain
from rcjax.tuning.cross_validation import longer_cascades
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_candidates import judge_log
from rcjax.tuning.label_choices import without_barred

MODELS = ("small", "small ×3", "medium", "large")


@pytest.fixture(scope="module")
def log():
    return sampled_log()


@pytest.fixture(scope="module")
def model(log):
    return rcjax.fit(log)


def asked(frontier):
    return [[frontier.models[j] for j in np.flatnonzero(row)] for row in np.asarray(frontier.members)]


def is_sound(frontier):
    return all(not rivals(names) for names in asked(frontier))


def test_searches_leave_out_cascades_that_ask_a_model_twice():
    paths = candidate_paths(MODELS, "all")
    assert paths is not None
    allowed = [path for size in range(1, 5) for path in itertools.combinations(range(4), size) if not {0, 1} <= {*path}]
    assert paths == allowed
    assert candidate_paths(("a", "b"), "all") == [(0,), (1,), (0, 1)]
    for search in ("full", "adaptive"):
        with pytest.raises(ValueError, match="small and small ×3 are variants of one model, which no cascade may both"):
            candidate_paths(MODELS, search)
    with pytest.raises(ValueError, match="small → medium → small ×3 asks small twice"):
        candidate_paths(("small", "medium", "small ×3"), [("small", "medium", "small ×3")])


def test_too_many_cascades_are_counted_without_these():
    names = [name for model in "abcd" for name in (model, f"{model} ×2", f"{model} ×3", f"{model} ×5")]
    assert len(candidate_paths(tuple(names), "all") or ()) == 5**4 - 1
    with pytest.raises(ValueError, match="13 models have 8191 subcascades"):
        candidate_paths(tuple(map(str, range(13))), "all")


def test_longer_cascades_ask_each_model_once():
    longer = longer_cascades(4, None, rivals(MODELS))
    assert longer.lengths == (3,)
    members = np.asarray(longer.plan.members)[np.unique(longer.rows)]
    assert sorted(map(tuple, members.astype(int).tolist())) == [(0, 1, 1, 1), (1, 0, 1, 1)]
    assert longer_cascades(3, None, [(0, 1), (0, 2), (1, 2)]).lengths == ()


def test_pairs_of_variants_are_never_the_best(log, model):
    trial = jax.tree.map(np.asarray, judge_log(model.calibrators, log.logprob, log.correct, log.answered, log.cost))
    barred = barred_pairs(log.models)
    assert barred is not None
    left = without_barred(trial, barred)
    variants = barred[trial.first, trial.second]
    assert variants.any()
    assert np.isinf(left.error[variants]).all()
    assert np.array_equal(left.error[~variants], trial.error[~variants])
    alone = without_barred(trial, barred_pairs(log.models, votes=False))
    voting = np.array(["×" in name for name in log.models])
    assert np.array_equal(np.isinf(alone.error), np.isinf(trial.error) | voting[trial.first] | voting[trial.second])
    assert without_barred(trial, None) is trial


@pytest.mark.parametrize("refusal", [None, "priced"])
def test_variants_do_not_confirm_each_other(log, model, refusal):
    from rcjax.frontier.refusal import refusal_at

    how = None if refusal is None else refusal_at(0.3, log.cost.dtype)
    rows = log.logprob, log.correct, log.answered
    trial = judge_answers(model.calibrators, *rows, log.cost, log.answer, Judging(refusal=how))
    left = without_barred_models(trial, barred_pairs(log.models))
    models = [base_model(name) for name in log.models]
    for place in np.flatnonzero(np.isfinite(left.error))[::37]:
        used = [models[j] for j in (left.first[place], left.second[place], left.third[place]) if j >= 0]
        assert len(used) == len({*used})
    assert np.isfinite(left.error).any()
    assert without_barred_models(trial, None) is trial


@pytest.mark.parametrize("options", thorough([{}, {"abstain_price": 0.4}, {"lam": [1e-3, 1e-2, 0.05]}], bool))
def test_a_frontier_has_votes_where_they_are_worth_it(options):
    selection = rcjax.select_frontier(sampled_log(400), **options)
    assert is_sound(selection.frontier)
    assert selection.comparison.votes is not None
    assert selection.comparison.votes.earned
    assert any("small ×3" in names for names in asked(selection.frontier))
    places = [place for place, names in enumerate(asked(selection.frontier)) if "small ×3" in names]
    assert "three samples of small" in selection.verdict(places[0])


@pytest.mark.parametrize("options", thorough([{}, {"abstain_price": 0.4}, {"lam": [1e-3, 1e-2, 0.05]}], bool))
def test_where_votes_have_not_earned_a_place_a_log_is_tuned_as_without_them(log, options, monkeypatch):
    monkeypatch.setattr(VotesGain, "earned", False)
    selection = rcjax.select_frontier(log, **options)
    alone = rcjax.select_frontier(log.select(["small", "medium", "large"]), **options)
    frontier = selection.frontier
    assert frontier.models == log.models
    assert asked(frontier) == asked(alone.frontier)
    for name in ("lam", "error", "cost", "status"):
        np.testing.assert_allclose(getattr(frontier, name), getattr(alone.frontier, name), rtol=1e-6, err_msg=name)
    replayed = [rcjax.replay(one, log) for one in (frontier, alone.frontier)]
    for name in ("error", "cost"):
        np.testing.assert_allclose(*(getattr(one, name) for one in replayed), rtol=1e-6)
    assert (frontier.policies.agreements is None) == (alone.frontier.policies.agreements is None)
    assert selection.comparison.votes is not None
    assert selection.comparison.votes.gain.shape == selection.comparison.lam.shape
    verdict = f"{alone.verdict(0)}; one sample of small is enough"
    assert selection.verdict(0) == verdict


@pytest.mark.thorough
def test_models_that_always_answer_alike_earn_no_votes():
    frame = sampled_frame(200)
    first = frame.unique(["query", "model"], keep="first", maintain_order=True).drop("sample", "cost")
    log = rcjax.read_log(frame.select("query", "model", "sample", "cost").join(first, on=["query", "model"]))
    votes = rcjax.select_frontier(log).comparison.votes
    assert votes is not None
    assert votes.models == ("small",)
    assert not votes.earned
    assert abs(votes.overall) < 0.01


@pytest.mark.parametrize(
    ("overall", "overall_se", "counted", "earned"),
    [
        (0.02, 0.01, 0.0, True),
        (0.01, 0.01, 0.0, False),
        (0.0079, 0.0001, 0.0, False),
        (0.0081, 0.0001, 0.0, True),
        (0.02, 0.01, -2.9, True),
        (0.02, 0.01, -3.1, False),
        (np.nan, 0.01, 0.0, False),
    ],
)
def test_votes_must_gain_and_labels_must_not_contradict(overall, overall_se, counted, earned):
    nothing = np.zeros(3)
    assert VotesGain(("small",), nothing, nothing, overall, overall_se, counted, 1.0).earned == earned


@pytest.mark.thorough
def test_what_votes_are_expected_to_gain_is_what_they_gain():
    votes = rcjax.select_frontier(sampled_log(1200)).comparison.votes
    assert votes is not None
    assert abs(votes.overall - votes.counted) < 2 * votes.counted_se
    assert votes.overall_se < votes.counted_se / 2


def test_intervals_search_among_votes_only_where_the_frontier_did():
    members = np.array([[True, False, True, True]])
    alone = barred_as_in(MODELS, members)
    assert alone is not None
    assert alone.diagonal().tolist() == [False, True, False, False]
    for other in (np.array([[False, True, False, True]]), np.array([[True, False, False, False], [False, True] * 2])):
        assert np.array_equal(barred_as_in(MODELS, other), barred_pairs(MODELS))
    assert barred_as_in(MODELS[1:], members[:, 1:]) is None


def test_cross_validation_says_what_votes_are_worth():
    log = sampled_log(300, samples=5)
    log = log.select([name for name in log.models if name != "medium"])
    selection = rcjax.select_frontier(log)
    votes = selection.comparison.votes
    assert votes is not None
    assert votes.overall > 2 * votes.overall_se  # five independent answers are worth much
    verdicts = {selection.verdict(point) for point in range(len(selection.frontier.error))}
    assert any("samples of small are worth their money: with one sample of each model" in one for one in verdicts)
    alone = [place for place, names in enumerate(asked(selection.frontier)) if not any("×" in name for name in names)]
    assert all(selection.verdict(place).endswith("; one sample of small is enough") for place in alone)


def test_without_variants_nothing_is_compared(log):
    alone = log.select(["small", "medium", "large"])
    plain = sampled_log(votes=1)
    assert rcjax.select_frontier(plain).comparison.votes is None
    one, other = (rcjax.select_frontier(some).frontier for some in (alone, plain))
    assert np.array_equal(np.asarray(one.error), np.asarray(other.error))


def test_searches_by_the_model(log, model):
    assert is_sound(rcjax.solve_frontier(model))
    with pytest.raises(ValueError, match="variants of one model"):
        rcjax.solve_frontier(model, cascades="adaptive")


@pytest.mark.thorough
def test_intervals_tune_again_without_them(log):
    tuned = rcjax.tune(log, budget=12.0)
    assert is_sound(tuned.frontier)
    assert tuned.frontier.bands is not None
    assert all(not rivals(names) for names in tuned.frontier.bands.cascades)
    assert tuned.policy is not None
    again = rcjax.retune(tuned.policy, sampled_log(seed=1), bands=False)
    assert is_sound(again.frontier)
    assert rcjax.load_policy is not None
    assert {*tuned.policy.models} <= {*log.models}


@pytest.mark.thorough
def test_a_learning_curve_and_a_diagnosis_take_variants(log, model):
    curve = rcjax.learning_curve(log, repeats=2)
    assert 0 < curve.asymptote < 1
    diagnosis = rcjax.diagnose(model, log, training=log, replicates=20)
    assert diagnosis.to_json()["models"] == list(log.models)


def test_a_sweep_by_labels_takes_one_variant(log, tmp_path):
    from rcjax.sweeps.problems import check_settings, shape_of

    settings = check_settings("labels", "gumbel", 3, 0, 0, None, None, 8, 9)
    with pytest.raises(LogError, match="takes one variant of each model: read the log with votes=1"):
        shape_of(log, settings)
    assert shape_of(sampled_log(votes=1), settings).models == 3
