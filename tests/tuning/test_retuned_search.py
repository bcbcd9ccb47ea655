"""A policy tuned again is searched for as it was: with every option that `tune`, and what lies under it, takes."""

import dataclasses
from importlib import import_module

import pytest

import rcjax
from rcjax.policy.ladder import Queries
from rcjax.policy.spec import Spec

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings("ignore::rcjax.logs.UnlabelledWarning")]
MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
FIELDS = dataclasses.fields(Spec)

#: Options of `tune`, and a target.
OPTIONS = [
    {"error_cost": 0.001, "cascade": "full", "intervals": False},
    {"lam": 300.0, "cascade": list(MODELS[1:]), "copula": "frank", "abstain_price": 0.3, "intervals": False},
    {"max_error": 0.6, "confidence": 0.9, "judged": True, "intervals": False},
    {"budget": 1e-4, "follows": False, "today": MODELS[1], "queries": Queries(1e6, "week"), "intervals": False},
    {"match": 0.02, "today": MODELS[2], "intervals": False},
    {"budget": 1e-4, "segment": "kind", "intervals": False},
    {"budget": 2e-4, "max_seconds": "p95=100", "intervals": False},
]


@pytest.fixture(scope="module")
def logs(float64):
    log = rcjax.sample_log(240, seed=3).select(MODELS)
    log = dataclasses.replace(log, seconds=1.0 + 0 * log.query_cost, segment=("all",) * 240)
    return log.take(slice(120)), log.take(slice(120, 240))


class Noted(Exception):  # noqa: N818 - no error
    """How a log is to be tuned."""


@pytest.fixture
def spec_of(monkeypatch, logs):
    """Return a function from a policy to the spec with which `retune` would tune it again."""

    def note(log, held_out, spec, **by):
        raise Noted(spec)

    def retuned_spec(policy):
        with monkeypatch.context() as patch:
            patch.setattr(import_module("rcjax.tuning.tune"), "tune_in_stages", note)
            with pytest.raises(Noted) as noted:
                rcjax.retune(policy, logs[1])
        return noted.value.args[0]

    return retuned_spec


#: Fields that a policy has from its model, or its own file.
OTHERWISE = {"method", "transform", "period"}


def test_the_options_are_all_that_tune_takes():
    tested = {name for options in OPTIONS for name in options}
    assert {field.name for field in FIELDS} - OTHERWISE - tested == set()


@pytest.mark.thorough
def test_every_option_comes_back(logs, spec_of, tmp_path):
    differing = {}
    pair = logs[0].select(MODELS[1:])  # two models: what is searched for is not looked at, which takes long
    for options in OPTIONS:
        rcjax.tune(pair, **options).policy.save(tmp_path / "policy.json")
        before, after = Spec(**options), spec_of(rcjax.load_policy(tmp_path / "policy.json"))
        known = {
            "transform": "choice",
            "copula": after.copula,
            "method": after.method,
            "today": before.today or MODELS[2],
        }
        expected = dataclasses.replace(before, **known)
        assert before.cascade is None or str(before.copula or "gumbel").capitalize() == after.copula
        pairs = ((field.name, getattr(expected, field.name), getattr(after, field.name)) for field in FIELDS)
        differing |= {(str(options), name): (old, new) for name, old, new in pairs if old != new}
    assert differing == {}


@pytest.mark.thorough
def test_the_way_of_asking_is_kept_if_the_fresh_log_lacks_it(logs):
    asked = {name: {"signal": "choice", "choices": ["A", "B"], "options": {"temperature": 0}} for name in MODELS}
    policy = rcjax.tune(dataclasses.replace(logs[0], request_settings=asked), lam=300.0, intervals=False).policy
    hot = {**asked[MODELS[0]], "options": {"temperature": 1}}
    settings = rcjax.retune(policy, dataclasses.replace(logs[1], request_settings={MODELS[0]: hot})).policy.provenance[
        "request_settings"
    ]
    assert settings[MODELS[0]]["options"] == {"temperature": 1}
    assert {name: settings[name]["options"] for name in MODELS[1:]} == {name: {"temperature": 0} for name in MODELS[1:]}
