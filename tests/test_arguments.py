"""Every public verb tells a log, a policy, a model and a frontier apart, and says what it got."""

import dataclasses
import inspect
from typing import get_type_hints

import pytest

import rcjax
from rcjax import bayes, logs, solving, tuning
from rcjax.logs.importing.lines import ImportFields, ImportOptions
from rcjax.report import plots
from rcjax.tuning.sweeps.problems import SweepFields, SweepSettings

#: By verb, which arguments are logs, policies, models or frontiers, in their order; the rest by keyword.
VERBS = {
    rcjax.fit: ("log",),
    rcjax.tune: ("log",),
    rcjax.replay: ("policy_or_frontier", "log"),
    rcjax.check_policy: ("policy", "log"),
    rcjax.retune: ("policy", "log"),
    rcjax.diagnose: ("model", "log"),
    rcjax.certify: ("frontier", "log"),
    rcjax.make_report: ("log",),
    rcjax.solve_frontier: ("model",),
    solving.solve: ("model",),
    solving.error_and_cost: ("model",),
    solving.outcomes: ("frontier",),
    solving.minimise: ("model",),
    tuning.bootstrap: ("frontier", "log"),
    tuning.select_frontier: ("log",),
    bayes.sample_posterior: ("log",),
    bayes.posterior_figures: ("posterior", "frontier"),
    bayes.credible_bands: ("posterior", "frontier"),
    logs.with_segments: ("log",),
    plots.plot_frontier: ("frontier",),
}
#: What may be None.
FREE = {(rcjax.retune, "log", "None")}
NOUNS = {"policy_or_frontier": "a policy (rcjax.load_policy) or a frontier (rcjax.solve_frontier)"}
NOUNS |= {name: f"a {name} (rcjax." for name in ("log", "policy", "model", "frontier", "posterior")}


@pytest.fixture(scope="module")
def things():
    """One of each kind, and what people hand over in their place."""
    model, log = rcjax.demo_model(), rcjax.sample_log(60, seed=0)
    identity = rcjax.policy.Calibration("none", 0.0, 1.0, -9.0, 0.0)
    policy = rcjax.Policy(("a",), {"a": identity}, {"a": (rcjax.policy.Rule(1.0, "answer"),)}, {"a": 1.0})
    return {"Log": log, "CascadeModel": model, "Policy": policy, "text": "log.csv", "None": None}


@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb, names in VERBS.items() for name in names])
def test_an_argument_of_another_kind_is_refused_by_name(verb, name, things):
    parameters = inspect.signature(verb).parameters
    rest = {
        p: object() for p in parameters if parameters[p].default is inspect.Parameter.empty and p not in VERBS[verb]
    }
    rest = {p: value for p, value in rest.items() if parameters[p].kind is not inspect.Parameter.VAR_KEYWORD}
    fitting = {"log": "Log", "policy": "Policy", "policy_or_frontier": "Policy", "model": "CascadeModel"}
    for got, value in things.items():
        if fitting.get(name) == got or (verb, name, got) in FREE:
            continue
        before = {other: things[fitting[other]] for other in VERBS[verb][: VERBS[verb].index(name)] if other in fitting}
        if len(before) < VERBS[verb].index(name):
            break  # behind a posterior or a frontier, which would have to be made
        with pytest.raises(TypeError) as told:
            verb(**before, **{name: value}, **{p: None for p in VERBS[verb] if p not in (*before, name)}, **rest)
        words = {"text": "a text", "None": "None"}.get(got, f"a {got}")
        assert str(told.value).startswith(f"{name} must be {NOUNS[name]}")
        assert str(told.value).endswith(f"not {words}")


def test_the_table_has_every_public_verb_that_takes_one():
    """A verb that is public and takes one of them is in the table above, and checks it."""
    public = [
        getattr(package, name) for package in (rcjax, solving, tuning, bayes, logs, plots) for name in package.__all__
    ]
    kinds = ("log", "policy", "policy_or_frontier", "model", "frontier", "posterior")
    taking = {verb for verb in public if inspect.isfunction(verb) and {*kinds} & {*inspect.signature(verb).parameters}}
    assert taking == {*VERBS}


@pytest.mark.parametrize(
    ("record", "keywords"), [(SweepSettings, SweepFields), (ImportOptions, ImportFields)], ids=["sweep", "import"]
)
def test_keywords_of_a_verb_are_the_fields_of_its_record(record, keywords):
    fields = [field.name for field in dataclasses.fields(record) if field.repr]
    assert list(get_type_hints(keywords)) == fields
