"""The dashboard and the alerts of the documentation: they ask for figures and labels that there are."""

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from gateway_samples import make_call, make_policy, make_result
from misses import in_turn
from prometheus_client.parser import text_string_to_metric_families

import rcjax
from rcjax.serving.gateway.metrics import Metrics

DOCS = Path(rcjax.__file__).parent / "docs"
DASHBOARD = json.loads((DOCS / "grafana-dashboard.json").read_text("utf-8"))
RULES = [
    rule for group in yaml.safe_load((DOCS / "alerts.yml").read_text("utf-8"))["groups"] for rule in group["rules"]
]
PANELS = DASHBOARD["panels"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel.get("targets", [])]
VARIABLES = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]

#: Labels that Prometheus itself adds to what it reads.
ADDED = {"instance", "job"}

#: What may stand in an expression besides figures and labels.
WORDS = {"abs", "and", "avg", "group", "group_left", "histogram_quantile", "increase", "max", "rate", "sum", "time"}


def exposed():
    """{name of a sample: its labels} of a page on which everything there is has happened."""
    metrics = Metrics(None)
    expected = {"error": 0.1, "cost": 3e-5, "seconds": 0.4, "seconds_p95": 2.0}
    metrics.take_up("support", make_policy(expected=expected), "abc")
    metrics.began(logging=True)
    metrics.refuse("support")
    metrics.refused("no key", 401)
    for status in ("answered", "abstained", "failed"):
        metrics.ended("support", "abc", make_result(status, [make_call(), make_call("large")]), 0.5)
    metrics.called(make_call(error="timed out"))
    families = text_string_to_metric_families(metrics.text()[0].decode())
    return {sample.name: {*sample.labels} for family in families for sample in family.samples}


SAMPLES = exposed()


def faults(expression):
    """What is wrong with a PromQL expression, as far as names and labels go."""
    plain = re.sub(r'"[^"]*"', '""', expression)
    wrong = [name for name in re.findall(r"\brcjax_\w+", plain) if name not in SAMPLES]
    for name, selector in re.findall(r"\b(rcjax_\w+)(?:\{([^}]*)\})?", plain):
        labels = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)
        wrong += [f"{name} has no label {label}" for label in labels if label not in SAMPLES.get(name, ())]
    everywhere = set.union(*(SAMPLES.get(name, set()) for name in re.findall(r"\brcjax_\w+", plain)))
    grouped = {label.strip() for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", plain) for label in group.split(",")}
    wrong += [f"nothing has the label {label}" for label in grouped - everywhere - ADDED]
    bare = re.sub(r"rcjax_\w+|\{[^}]*\}|\[[^\]]*\]|\b(?:by|on) \([^)]*\)", " ", plain)
    return wrong + [word for word in re.findall(r"\b[a-zA-Z_]\w*", bare) if word not in WORDS and word != "e6"]


def test_the_check_finds_what_is_wrong():
    assert faults("rcjax_drift > 0.05") == []
    assert faults("rcjax_drifts > 0.05") == ["rcjax_drifts"]
    assert faults('rcjax_drift{status="failed"} > 0.05') == ["rcjax_drift has no label status"]
    assert faults("sum by (kind) (rcjax_drift)") == ["nothing has the label kind"]
    assert faults("sums by (model) (rcjax_drift)") == ["sums"]


@in_turn("title, target", TARGETS, ids=[f"{title}, {target['refId']}" for title, target in TARGETS])
def test_panels_ask_for_what_there_is(title, target):
    assert faults(target["expr"]) == []
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    by = [set(re.split(r",\s*", labels)) for labels in re.findall(r"\bby \(([^)]*)\)", target["expr"])]
    assert shown <= set.union(set(), *by)  # a label that was summed over is not there to be shown


@pytest.mark.parametrize("variable", VARIABLES, ids=[variable["name"] for variable in VARIABLES])
def test_variables_ask_for_what_there_is(variable):
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
    assert label in SAMPLES[name]


def test_annotations_ask_for_what_there_is():
    assert [faults(entry["expr"]) for entry in DASHBOARD["annotations"]["list"]] == [[]]


def test_every_variable_that_is_used_is_there():
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval", "__all"}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(DASHBOARD)))
    assert used == known


def test_panels_have_places_of_their_own():
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    places = [
        {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        for at in (panel["gridPos"] for panel in PANELS)
    ]
    assert not any(one & other for one, other in combinations(places, 2))
    assert all(0 <= x < 24 for place in places for x, _ in place)
    for panel in PANELS:
        assert panel["type"] == "row" or (panel["description"] and panel["datasource"]["uid"] == "${datasource}")
        refs = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(refs)) == len(refs)


def test_every_figure_is_on_the_dashboard():
    used = {name for _, target in TARGETS for name in re.findall(r"rcjax_\w+", target["expr"])}
    stems = {re.sub(r"_(bucket|count|sum)$", "", name) for name in used}
    apart = {"rcjax_policy_requests"}  # the alerts take it
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in SAMPLES} - apart == stems


@in_turn("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_alerts_ask_for_what_there_is(rule):
    assert faults(rule["expr"]) == []
    assert {*rule["annotations"]} == {"summary", "description"}
    shown = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    by = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
    there = set(re.split(r",\s*", by[0])) if by else SAMPLES[re.search(r"rcjax_\w+", rule["expr"])[0]]
    assert shown <= there
