import copy
import dataclasses
import json
import math
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcjax.policy import Answer, Calibration, Defer, Policy, Rule, load_policy

GENERATION = Calibration("generation", intercept=0.25, slope=0.75, smallest=-6.0, largest=5.5)
CHOICE = Calibration("choice", intercept=-1.0, slope=0.5, smallest=0.125, largest=10.0)
PLAIN = Calibration("none", intercept=2.0, slope=4.0, smallest=-3.0, largest=0.0)


def make_policy(**changes):
    parts = {
        "models": ("small", "médium", "large"),
        "calibrations": {"small": GENERATION, "médium": CHOICE, "large": PLAIN},
        "rules": {
            "small": (Rule(0.3, "ask", "large"), Rule(0.7, "ask", "médium"), Rule(1.0, "answer")),
            "médium": (Rule(0.6, "ask", "large"), Rule(1.0, "answer")),
            "large": (Rule(1.0, "answer"),),
        },
        "cost": {"small": 1e-5, "médium": 1 / 3e4, "large": 2e-4},
        "prices": {"small": {"input": 0.1, "output": 0.4}},
        "expected": {"error": 0.1, "cost": 3e-5, "lam": 0.0, "error_cost": None},
        "provenance": {"queries": 300, "versions": {"rcjax": "0.1.0"}, "notes": ["λ", True, None, 0.5]},
    }
    return Policy(**{**parts, **changes})


def make_json(**changes):
    return {**make_policy().to_json(), **changes}


# Calibration


def xi(transform, p):
    if transform == "none":
        return math.log(p)
    if transform == "choice":
        return math.log(1 / (1 - p))
    return math.log(1 / (1 - p)) - math.log(2) if p >= 0.5 else math.log(p) + math.log(2)


@pytest.mark.parametrize("calibration", [GENERATION, CHOICE, PLAIN], ids=lambda c: c.transform)
@given(p=st.floats(1e-6, 1 - 1e-6))
def test_calibration_is_the_formula(calibration, p):
    log_odds = calibration.intercept + calibration.slope * xi(calibration.transform, p)
    assert calibration(math.log(p)) == pytest.approx(1 / (1 + math.exp(-log_odds)), rel=1e-8)


@pytest.mark.parametrize("calibration", [GENERATION, CHOICE, PLAIN], ids=lambda c: c.transform)
@given(logprob=st.floats(max_value=0.0))
def test_calibration_is_a_probability_everywhere(calibration, logprob):
    assert 0 <= calibration(logprob) <= 1


@given(p=st.floats(1e-6, 0.5))
def test_generation_is_antisymmetric(p):
    centred = Calibration("generation", 0.0, 1.0, -1.0, 1.0)
    assert centred(math.log(p)) + centred(math.log1p(-p)) == pytest.approx(1.0, abs=1e-9)


def test_generation_is_continuous_at_one_half():
    centred = Calibration("generation", 0.0, 1.0, -1.0, 1.0)
    for logprob in (-math.log(2), math.nextafter(-math.log(2), -1), math.nextafter(-math.log(2), 0)):
        assert centred(logprob) == pytest.approx(0.5, abs=1e-15)


def logistic(x):
    return 1 / (1 + math.exp(-x))


def test_infinities_take_the_training_extremes():
    assert GENERATION(0.0) == pytest.approx(logistic(0.25 + 0.75 * 5.5), rel=1e-15)
    assert GENERATION(-math.inf) == pytest.approx(logistic(0.25 - 0.75 * 6.0), rel=1e-15)
    assert CHOICE(0.0) == pytest.approx(logistic(-1 + 0.5 * 10.0), rel=1e-15)
    assert CHOICE(-math.inf) == pytest.approx(logistic(-1.0), rel=1e-15)  # log 1/(1−0) = 0 is finite
    assert PLAIN(0.0) == pytest.approx(logistic(2.0), rel=1e-15)
    assert PLAIN(-math.inf) == pytest.approx(logistic(-10.0), rel=1e-15)


def test_logprobs_next_to_zero_keep_their_precision():
    identity = Calibration("choice", 0.0, 0.01, 0.0, 1.0)
    assert identity(-1e-300) == pytest.approx(logistic(0.01 * 300 * math.log(10)), rel=1e-12)


@pytest.mark.parametrize("intercept", [-1e100, 1e100])
@pytest.mark.parametrize("slope", [-1e100, 0.0, 1e100])
def test_the_largest_coefficients_do_not_overflow(intercept, slope):
    for logprob in (0.0, -1e-320, -0.1, -1e308, -math.inf):
        for transform in ("choice", "generation", "none"):
            assert 0 <= Calibration(transform, intercept, slope, -1e100, 1e100)(logprob) <= 1


