"""What is tuned on a biased log does not replace a policy: answers that are missing, one question a hundred times."""

import dataclasses
import json
import re

import jax
import numpy as np
import polars as pl
import pytest

import rcjax
from rcjax.logs.log import FailedCalls, HandLabels
from rcjax.policy.error_kind import ERRORS
from rcjax.policy.ladder import Period, with_following, with_provenance
from rcjax.tuning.cross_validation import Gain
from rcjax.tuning.diagnostics import decision
from rcjax.tuning.diagnostics.decision import LimitSaving, Replacement, assess_replacement
from rcjax.tuning.diagnostics.findings import assess_missing_answers, assess_sample
from rcjax.tuning.retuning_gain import RetuningGain

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("small", "large")
N = 192


@pytest.fixture(scope="module")
def asked():
    """(logprob, answer) by query and model: the small one differs from the large one where it is unsure."""
    rng = np.random.default_rng(3)
    sure = rng.uniform(size=3 * N)
    same = rng.uniform(size=3 * N) < 0.35 + 0.65 * sure
    return [
        ((np.log(0.02 + 0.97 * p), "A" if agrees else "B"), (np.log(rng.uniform(0.6, 0.99)), "A"))
        for p, agrees in zip(sure.tolist(), same.tolist(), strict=True)
    ]


def read(path, asked, failed=(), probes=0, digests=True):
    """The log of a service: queries that all models were asked, of some the reference failed, then probes."""
    path = path.with_suffix(".jsonl")
    lines, probe = [], next(index for index, (small, large) in enumerate(asked) if small[1] == large[1])
    for number in range(len(asked) + probes):
        index = number if number < len(asked) else probe
        for model, (logprob, answer), cost in zip(MODELS, asked[index], (1e-5, 2e-4), strict=True):
            fails = model == "large" and number in failed
            row = {"call_log": 1, "query": f"q{number}", "model": model, "shadow": True, "cost": cost}
            failure = {"logprob": None, "answer": None, "error": "timed out"} if fails else {}
            digest = {"prompt_digest": f"d{index}"} if digests else {}
            lines.append(json.dumps(row | {"logprob": logprob, "answer": answer, "error": None} | failure | digest))
    path.write_text("\n".join(lines))
    return rcjax.read_log(path, reference="large")


@pytest.fixture(scope="module")
def policy(asked, tmp_path_factory, float64):
    log = read(tmp_path_factory.mktemp("replacement") / "log", asked[: 2 * N])
    return rcjax.tune(log, max_error=0.05, intervals=False).policy


@pytest.fixture
def reasons(monkeypatch):
    """Why the policy tuned again on a log, or another one, does not replace one that it gains on by so much."""

    def against(policy, log, after=None, mean=0.1):
        gain = RetuningGain(0.2, Gain(mean, 0.01), 1000.0, N)
        monkeypatch.setattr(decision, "held_out_gain", lambda *_: gain)
        tuned = rcjax.retune(policy, log, intervals=False)
        return list(assess_replacement(policy, after or tuned.policy, log, tuned.log).faults)

    return against


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::rcjax.logs.LeftOutWarning")
def test_a_fair_log_is_learnt_from_and_a_biased_one_is_not(policy, asked, reasons, tmp_path):
    fresh = asked[2 * N :]
    hard = [index for index, (small, large) in enumerate(fresh) if small[1] != large[1]]
    assert reasons(policy, read(tmp_path / "fair", fresh)) == []
    lost = read(tmp_path / "lost", fresh, failed=hard)
    (lacking,) = reasons(policy, lost)
    assert lacking.startswith(
        f"an answer is missing for {len(hard)} of {N} queries, most often one of large, the reference:"
    )
    few = read(tmp_path / "few", fresh, failed=hard[:9])
    assert assess_missing_answers(few, few.models).verdict == "fine"  # 4.7 %
    (flooded,) = reasons(policy, read(tmp_path / "flooded", fresh[:40], probes=400, digests=False))
    assert "queries that this policy carries, the new policy has " in flooded


