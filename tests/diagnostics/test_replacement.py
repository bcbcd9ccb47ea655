"""What is tuned on a biased log does not replace a policy: answers that are missing, one question a hundred times."""

import json

import numpy as np
import pytest

import rcjax
from rcjax.diagnostics.replacement import tell_lacking, why_not
from rcjax.tuning.comparison import Gain
from rcjax.tuning.retune import RetuningGain

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
            told = {"logprob": None, "answer": None, "error": "timed out"} if fails else {}
            digest = {"prompt_digest": f"d{index}"} if digests else {}
            lines.append(json.dumps(row | {"logprob": logprob, "answer": answer, "error": None} | told | digest))
    path.write_text("\n".join(lines))
    return rcjax.read_log(path, reference="large")


@pytest.fixture(scope="module")
def policy(asked, tmp_path_factory, float64):
    log = read(tmp_path_factory.mktemp("replacement") / "log", asked[: 2 * N])
    return rcjax.tune(log, max_error=0.05, intervals=False).policy


def reasons(policy, log):
    """Why the policy tuned again on a log does not replace another, though it gains on queries left out."""
    gain = RetuningGain(0.2, Gain(0.1, 0.01), Gain(float("nan"), 0.0), 1000.0, N)
    return why_not(policy, rcjax.retune(policy, log).policy, log, gain)


@pytest.mark.filterwarnings("ignore::rcjax.logs.LeftOutWarning")
def test_a_fair_log_is_learnt_from_and_a_biased_one_is_not(policy, asked, tmp_path):
    fresh = asked[2 * N :]
    hard = [index for index, (small, large) in enumerate(fresh) if small[1] != large[1]]
    assert reasons(policy, read(tmp_path / "fair", fresh)) == []
    lost = read(tmp_path / "lost", fresh, failed=hard)
    lacking, broken = reasons(policy, lost)
    assert lacking.startswith(f"{len(hard)} of {N} queries lack an answer, most often that of large, the reference")
    assert "queries that the policy in service carries it has " in broken
    few = read(tmp_path / "few", fresh, failed=hard[:9])
    assert tell_lacking(few, few.models) is None  # 4.7 %
    (flooded,) = reasons(policy, read(tmp_path / "flooded", fresh[:40], probes=400, digests=False))
    assert "queries that the policy in service carries it has " in flooded


@pytest.mark.filterwarnings("ignore::rcjax.logs.LeftOutWarning")
def test_equal_prompts_count_once(asked, tmp_path):
    once, flooded = (read(tmp_path / f"{probes}", asked[:40], probes=probes) for probes in (0, 400))
    assert flooded.queries == once.queries
    assert flooded.digest == once.digest


def test_what_is_not_shown_to_be_better_waits_unless_the_limit_is_broken(policy, asked, tmp_path):
    before = Gain(float("nan"), 0.0)
    unclear, worse = (RetuningGain(0.2, Gain(mean, 0.01), before, 1000.0, N) for mean in (0.009, -0.02))
    log = read(tmp_path / "log", asked[: 2 * N])
    (why,) = why_not(policy, policy, log, unclear)
    assert "not shown to be better: on queries left out policies tuned again lower difference" in why
    broken = [((small[0], "C"), large) if index % 5 else (small, large) for index, (small, large) in enumerate(asked)]
    log = read(tmp_path / "broken", broken[2 * N :])
    assert why_not(policy, policy, log, unclear) == []
    assert len(why_not(policy, policy, log, worse)) == 1