@pytest.mark.parametrize("logprob", [math.nan, 1e-9, math.inf])
def test_bad_logprob(logprob):
    with pytest.raises(ValueError, match="logprob must be at most 0"):
        CHOICE(logprob)


# Steps


def test_step_follows_the_rules():
    policy = make_policy()
    answers = {"small": Answer, "médium": Defer, "large": Answer}
    for model, kind in answers.items():
        decision = policy.step(model, logprob=math.log(0.9))
        assert type(decision) is kind
        assert decision.confidence == policy.calibrate(model, logprob=math.log(0.9))
    assert policy.step("small", confidence=0.01).next_model == "large"
    assert policy.step("small", confidence=0.4).next_model == "médium"
    assert policy.first == "small"


@pytest.mark.parametrize("logprob", [-3.0, -0.2, 0.0, -math.inf])
def test_a_confidence_at_the_threshold_defers_and_the_next_above_answers(logprob):
    phi = CHOICE(logprob)

    def step(threshold):
        rules = {**make_policy().rules, "médium": (Rule(threshold, "ask", "large"), Rule(1, "answer"))}
        return make_policy(rules=rules).step("médium", logprob=logprob)

    assert step(phi) == Defer("large", phi)
    assert step(math.nextafter(phi, 1)) == Defer("large", phi)
    assert step(math.nextafter(phi, 0)) == Answer("médium", phi)


@given(threshold=st.floats(0, 1, exclude_max=True), p=st.floats(0, 1))
def test_step_agrees_with_calibrate_and_thresholds(threshold, p):
    rules = {**make_policy().rules, "médium": [Rule(threshold, "ask", "large"), Rule(1, "answer")]}
    policy = make_policy(rules=rules)
    phi = policy.calibrate("médium", confidence=p)
    decision = policy.step("médium", confidence=p)
    assert policy.thresholds["médium"] == threshold
    assert decision == (Answer("médium", phi) if phi > threshold else Defer("large", phi))


def test_certain_confidences_fall_in_the_first_and_the_last_rule():
    sure = Calibration("none", 1e100, 1e100, -1.0, 1.0)
    policy = make_policy(calibrations={**make_policy().calibrations, "médium": sure})
    assert policy.step("médium", logprob=0.0) == Answer("médium", 1.0)
    unsure = Calibration("none", -1e100, 0.0, -1.0, 1.0)
    policy = make_policy(
        calibrations={**policy.calibrations, "médium": unsure},
        rules={**policy.rules, "médium": [Rule(0.0, "ask", "large"), Rule(1.0, "answer")]},
    )
    assert policy.step("médium", logprob=0.0) == Defer("large", 0.0)


def test_thresholds():
    assert make_policy().thresholds == {"small": None, "médium": 0.6, "large": None}
    never = {**make_policy().rules, "small": [Rule(1.0, "ask", "large")]}
    assert make_policy(rules=never).thresholds["small"] == 1.0
    upside_down = {**make_policy().rules, "small": [Rule(0.5, "answer"), Rule(1.0, "ask", "large")]}
    assert make_policy(rules=upside_down).thresholds["small"] is None


@given(p=st.floats(0, 1))
def test_logprob_and_confidence_are_the_same_thing(p):
    policy = make_policy()
    logprob = math.log(p) if p > 0 else -math.inf
    assert policy.step("small", confidence=p) == policy.step("small", logprob=logprob)


@given(data=st.data())
def test_every_run_ends_with_an_answer(data):
    policy, asked = make_policy(), []
    decision = Defer(policy.first, 0.0)
    while isinstance(decision, Defer):
        asked.append(decision.next_model)
        decision = policy.step(decision.next_model, confidence=data.draw(st.floats(0, 1)))
    assert asked == [model for model in policy.models if model in asked]
    assert decision.model == asked[-1]


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("huge", {"logprob": -1.0}, "unknown model 'huge'; this policy has small, médium, large"),
        ("small", {}, "exactly one"),
        ("small", {"logprob": -1.0, "confidence": 0.5}, "exactly one"),
        ("small", {"logprob": 0.1}, "at most 0"),
        ("small", {"logprob": math.nan}, "at most 0"),
        ("small", {"confidence": 1.1}, r"in \[0, 1\], not 1.1"),
        ("small", {"confidence": -0.1}, r"in \[0, 1\], not -0.1"),
        ("small", {"confidence": math.nan}, r"in \[0, 1\], not nan"),
    ],
)
def test_bad_arguments(model, arguments, message):
    for method in (make_policy().step, make_policy().calibrate):
        with pytest.raises(ValueError, match=message):
            method(model, **arguments)


