"""Every public function refuses an argument of another kind with one line that names it and says what was wanted."""

import functools
import inspect
import sys
import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from misses import in_turn
from public_names import public_names

import rcjax
from rcjax._base.arguments import _kinds, check_arguments

BAD = {"None": None, "a text": "x", "an int": 5, "a list": [1], "a float": 1.5, "the class dict": dict, "a bytes": b"x"}
#: Made by the functions, not by people: records, some of them pytrees, into which JAX puts what it likes.
RECORDS = {
    *(
        "Bands",
        "CascadeModel",
        "Certificate",
        "Comparison",
        "Diagnosis",
        "Frontier",
        "HandLabels",
        "LearningCurve",
        "Log",
        "Marginal",
        "Outcome",
    ),
    *("PolicyCheck", "Posterior", "Replay", "Report", "Retuned", "Seconds", "Selection", "Solution", "Sweep", "Tuned"),
    *("SegmentsCheck", "TunedSegments"),
}
#: Held to theirs elsewhere: `test_policy_files`, `test_mixture`, `test_segmented_policy`, `test_run`, `test_spec`,
#: `test_priors_and_loo`.
HELD_ELSEWHERE = {"Policy", "Mixture", "SegmentedPolicy", "Cascade", "Priors", "Reference", "Scores", "Spec"}
ERRORS = {
    *("CascadeError", "IncompleteLogWarning", "InfeasibleError", "LeftOutWarning", "LogError"),
    *("NoConfidenceWarning", "OverlapWarning", "PartsWarning", "PricesWarning", "UnlabelledWarning"),
}
BASES = {"Copula", "Rotation"}
FAMILIES = sorted(
    name
    for name, value in public_names().items()
    if isinstance(value, type) and issubclass(value, rcjax.copulas.Copula) and name not in BASES
)


class Public(NamedTuple):
    """How a public function is called as it should be, and what of the bad values some of its arguments may be."""

    arguments: tuple[str, ...]
    """Those of `good` that go first, by position."""
    fine: Mapping[str, str] = MappingProxyType({})
    """By argument, those of the bad values that are not bad there, in a line."""


LIST = "a list"
NUMBER = "an int, a float"
#: What is gone says what to use instead, whatever it is given (`test_early_refusals_are_gone`).
GONE = ", ".join(BAD)
FUNCTIONS = {
    "CallLog": Public(("path",)),
    "Roll": Public(()),
    "area_under_curve": Public(("array", "array", "number", "number"), dict.fromkeys(("cost", "error"), NUMBER + LIST)),
    "bootstrap": Public(("frontier", "log")),
    "certify": Public(("frontier", "log")),
    "check_policy": Public(("policy", "log")),
    "check_segments": Public(("segments", "log")),
    "credible_bands": Public(("posterior", "frontier")),
    "demo_model": Public(()),
    "diagnose": Public(("model", "log")),
    "error_and_cost": Public(("model", "array")),
    "expected_calibration_error": Public(("array", "array")),
    "fit": Public(("log",)),
    "fit_copula": Public(("array", "array", "family"), dict.fromkeys(("u", "v"), NUMBER + LIST)),
    "learning_curve": Public(("log",)),
    "load_frontier": Public(("path",)),
    "load_model": Public(("path",)),
    "load_policy": Public(("path",)),
    "make_report": Public(("log",)),
    "minimise": Public(
        ("objective", "model", "pair", "number"),
        {"lam": NUMBER + LIST + "None", "cascades": "a text", "solver": "None", "objective": "the class dict"},
    ),
    "outcome": Public(("model", "array"), dict.fromkeys(("thresholds", "refusals"), NUMBER + LIST)),
    "outcomes": Public(("model", "frontier")),
    "param": Public(("number", "support")),
    "posterior_figures": Public(("posterior", "frontier")),
    "read_evaluations": Public(("path",), {"prices": "a text"}),
    "read_log": Public(
        ("path",),
        {"labels": "None, a text", "answers": "None, a text", "source": "a text", "prices": "a text", "votes": GONE},
    ),
    "replay": Public(("policy", "log")),
    "retune": Public(("policy", "log")),
    "sample_confidences": Public(("model", "key", "whole")),
    "sample_log": Public(("whole",)),
    "sample_posterior": Public(("log",)),
    "select_frontier": Public(
        ("log",), {"lam": NUMBER + LIST + "None", "admits": "the class dict", "abstain_early": GONE}
    ),
    "solve": Public(("model", "number"), {"lam": NUMBER + LIST}),
    "solve_frontier": Public(("model",), {"lam": NUMBER + LIST + "None", "abstain_early": GONE}),
    "smooth_maximum": Public(("array", "number"), dict.fromkeys(("values", "width"), NUMBER + LIST)),
    "smooth_quantile": Public(
        ("array", "array", "number", "number"), dict.fromkeys(("values", "weights", "width"), NUMBER + LIST)
    ),
    "sweep": Public(("paths", "path"), {"prices": "None, a text, an int, a list", "progress": "the class dict"}),
    "tune": Public(("log",)),
    "tune_segments": Public(("log",)),
    **dict.fromkeys(FAMILIES, Public((), dict.fromkeys(("theta", "rho", "df", "scale"), "None"))),
    "Log.select": Public(("log", "paths")),
    "Log.split": Public(("log", "number", "whole")),
    "CascadeModel.calibrate": Public(("model", "array")),
    "CascadeModel.log_prob": Public(("model", "array")),
    "CascadeModel.sample": Public(("model", "key")),
    "CascadeModel.sample_conditional": Public(("model", "key", "array")),
    "CascadeModel.index": Public(("model", "paths")),
    "CascadeModel.save": Public(("model", "path")),
    "Frontier.choose": Public(("frontier",)),
    "Frontier.mixture": Public(("frontier",)),
    "Frontier.point": Public(("frontier", "whole")),
    "Frontier.policy": Public(("frontier",)),
    "Frontier.save": Public(("frontier", "path")),
    "Frontier.with_bands": Public(("frontier", "whole")),
    "Mixture.choose": Public(("mixture",)),
    "Mixture.load": Public(("path",)),
    "Mixture.save": Public(("mixture", "path")),
    "SegmentedPolicy.load": Public(("path",)),
    "SegmentedPolicy.save": Public(("segments", "path")),
    "SegmentedPolicy.segment": Public(("segments", "path")),
    "Policy.load": Public(("path",)),
    "Policy.save": Public(("policy", "path")),
    "Gaussian.from_tau": Public(("number",)),
    "Gumbel.from_tau": Public(("number",)),
}
#: Which of the bad values an annotation allows, by a word that is in it.
ALLOWED = {
    "None": "None",
    "str": "a text",
    "Literal": "a text",
    "int": "an int",
    "float": NUMBER,
    "Sequence": LIST,
    "Iterable": LIST,
    "tuple": LIST,
    "Array": NUMBER + LIST,
    "Mapping": "",
}


