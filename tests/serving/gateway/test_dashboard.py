"""The dashboard and the alerts of the documentation use figures and labels that exist."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import yaml
from helpers.gateway_samples import make_call, make_result
from prometheus_client.parser import text_string_to_metric_families

import rcjax
from rcjax.serving.gateway.metrics import Metrics

DOCS = Path(rcjax.__file__).parent / "docs"
DASHBOARD = json.loads((DOCS / "grafana-dashboard.json").read_text("utf-8"))
RULES = [
    rule for group in yaml.safe_load((DOCS / "alerts.yml").read_text("utf-8"))["groups"] for rule in group["rules"]
]
PANELS = DASHBOARD["panels"]
TARGETS = [target for panel in PANELS for target in panel.get("targets", [])]
EXPRESSIONS = [one["expr"] for one in (*TARGETS, *DASHBOARD["annotations"]["list"], *RULES)]


def exposed():
    """Return {name of a sample: its labels} of a page with every figure."""
    metrics = Metrics(shares_balance=True)
    metrics.count_reload("support", None)
    metrics.count_start(logging=True)
    metrics.count_shadow("support", "asked")
    metrics.count_refusal("too_many_requests", 429)
    metrics.count_request("support", make_result(calls=[make_call(), make_call("large")]), 0.5)
    metrics.count_call(make_call(error="timed out", failure_kind="timed out"), "support")
    for left in (None, 2.0):
        metrics.set_bill("support", SimpleNamespace(position=1.5, bill=object(), balance=2.0, money_left=left))
    families = text_string_to_metric_families(metrics.render()[0].decode())
    return {sample.name: {*sample.labels} for family in families for sample in family.samples}


SAMPLES = exposed()


def faults(expression):
    """Return the names and labels in a PromQL expression that no figure has."""
    plain = re.sub(r'"[^"]*"', '""', expression)
    wrong = [name for name in re.findall(r"\brcjax_\w+", plain) if name not in SAMPLES]
    for name, selector in re.findall(r"\b(rcjax_\w+)(?:\{([^}]*)\})?", plain):
        labels = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)
        wrong += [f"{name} has no label {label}" for label in labels if label not in SAMPLES.get(name, ())]
    everywhere = set.union(*(SAMPLES.get(name, set()) for name in re.findall(r"\brcjax_\w+", plain)))
    everywhere |= {"instance"}  # which Prometheus adds
    grouped = {label.strip() for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", plain) for label in group.split(",")}
    return wrong + [f"nothing has the label {label}" for label in grouped - everywhere]


def test_expressions_use_existing_figures_and_labels():
    assert {expression: faults(expression) for expression in EXPRESSIONS if faults(expression)} == {}
    for target in TARGETS:
        by = [set(re.split(r",\s*", labels)) for labels in re.findall(r"\bby \(([^)]*)\)", target["expr"])]
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= set.union(set(), *by)
    for rule in RULES:
        by = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
        there = set(re.split(r",\s*", by[0])) if by else SAMPLES[re.search(r"rcjax_\w+", rule["expr"])[0]]
        assert set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))) <= there


def test_every_figure_is_on_the_dashboard():
    used = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"rcjax_\w+", str(TARGETS))}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in SAMPLES} == used