def test_numpy_numbers_are_welcome_and_do_not_stay():
    numpy = pytest.importorskip("numpy")
    policy = make_policy(cost={name: numpy.float32(0.5) for name in make_policy().models})
    assert all(type(cost) is float for cost in policy.cost.values())
    assert type(policy.step("small", logprob=numpy.float32(-3.0)).confidence) is float
    assert policy.step("small", logprob=numpy.float64(-3.0)) == policy.step("small", logprob=-3.0)
    with pytest.raises(ValueError, match="must be between"):
        make_policy(expected={"lam": numpy.float32(numpy.inf)})
    assert make_policy(provenance={"n": numpy.int64(3)}) == make_policy(provenance={"n": 3})


# Values: immutable, equal, copied


def test_policies_are_immutable():
    policy = make_policy()
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.models = ("other",)
    for mapping in (policy.calibrations, policy.rules, policy.cost, policy.prices["small"], policy.expected):
        with pytest.raises(TypeError):
            mapping["small"] = None
    with pytest.raises(TypeError):
        policy.provenance["versions"]["rcjax"] = "9"
    for value in (GENERATION, Rule(1.0, "answer"), Answer("small", 0.5), Defer("small", 0.5)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, 1)


def test_policies_do_not_share_what_they_were_built_from():
    cost, provenance = dict(make_policy().cost), {"notes": [1]}
    policy = make_policy(cost=cost, provenance=provenance)
    cost["small"] = 9.0
    provenance["notes"].append(2)
    policy.to_json()["provenance"]["notes"].append(3)
    assert policy == make_policy(provenance={"notes": [1]})


def test_equality_is_by_value():
    assert make_policy() == make_policy()
    assert make_policy() != make_policy(expected={})
    assert make_policy(prices=None) != make_policy(prices={})


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_and_pickles(duplicate):
    twin = duplicate(make_policy())
    assert twin == make_policy()
    assert twin.step("small", logprob=-1.0) == make_policy().step("small", logprob=-1.0)


# Files


names = st.text(min_size=1, max_size=8)
reals = st.floats(-1e100, 1e100)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**99), 10**99) | reals | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def policies(draw):
    models = draw(st.lists(names, min_size=1, max_size=4, unique=True))

    def calibration():
        low, high = sorted([draw(reals), draw(reals)])
        transform = draw(st.sampled_from(["choice", "generation", "none"]))
        return Calibration(transform, draw(reals), draw(reals), low, high)

    def rule(up_to, later):
        target = draw(st.sampled_from([None, *later]))
        return Rule(up_to, "answer") if target is None else Rule(up_to, "ask", target)

    def table(later):
        ends = draw(st.sets(st.floats(0, 1), max_size=3)) | {1.0}
        return [rule(up_to, later) for up_to in sorted(ends)]

    amounts = st.floats(0, 1e100)
    return Policy(
        models=models,
        calibrations={model: calibration() for model in models},
        rules={model: table(models[i + 1 :]) for i, model in enumerate(models)},
        cost={model: draw(amounts) for model in models},
        prices=draw(st.none() | st.dictionaries(names, st.dictionaries(names, amounts, max_size=2), max_size=2)),
        expected=draw(st.dictionaries(names, st.none() | reals, max_size=3)),
        provenance=draw(st.dictionaries(names, json_values, max_size=3)),
    )


@settings(max_examples=60, deadline=None)
@given(policy=policies())
def test_round_trip_is_exact(tmp_path_factory, policy):
    path = tmp_path_factory.getbasetemp() / "round-trip.json"
    policy.save(path)
    assert Policy.load(path) == policy
    assert Policy.from_json(policy.to_json()) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
    content = path.read_bytes()
    load_policy(path).save(path)
    assert path.read_bytes() == content


def test_format(tmp_path):
    make_policy().save(tmp_path / "policy.json")
    data = json.loads((tmp_path / "policy.json").read_text("utf-8"))
    assert data["format"] == "rcjax-policy"
    assert data["schema_version"] == 1
    assert data["rules"]["médium"] == [
        {"up_to": 0.6, "action": "ask", "model": "large"},
        {"up_to": 1.0, "action": "answer"},
    ]
    assert data["calibrations"]["large"] == dataclasses.asdict(PLAIN)
    assert data["provenance"] == {**data["provenance"], "notes": ["λ", True, None, 0.5]}


