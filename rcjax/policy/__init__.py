"""What is deployed: a policy, or a random mixture. Standard library only.

Takes what `rcjax tune` wrote, and what a model answered and how sure it was; gives the decision to answer, to ask
another model, or to refuse."""

from rcjax.policy.agreement import Agreement
from rcjax.policy.mixture import Mixture
from rcjax.policy.policy import (
    Abstain,
    Action,
    Answer,
    AnyPolicy,
    Calibration,
    Decision,
    Defer,
    Policy,
    Rule,
    Transform,
)
from rcjax.policy.policy_files import load_policy
from rcjax.policy.reference import Reference
from rcjax.policy.scores import Scores
from rcjax.policy.spec import Spec

__all__ = [
    "Abstain",
    "Action",
    "Agreement",
    "Answer",
    "AnyPolicy",
    "Calibration",
    "Decision",
    "Defer",
    "Mixture",
    "Policy",
    "Reference",
    "Rule",
    "Scores",
    "Spec",
    "Transform",
    "load_policy",
]