def test_every_public_name_is_held_to_its_types():
    told = {name.partition(".")[0] for name in FUNCTIONS}
    assert told | RECORDS | HELD_ELSEWHERE | ERRORS | BASES == {*public_names()}


def resolve(name) -> Any:
    first, *rest = name.split(".")
    return functools.reduce(getattr, rest, public_names()[first])


def allowed(annotation, value, what) -> bool:
    """Whether an annotation, as text, lets a bad value through: lists of the wrong things it does not."""
    text = annotation if isinstance(annotation, str) else str(annotation)
    plain = text.removeprefix("<class '").removesuffix("'>")
    words = "".join(names for word, names in ALLOWED.items() if word in plain)
    if plain.startswith(("collections.abc.Sequence", "Sequence", "Iterable", "collections.abc.Iterable")):
        words = words.replace("a text", "").replace("an int", "")
    if what == "a list" and "str" in plain:  # of numbers
        return False
    if what == "an int" and plain.startswith("tuple"):
        return False
    return what in words


def cases():
    for name, public in FUNCTIONS.items():
        parameters = [p for p in inspect.signature(resolve(name)).parameters.values() if p.name != "self"]
        for parameter in parameters:
            for what, value in BAD.items():
                fine = what in public.fine.get(parameter.name, "")
                if not fine and not allowed(parameter.annotation, value, what):
                    yield name, parameter.name, what


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    log = rcjax.sample_log(60, 0)
    log = log.select(log.models[:2])
    model = rcjax.fit(log)
    frontier = rcjax.solve_frontier(model, lam=[100.0, 1000.0])
    policy = frontier.policy(lam=1000.0)
    posterior = rcjax.bayes.Posterior(model, model, {}, None, None, None)
    return {
        "log": log,
        "model": model,
        "frontier": frontier,
        "policy": policy,
        "mixture": rcjax.Mixture((policy,), (1.0,)),
        "segments": rcjax.SegmentedPolicy(policy, {"de": policy}, {"de": 1.0}, by="language"),
        "posterior": posterior,
        "array": jnp.array([0.5, 0.6]),
        "key": jax.random.key(0),
        "family": "frank",
        "number": 0.5,
        "objective": lambda outcome, lam: outcome.error + lam * outcome.cost,
        "pair": [log.models],
        "support": (0.0, 1.0),
        "whole": 1,
        "path": folder / "absent" / "file",
        "paths": [*log.models],
    }


@in_turn("name, argument, what", cases)
def test_an_argument_of_another_kind(good, name, argument, what):
    function, public = resolve(name), FUNCTIONS[name]
    names = list(inspect.signature(function).parameters)
    arguments = dict(zip(names, (good[each] for each in public.arguments), strict=False)) | {argument: BAD[what]}
    with pytest.raises((TypeError, ValueError), match=rf"\b{argument}\b") as caught:
        function(**arguments)
    message = str(caught.value)
    assert "must" in message or "give" in message
    assert what.removeprefix("the class ").removeprefix("a ").removeprefix("an ") in message or "'x'" in message
    assert len(message.splitlines()) == 1


def test_types_are_told_though_jax_came_after_the_first_call(monkeypatch):
    """Where JAX was not there yet, its types were anything, and stayed so."""

    def scaled(values: "ArrayLike"):  # noqa: F821 - as in a module that imports it for type checkers only
        check_arguments(scaled, locals())

    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "jax.typing")
        scaled("x")
    with pytest.raises(TypeError, match="values must be"):
        scaled("x")


def test_annotations_can_be_read():
    """What `check_arguments` goes by: a name that it cannot find is taken for anything."""
    for name in FUNCTIONS:
        function = resolve(name)
        if not isinstance(function, type):
            parameters = inspect.signature(function).parameters
            unread = [each for each, kind in _kinds(function).items() if kind is typing.Any]
            assert all("Any" in str(parameters[each].annotation) for each in unread)