def test_unknown_keys_are_ignored():
    data = make_json(later={"deep": [math.nan]})
    data["calibrations"]["small"]["fitted"] = "yesterday"
    data["rules"]["large"][0]["comment"] = None
    assert Policy.from_json(data) == make_policy()


def test_a_byte_order_mark_and_a_null_are_fine(tmp_path):
    (tmp_path / "policy.json").write_text(json.dumps(make_json(prices=None)), "utf-8-sig")
    assert load_policy(tmp_path / "policy.json") == make_policy(prices=None)


DELETE = object()


def edited(path, value):
    """The JSON of a policy with the entry at `path` replaced, or deleted."""
    data = make_policy().to_json()
    *parents, last = path
    spot = data
    for key in parents:
        spot = spot[key]
    if value is DELETE:
        del spot[last]
    else:
        spot[last] = value
    return data


ASK_BACK = [{"up_to": 1.0, "action": "ask", "model": "small"}]

BROKEN = [
    (("format",), "other", "format: must be 'rcjax-policy'.* but it is 'other'"),
    (("format",), DELETE, "format: .* missing"),
    (("schema_version",), 3, "this file has schema version 3, this rcjax reads up to 1: upgrade rcjax"),
    (("schema_version",), 0, "schema_version: must be a whole number"),
    (("schema_version",), True, "schema_version: "),
    (("schema_version",), "1", "schema_version: "),
    (("models",), [], "models: must be a list, not empty"),
    (("models",), "small", "models: must be a list"),
    (("models",), ["small", "médium", "large", "small"], "models: must not repeat"),
    (("models", 0), 5, r"models\[0\]: must be a text"),
    (("models", 0), "", r"models\[0\]: must be a text that is not empty"),
    (("models",), ["small", "médium", "large", "more"], "calibrations: must have as keys .*'more'"),
    (("calibrations",), DELETE, "calibrations: must be an object, but it is missing or null"),
    (("calibrations", "small"), DELETE, "calibrations: must have as keys"),
    (("calibrations", "small"), 1.0, r"calibrations\['small'\]: must be an object, but it is 1.0"),
    (("calibrations", "small", "slope"), DELETE, r"calibrations\['small'\].slope: must be a number.*missing"),
    (
        ("calibrations", "small", "slope"),
        "1",
        r"calibrations\['small'\].slope: must be a number, but it is '1'",
    ),
    (("calibrations", "small", "slope"), False, r"\.slope: must be a number, but it is False"),
    (("calibrations", "small", "slope"), math.nan, r"\.slope: must be between .* but it is nan"),
    (("calibrations", "small", "slope"), math.inf, r"\.slope: must be between .* but it is inf"),
    (("calibrations", "small", "slope"), 10**400, r"\.slope: must be between"),
    (("calibrations", "small", "smallest"), 9.0, r"\.smallest: must be at most `largest`"),
    (("calibrations", "small", "transform"), "probit", r"\.transform: .*upgrade.*'probit'"),
    (("rules", "small"), [], r"rules\['small'\]: must be a list, not empty"),
    (("rules", "small"), {"up_to": 1}, r"rules\['small'\]: must be a list"),
    (("rules", "small", 0), "answer", r"rules\['small'\]\[0\]: must be an object"),
    (("rules", "small", 0, "up_to"), 1.5, r"rules\['small'\]\[0\].up_to: must be between 0 and 1.*1.5"),
    (("rules", "small", 0, "up_to"), -0.1, r"up_to: must be between 0 and 1"),
    (("rules", "small", 0, "up_to"), 0.7, r"rules\['small'\]: must have its up_to in increasing order"),
    (("rules", "small", 2, "up_to"), 0.9, r"rules\['small'\]: must have 1 as its last up_to"),
    (
        ("rules", "small", 0, "action"),
        "abstain",
        r"rules\['small'\]\[0\].action: .*knows.*upgrade.*'abstain'",
    ),
    (("rules", "small", 0, "model"), DELETE, r"rules\['small'\]\[0\].model: .*missing"),
    (("rules", "small", 0, "model"), "huge", r"\.model: must be a later model, .*'large'.* but it is 'huge'"),
    (("rules", "small", 0, "model"), "small", r"must be a later model"),
    (("rules", "médium"), ASK_BACK, r"rules\['médium'\]\[0\].model: must be a later model"),
    (("rules", "large"), ASK_BACK, "the last model has to answer"),
    (("rules", "large", 0, "model"), "small", r"model: is for the action 'ask' only"),
    (("cost", "small"), -1e-5, r"cost\['small'\]: must be between 0"),
    (("cost", "small"), None, r"cost\['small'\]: must be a number"),
    (("cost", "other"), 1.0, "cost: must have as keys"),
    (("prices",), [], "prices: must be an object"),
    (("prices", "small"), 1.0, r"prices\['small'\]: must be an object"),
    (("prices", "small", "input"), "free", r"prices\['small'\]\['input'\]: must be a number"),
    (("expected",), None, "expected: must be an object"),
    (("expected", "error"), "low", r"expected\['error'\]: must be a number"),
    (("provenance",), [1], "provenance: must be an object"),
    (("provenance", "x"), math.nan, r"provenance\['x'\]: must be between"),
    (("provenance", "x"), {1}, r"provenance\['x'\]: must be a JSON value"),
]


