"""Readers of requests and replies raise only their own errors for any bytes: a few inputs of benchmarks/fuzz.py."""

import random

import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from benchmarks.fuzz import CORPUS, TARGETS, mutated


@pytest.mark.parametrize("name", list(TARGETS))
def test_good_inputs(name):
    for text in CORPUS[name]:
        TARGETS[name](text)


@settings(max_examples=examples(2000), deadline=None)
@given(name=st.sampled_from([*TARGETS]), lots=st.randoms(use_true_random=False), text=st.binary(max_size=200))
def test_no_bytes_crash_a_reader(name, lots, text):
    TARGETS[name](mutated(random.Random(lots.random()), [*CORPUS[name], text]))
    TARGETS[name](text)