@pytest.mark.filterwarnings("ignore::rcjax.logs.LeftOutWarning", "ignore::rcjax.logs.IncompleteLogWarning")
def test_a_call_that_was_not_made_has_not_failed(tmp_path):
    """A log that two policies share: calls failed of two queries of the first and of 20 that were not shadowed."""
    path, lost = (
        tmp_path / "shared.jsonl",
        {(3, "small"), (4, "large"), (45, "large"), *((i, "small") for i in range(80, 100))},
    )
    row = {"call_log": 1, "cost": 1e-5, "logprob": -0.2, "answer": "A", "error": None}
    rows = [
        row
        | {"query": f"q{i}", "model": model, "shadow": i < 80}
        | ({"error": "timed out"} if (i, model) in lost else {})
        for i in range(100)
        for model in ("other" if 40 <= i < 80 else "small", "large")
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    log = rcjax.read_log(path, reference="large")
    assert assess_missing_answers(log, ("small", "large")).figure == 2 / 40
    assert assess_missing_answers(log, ("other", "large")).figure == 1 / 40
    assert assess_missing_answers(log, log.models).figure == 0  # no query went to all three


@pytest.mark.filterwarnings("ignore::rcjax.logs.LeftOutWarning", "ignore::rcjax.logs.IncompleteLogWarning")
@pytest.mark.parametrize("model", MODELS)
def test_answers_of_a_table_failed_if_they_are_missing_by_confidence(asked, model):
    """A table has no rows of failed calls: of those missing at random nobody asked for an answer."""
    rows = [
        {"query": i, "model": name, "logprob": reply[0], "answer": reply[1], "cost": 1e-5, "correct": 1}
        for i, answers in enumerate(asked)
        for name, reply in zip(MODELS, answers, strict=True)
    ]
    other = 1 - MODELS.index(model)
    hard = {i for i, answers in enumerate(asked) if answers[other][0] < np.quantile([a[other][0] for a in asked], 0.1)}
    for lost, verdict in ((hard, "bad"), ({*range(0, 3 * N, 5)}, "fine")):
        table = pl.DataFrame([row for row in rows if row["model"] != model or row["query"] not in lost])
        for options in ({"reference": "large"}, {}):
            finding = assess_missing_answers(rcjax.read_log(table, **options), MODELS)
            assert (finding.verdict, finding.figure) == (verdict, len(lost) / (3 * N) if verdict == "bad" else 0)


@pytest.mark.filterwarnings("ignore::rcjax.logs.LeftOutWarning", "ignore::rcjax.logs.IncompleteLogWarning")
@pytest.mark.parametrize(("right_of_kept", "said"), [(0.6, "harder"), (1.0, "easier"), (0.8, "may be no fair sample")])
def test_kept_queries_are_called_harder_or_easier_by_their_labels(right_of_kept, said):
    """A note said that queries which the small model answers worse may be the easier ones."""
    right = np.concatenate([np.arange(50) < 50 * right_of_kept, np.arange(50) < 50 * (1.6 - right_of_kept)])
    row = {"logprob": -0.1, "cost": 1e-5}
    rows = [row | {"query": i, "model": "small", "correct": int(right[i])} for i in range(100)]
    rows += [row | {"query": i, "model": "large", "correct": 1} for i in range(50)]
    failed = FailedCalls(frozenset(MODELS), frozenset({"large"}), 50)
    log = dataclasses.replace(rcjax.read_log(pl.DataFrame(rows)), failed=(failed,))
    advice = assess_missing_answers(log, MODELS).advice
    assert f"the answered queries {said}" in advice.replace("are the ", "")
    assert ("(small is right in 60 % of these, and in 80 % of all its answers)" in advice) == (said == "harder")


@pytest.mark.parametrize(("unevenness", "verdict"), [(0.0, "fine"), (0.3, "bad")])
def test_labels_of_easy_queries_are_no_fair_sample(unevenness, verdict):
    """Half of the answers are labelled; more often where the cheaper model is surer, or not."""
    whole = rcjax.sample_log(400, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    sure = np.asarray(whole.logprob)[:, :1] > np.median(np.asarray(whole.logprob)[:, 0])
    labelled = np.random.default_rng(1).random((400, 2)) < 0.5 + unevenness * (2 * sure - 1)
    hand = HandLabels(*jax.device_put([labelled, np.zeros((400, 2, 0))]), judges=())
    _, *findings = assess_sample(dataclasses.replace(whole, hand_labels=hand), whole.models)
    assert [(finding.subject, finding.verdict) for finding in findings] == [(name, verdict) for name in whole.models]
    shares = [f"{100 * labelled[part[:, 0], 0].mean():.1f} %" for part in (~sure, sure)]
    unlike = f"{shares[0]} of the answers of llama3.2-1b have a label where llama3.2-1b is less sure, {shares[1]} where"
    assert findings[0].advice.startswith(unlike if unevenness else "")


@pytest.mark.filterwarnings("ignore::rcjax.logs.LeftOutWarning")
def test_equal_prompts_count_once(asked, tmp_path):
    once, flooded = (read(tmp_path / f"{probes}", asked[:40], probes=probes) for probes in (0, 400))
    assert flooded.queries == once.queries
    assert flooded.digest == once.digest


@pytest.mark.parametrize(
    ("improvement", "mean", "better"),
    [
        (0.006, 0.0, True),
        (0.006, -0.009, True),
        (0.006, -0.011, False),
        (0.004, 0.02, False),
        (-0.006, 0.02, False),
    ],
)
def test_a_policy_is_replaced_where_half_a_point_is_gained_and_nothing_lost_on_queries_left_out(
    improvement, mean, better
):
    judged = Replacement(improvement, held_out=RetuningGain(0.2, Gain(mean, 0.01), 1.0, 300), effect="$1 instead of $2")
    assert (judged.replaces(broken=False), judged.replaces(broken=True)) == (better, improvement >= 0)
    (said,) = dataclasses.replace(judged, lam=50.0).describe(ERRORS)
    assert (" at $0.0200 for one error" in said) == (improvement < 0.005)
    assert said.startswith(
        "a policy tuned again on these and the carried queries, replayed on them: $1 instead of $2; "
    )
    assert said.endswith("the policy stays") == (not better)
    assert "equivalent" not in said
    stays = "together that gains 0.4 points of error at $0.0200 for one error, as the tuning implies, and 0.5 replace a"
    assert (stays in said) == (improvement == 0.004)
    assert not dataclasses.replace(judged, faults=("the log is biased",)).replaces(broken=False)


def test_a_gain_just_below_the_least_is_not_said_to_be_the_least():
    (said,) = Replacement(0.0049, effect="$1 instead of $2").describe(ERRORS)
    assert said.endswith("together that gains 0.4 points of error, and 0.5 replace a policy: the policy stays")


def test_the_improvement_is_the_difference_of_the_replays_at_the_price_of_an_error(policy, asked, tmp_path):
    log = read(tmp_path / "improvement", asked)
    other = rcjax.tune(log, max_error=0.15, intervals=False).policy
    before, after = (rcjax.replay(one, log) for one in (policy, other))
    lam = policy.expected["lam"]
    gained = float((before.error - after.error) + lam * (before.cost - after.cost))
    assert assess_replacement(policy, other, log, log).improvement == pytest.approx(gained, abs=1e-12)
    assert assess_replacement(policy, policy, log, log).improvement == 0.0
    assert abs(gained) > 1e-3


def test_money_for_a_period_is_the_same_for_both_policies(asked, tmp_path):
    """`rcjax check` spreads it over the traffic of the log, which is half of that tuned for here."""
    log = read(tmp_path / "period", asked)
    ladder = with_following(
        rcjax.tune(log, budget=5e-5, intervals=False).policy, follows=True, period=Period(70.0, "month")
    )
    slower = dataclasses.replace(ladder, budget=2 * ladder.budget)
    assert assess_replacement(slower, ladder, log, log).improvement == 0.0
    single = ladder.rungs[0]  # of a frontier with a single rung
    assert assess_replacement(ladder, single, log, log).improvement is not None


def test_a_policy_beyond_its_limit_is_replaced_by_one_nearer_to_it_that_costs_more(policy, asked, tmp_path):
    """To keep a limit may cost more than errors are worth at the policy's λ."""
    log = read(tmp_path / "limit", asked)
    loose = rcjax.tune(log, max_error=0.15, intervals=False).policy
    tuning = {**loose.provenance["tuning"], "max_error": 0.05}  # its limit was less, and today's queries are harder
    rungs = [  # between which an error is said to cost next to nothing: λ is large
        dataclasses.replace(rung, expected={**rung.expected, "error": 1.0 - place / len(loose.rungs)})
        for place, rung in enumerate(loose.rungs)
    ]
    dear = dataclasses.replace(loose, rungs=rungs)
    broke = with_provenance(dear, tuning=tuning)
    judged = assess_replacement(broke, policy, log, log)
    assert judged.improvement < 0
    assert judged.faults == ()
    assert (judged.replaces(broken=False), judged.replaces(broken=True)) == (True, True)
    judged = dataclasses.replace(judged, exceeds_significantly=False)  # on fewer queries it might be chance
    assert (judged.replaces(broken=False), judged.replaces(broken=True)) == (False, True)
    (said,) = judged.describe(ERRORS, broken=True)
    assert re.search(
        r": \$\d+ instead of \$[\d.]+ per million .* instead of .* difference, nearer to the limit of 5 %$", said
    )
    assert not dataclasses.replace(judged, exceeded_limit="").replaces(broken=True)


def test_a_policy_over_its_limit_by_more_than_chance_is_replaced_by_one_nearer_to_it(policy, asked, tmp_path):
    """Its promise is not broken if it was tuned on few queries; the note once said "back within …, it is worse"."""
    log = read(tmp_path / "over", asked)
    loose = rcjax.tune(log, max_error=0.15, intervals=False).policy
    rungs = [
        dataclasses.replace(rung, expected={**rung.expected, "error": 1.0 - place / len(loose.rungs)})
        for place, rung in enumerate(loose.rungs)
    ]
    dear = dataclasses.replace(loose, rungs=rungs)
    found = {}
    for limit in (0.05, 0.1, 0.145):
        over = with_provenance(dear, tuning={**loose.provenance["tuning"], "max_error": limit})
        judged = found[limit] = assess_replacement(over, policy, log, log)
        assert judged.improvement < 0
        (said,) = judged.describe(ERRORS)
        replaced = judged.replaces(broken=False)
        exceeds = "; this policy exceeds the limit itself by more than" in said
        assert replaced == judged.exceeds_significantly == exceeds
        assert ("exceeds its limit by no more than chance explains, and" in said) == (
            not replaced and bool(judged.exceeded_limit)
        )
        assert said.endswith("the new policy is worse: the policy stays") == (not replaced)
    assert [judged.exceeds_significantly for judged in found.values()] == [True, True, False]
    assert not dataclasses.replace(found[0.1], faults=("the log is biased",)).replaces(broken=False)


def test_a_policy_that_costs_nothing_is_not_replaced_for_money(policy, asked, tmp_path):
    log = read(tmp_path / "free", asked)
    free = dataclasses.replace(log, query_cost=0 * log.query_cost).take(slice(None))
    dear = with_provenance(policy, tuning={**policy.provenance["tuning"], "max_error": 0.15})
    judged = assess_replacement(dear, policy, free, free)
    assert judged.saving.saved_share == 0
    assert not judged.replaces(broken=False)


def test_a_policy_far_within_its_limit_is_replaced_by_a_cheaper_one_within_it(policy, asked, tmp_path):
    """At the price of an error that a dear policy implies, the cheaper one is worse: it was refused."""
    log = read(tmp_path / "within", asked)

    def compare(most, **settings):
        tuning = {**policy.provenance["tuning"], "max_error": 0.15, **settings}
        cheaper = rcjax.tune(log, max_error=most, intervals=False).policy
        return assess_replacement(with_provenance(policy, tuning=tuning), cheaper, log, log)

    judged = compare(0.13)
    assert judged.improvement < 0
    assert (judged.replaces(broken=False), judged.replaces(broken=True), judged.held_out) == (True, True, None)
    (said,) = judged.describe(ERRORS)
    assert re.search(r"within the limit of 15 %; it saves 3\d\.\d % of the bill, and this policy is", said)
    over = compare(0.16)
    assert over.saving.saved_share > judged.saving.saved_share
    assert not over.replaces(broken=False)
    assert not compare(0.13, confidence=0.95).replaces(
        broken=False
    )  # a guarantee of the cheapest of many would be void
    assert compare(0.13, max_error=None, budget=1e-4).saving is None


@pytest.mark.parametrize(
    ("saving", "replaces", "why"),
    [
        (
            LimitSaving(0.3, 0.02, 0.03, 0.01),
            True,
            "30.0 % of the bill, and this policy is within its limit",
        ),
        (
            LimitSaving(0.3, 0.02, 0.02, 0.01),
            False,
            "that this policy has room for more errors may be chance: the policy stays",
        ),
        (LimitSaving(0.3, 0.04, 0.03, 0.01), False, "of the bill, but would exceed the limit: the policy stays"),
        (LimitSaving(0.06, 0.0, 0.0, 0.01), True, "it saves 6.0 % of the bill, with no more error"),
        (
            LimitSaving(0.0499, -0.01, 0.03, 0.01),
            False,
            "it saves 4.9 % of the bill, less than the 5 % that replace a policy:",
        ),
        (LimitSaving(-0.2, -0.02, 0.03, 0.01), False, "20.0 % more for 2.0 points less error: the policy stays"),
        (LimitSaving(-0.2, 0.0, 0.03, 0.01), False, "it costs 20.0 % more for no less error: the"),
    ],
)
def test_money_is_saved_within_a_limit_if_no_errors_are_added_or_there_is_surely_room(saving, replaces, why):
    judged = Replacement(0.02 if not replaces else -0.02, effect="$1 instead of $2", saving=saving)
    assert judged.replaces(broken=False) == replaces
    (said,) = judged.describe(ERRORS)
    assert why in said
    assert said.endswith("the policy stays") == (not replaces)
    assert judged.replaces(broken=True)  # for the money, or for the gain at the price of an error


def test_the_effect_has_one_error_of_the_new_policy_that_of_the_rule(policy, asked, tmp_path):
    """A sentence had two, of which the second, after allowing for optimism, was often the better one."""
    log = read(tmp_path / "promise", asked)
    new = rcjax.retune(policy, log, intervals=False).policy
    learnt, promised = float(rcjax.replay(new, log).error), new.expected["error"]
    assert abs(learnt - promised) > 1e-3
    effect = assess_replacement(policy, new, log, log).effect
    assert f"{100 * learnt:.1f} %" in effect
    assert f"{100 * promised:.1f} %" not in effect


def test_a_policy_over_its_margin_is_replaced_by_one_nearer_to_it(policy, asked, tmp_path):
    """Its limit is the error of today's model on the same queries, and the margin."""
    log = read(tmp_path / "margin", asked)
    loose = rcjax.tune(log, max_error=0.15, intervals=False).policy
    limits = {}
    for margin in (0.01, 0.5):
        target = {"max_error": None, "match": margin, "today": "large"}
        broke = with_provenance(loose, tuning={**loose.provenance["tuning"], **target})
        judged = assess_replacement(broke, policy, log, log)
        limits[margin] = judged.exceeded_limit
        where = "nearer to" if margin < 0.1 else "within"
        said = f"difference than large alone, {where} the margin"
        assert said in judged.effect
    assert limits == {0.01: "at most 1 point more difference than large alone", 0.5: ""}


def test_a_limit_on_seconds_leaves_the_gain_on_all_known_queries_to_decide(policy, asked, tmp_path):
    log = read(tmp_path / "seconds", asked)
    loose = rcjax.tune(log, max_error=0.15, intervals=False).policy
    target = {"max_error": None, "error_cost": 1.0, "max_seconds": "4"}  # money hardly counts
    limited = with_provenance(loose, tuning={**loose.provenance["tuning"], **target})
    same, better = (assess_replacement(limited, after, log, log) for after in (limited, policy))
    assert (same.improvement, same.held_out, same.faults) == (0.0, None, ())
    assert not same.replaces(broken=False)
    assert better.improvement > 0.05
    assert (better.held_out, better.faults) == (None, ())
    assert better.replaces(broken=False)
