"""What costs may count besides money."""

import dataclasses
import inspect

import rcjax
from rcjax.policy.terms import TERMS


def test_every_amount_is_a_field_of_a_log_and_its_price_an_argument():
    for term in TERMS:
        assert term.column in {field.name for field in dataclasses.fields(rcjax.Log)}
        assert term.column in term.columns
        for function in (rcjax.Spec, rcjax.Log.with_waiting, rcjax.tune, rcjax.make_report):
            assert inspect.signature(function).parameters[term.price].default == 0.0