@pytest.mark.parametrize(("path", "value", "message"), BROKEN)
def test_broken_values(path, value, message):
    with pytest.raises(ValueError, match=message) as caught:
        Policy.from_json(edited(path, value))
    assert "\n" not in str(caught.value)


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "file: must hold a JSON object"),
        ("null", "file: must hold a JSON object"),
        ("3", "file: must hold a JSON object"),
        ('{"format": "rcjax-policy", "format": "rcjax-policy"}', "'format' is there twice"),
        (nested(100_000), "not JSON"),
        ('{"format": ' + nested(100_000) + "}", "not JSON"),
        (json.dumps(make_json()).replace('["\\u03bb', nested(80)[:-1] + ',"'), "nested more than"),
        (json.dumps(make_json()).replace("0.25", "1e999"), "intercept: must be between"),
        (json.dumps(make_json()).replace("0.25", "1" * 5000), "not JSON|intercept"),
    ],
)
def test_broken_files(tmp_path, text, message):
    path = tmp_path / "policy.json"
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        load_policy(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_text(tmp_path):
    (tmp_path / "policy.json").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ValueError, match="not JSON"):
        load_policy(tmp_path / "policy.json")


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.json"):
        load_policy(tmp_path / "absent.json")


VALID = json.dumps(make_policy().to_json(), indent=2).encode()


def loads_or_refuses(path, content):
    path.write_bytes(content)
    try:
        policy = load_policy(path)
    except ValueError:
        return None
    policy.save(path)
    assert load_policy(path) == policy
    assert isinstance(policy.step(policy.first, confidence=0.5), (Answer, Defer))
    return policy


@settings(max_examples=200, deadline=None)
@given(length=st.integers(0, len(VALID) - 1))
def test_truncated_files_are_refused(tmp_path_factory, length):
    assert loads_or_refuses(tmp_path_factory.getbasetemp() / "cut.json", VALID[:length]) is None


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, len(VALID) - 1), junk=st.binary(min_size=1, max_size=3))
def test_damaged_files_load_or_are_refused(tmp_path_factory, at, junk):
    damaged = VALID[:at] + junk + VALID[at + len(junk) :]
    loads_or_refuses(tmp_path_factory.getbasetemp() / "damaged.json", damaged)


def places(data, path=()):
    """The path of every entry in a JSON value."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from places(value, (*path, key))


wrong = (
    json_values
    | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 10**400, 2, -1, "", "small", DELETE])
    | st.floats()
)


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(list(places(make_policy().to_json()))), value=wrong)
def test_replaced_values_load_or_are_refused(tmp_path_factory, path, value):
    content = json.dumps(edited(path, value)).encode()
    loads_or_refuses(tmp_path_factory.getbasetemp() / "replaced.json", content)


@settings(max_examples=100, deadline=None)
@given(data=st.recursive(st.none() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_any_json_value_is_refused(data):
    with pytest.raises(ValueError):
        Policy.from_json(data)


# Saving


def test_save_replaces_the_whole_file(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text("x" * 100_000)
    make_policy().save(str(path))
    assert load_policy(str(path)) == make_policy()
    assert os.listdir(tmp_path) == ["policy.json"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["full", "interrupt"])
def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch, call, error):
    path = tmp_path / "policy.json"
    make_policy().save(path)

    def fail(*_):
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(error)):
        make_policy(expected={}).save(path)
    assert load_policy(path) == make_policy()
    assert os.listdir(tmp_path) == ["policy.json"]


def test_save_writes_through_a_link(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "policy.json")
    make_policy().save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load_policy(tmp_path / "policy.json") == make_policy()


def test_save_into_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        make_policy().save(tmp_path / "absent" / "policy.json")


def test_importing_the_policy_imports_no_jax_and_no_numpy():
    heavy = ("jax", "jaxlib", "numpy", "polars", "narwhals")
    program = f"import sys, rcjax.policy; print(*[name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
