"""Guarantees of policies that pass on a share of some queries: by what is expected over the lots, not by counts."""

import dataclasses

import jax
import numpy as np
import pytest

import rcjax
from rcjax.frontier.frontier import make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points
from rcjax.frontier.policies import Policies, Splits
from rcjax.logs import Log
from rcjax.policy import SecondsLimit
from rcjax.replaying.replay import replay
from rcjax.tuning.certify import certify
from rcjax.tuning.certify_seconds import Beyond, count_beyond
from rcjax.tuning.evidence import evidence_of
from rcjax.tuning.p_values import binomial_tail, bounded_mean_p_value
