"""What all traffic shows without labels: quiet where nothing changes, awake where confidences or calls do; folders."""

import gzip
import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from helpers.call_samples import vary
from helpers.command_line import run

import rcjax
from rcjax.logs import LogError
from rcjax.logs.sources import join_parts, read_column_names
from rcjax.serving.call_log import Call, Charge, Handling, Query, call_row
from rcjax.tuning.diagnostics.weeks import check_traffic, is_call_log

pytestmark = pytest.mark.usefixtures("float64")
MODELS = ("llama3.2-1b", "llama3.1-70b")
START = datetime(2026, 1, 5, tzinfo=UTC)


@pytest.fixture(scope="module")
def policy(float64):
    log = rcjax.sample_log(300, seed=0).select(MODELS)
    return rcjax.tune(log, lam=2000.0, intervals=False).policy


def calls_of(policy, week, n=200, surer=0.0, failing=0.0, longer=1.0, shadow=0.05):
    """The lines of a service's log in one week, of queries that its policy answers, some of them by all models."""
    log, rng = rcjax.sample_log(n, seed=100 + week).select(MODELS), np.random.default_rng(week)
    lines = []
    for number in range(n):
        when, query = START + timedelta(weeks=week, minutes=10 * number), f"w{week}q{number}"
        shadowed, model, step = bool(rng.random() < shadow), policy.first_model, 1
        asked = [*MODELS] if shadowed else []
        while model is not None:
            raw = log.logprob[number, log.models.index(model)] * np.exp(-surer)
            fails = bool(rng.random() < failing)
            call = Call(
                query=Query(query, (), handling=Handling(is_shadow_query=shadowed, charge=Charge("policy", step))),
                model=model,
                upstream_model=model,
                text=None if fails else "A",
                answer="A",
                logprob=None if fails else float(raw),
                confidence=0.5,
                cost=1e-4 * longer,
                input_tokens=int(100 * longer * rng.uniform(0.8, 1.2)),
                output_tokens=1,
                estimated=False,
                attempts=1,
                seconds=0.1,
                time=when.isoformat(),
                error="timed out" if fails else None,
            )
            lines.append(call_row(call))
            decision = policy.step(model, logprob=-50.0 if fails else float(raw))
            asked = [name for name in asked if name != model]
            model, step = getattr(decision, "next_model", None), step + 1
        for name in asked:
            raw = float(log.logprob[number, log.models.index(name)])
            added = vary(call, model=name, logprob=raw, error=None, charge=None)
            lines.append(call_row(added))
    return lines


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def weeks_of(policy, tmp_path):
    """The log of three usual weeks and one in which something has changed."""

    def logged(**change):
        lines = [line for week in range(3) for line in calls_of(policy, week)] + calls_of(policy, 3, **change)
        return write(tmp_path / "calls.jsonl", lines)

    return logged


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({}, set()),
        ({"surer": 0.7}, {"confidences"}),
        ({"failing": 0.2}, {"failed calls"}),
        ({"longer": 1.5}, {"tokens", "bill"}),
    ],
)
def test_a_change_of_all_traffic_is_seen_without_labels(policy, weeks_of, change, seen):
    path = weeks_of(**change)
    assert is_call_log(read_column_names(path))
    traffic = check_traffic(policy, path)
    assert (traffic.queries, traffic.before, traffic.looks, traffic.changed) == (200, 600, 52, bool(seen))
    changed = {finding.name for finding in traffic.findings if finding.verdict == "bad"}
    assert seen <= changed <= seen | {"asked", "bill"}
    assert json.loads(json.dumps(traffic.to_json(), allow_nan=False))["changed"] == traffic.changed


def test_more_shadow_queries_are_no_longer_prompts(policy, tmp_path):
    """A service asks the last model how sure it is for shadow queries only: its calls then have twice the tokens."""

    def verified(lines):
        for line in lines:
            if line["shadow"] or line["model"] == MODELS[0]:
                line |= {"signal_cost": line["cost"], "cost": 2 * line["cost"]}
                line |= {"input_tokens": 2 * line["input_tokens"]}
        return lines

    before = [line for week in range(3) for line in verified(calls_of(policy, week))]
    for more, changed in (({}, set()), ({"longer": 1.5}, {"tokens", "bill"})):
        now = verified(calls_of(policy, 3, shadow=0.5, **more))
        traffic = check_traffic(policy, write(tmp_path / "calls.jsonl", before + now))
        bad = {finding.name for finding in traffic.findings if finding.verdict == "bad"}
        assert bad - {"asked"} == changed


def test_the_first_week_is_compared_with_the_carried_queries(policy, tmp_path):
    usual, surer = (
        check_traffic(policy, write(tmp_path / "log.jsonl", calls_of(policy, 0, surer=by))) for by in (0, 1)
    )
    assert (usual.before, usual.changed, surer.changed) == (0, False, True)
    assert {finding.name for finding in usual.findings} == {"confidences"}
    assert usual.describe() == "200 queries of the last week beside the queries that the policy carries"


def test_calls_that_cost_a_hundred_times_the_mean_are_reported(policy, weeks_of, tmp_path):
    lines = [json.loads(line) for line in weeks_of().read_text().splitlines()]
    assert check_traffic(policy, write(tmp_path / "usual.jsonl", lines)).expensive_calls_note is None
    last = max(range(len(lines)), key=lambda index: lines[index]["time"])
    lines[last]["cost"] = 1e6
    note = check_traffic(policy, write(tmp_path / "dear.jsonl", lines)).expensive_calls_note
    assert note is not None
    assert note.startswith("1 call cost over a hundred times the mean of the model")


def test_a_question_that_is_asked_a_thousand_times_counts_once(policy, weeks_of):
    path = weeks_of()
    usual = check_traffic(policy, path)
    flood = [json.loads(line) | {"prompt_digest": "same"} for line in path.read_text().splitlines()[-1:]]
    lines = [flood[0] | {"query": f"f{number}", "logprob": -0.001} for number in range(1000)]
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    again = check_traffic(policy, path)
    assert (again.queries, again.changed) == (usual.queries + 1, False)


def test_a_folder_of_rotated_parts_is_one_log(policy, weeks_of, tmp_path):
    whole = check_traffic(policy, weeks_of(surer=0.7))
    lines = (tmp_path / "calls.jsonl").read_text().splitlines(keepends=True)
    folder = tmp_path / "calls"
    folder.mkdir()
    third = len(lines) // 3
    (folder / "calls.jsonl-20260101.gz").write_bytes(gzip.compress("".join(lines[:third]).encode()))
    (folder / "calls.jsonl.1").write_text("".join(lines[third : 2 * third]) + '{"call_log": 1, "que')
    (folder / "calls.jsonl").write_text("".join(lines[2 * third :]))
    (folder / "notes.txt").write_text("not a log")
    (folder / "labels.csv").write_text("query,model,correct\nw0q1,llama3.2-1b,1\n")
    parts = join_parts([folder])
    assert (parts.name, parts.cut, parts.frame.height) == ("calls (3 files)", 1, len(lines))
    assert check_traffic(policy, parts) == whole
    assert join_parts([tmp_path / "calls.jsonl"]) == tmp_path / "calls.jsonl"
    (tmp_path / "empty").mkdir()
    with pytest.raises(rcjax.logs.LogError, match="no log in this folder"):
        join_parts([tmp_path / "empty"])


def test_models_that_were_not_asked_did_not_fail(policy, weeks_of):
    """A shadow query whose client left has a line for each model that it did not reach."""
    path = weeks_of(shadow=0.5)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["query"].startswith("w3") and line["shadow"] and "step" not in line:
            line |= {"attempts": 0, "error": "not asked: the query ended early", "logprob": None, "cost": 0.0}
    traffic = check_traffic(policy, write(path, lines))
    assert not [finding.name for finding in traffic.findings if finding.verdict == "bad"]


def test_a_log_of_other_models_is_refused(policy, tmp_path):
    lines = [line | {"model": "another"} for line in calls_of(policy, 0, n=30)]
    path = write(tmp_path / "calls.jsonl", lines)
    with pytest.raises(LogError, match=r"no call of the policy's models, llama3.2-1b, llama3.1-70b: it has another"):
        check_traffic(policy, path)
    policy.save(tmp_path / "policy.json")
    assert run("check", tmp_path / "policy.json", path).exit_code == 2


def test_a_labelled_log_that_cannot_be_read_is_no_log_without_labels(policy, tmp_path):
    policy.save(tmp_path / "policy.json")
    lines = [line | {"correct": 1} for line in calls_of(policy, 0, n=30) if line["model"] == MODELS[0]]
    result = run("check", tmp_path / "policy.json", write(tmp_path / "calls.jsonl", lines))
    assert (result.exit_code, "no model 'llama3.1-70b'" in " ".join(result.stderr.split())) == (2, True)


def test_too_few_calls_test_nothing(policy, tmp_path):
    policy.save(tmp_path / "policy.json")
    result = run("check", tmp_path / "policy.json", write(tmp_path / "calls.jsonl", calls_of(policy, 0, n=10)))
    shown = " ".join(result.stdout.split())
    assert (result.exit_code, "Without labels: nothing was tested" in shown, "verdict" in shown) == (0, True, False)


def test_an_empty_column_of_labels_is_no_label(policy, tmp_path):
    policy.save(tmp_path / "policy.json")
    lines = [line | {"correct": None} for line in calls_of(policy, 0)]
    result = run("check", tmp_path / "policy.json", write(tmp_path / "calls.jsonl", lines))
    assert (result.exit_code, "Without labels: no figure" in " ".join(result.stdout.split())) == (0, True)
