"""The public names: each is imported when it is first used."""

from rcjax.policy.ladder import Ladder as Ladder
from rcjax.policy.policy import (
    Abstain as Abstain,
    Answer as Answer,
    AnyPolicy as AnyPolicy,
    Calibration as Calibration,
    Decision as Decision,
    Defer as Defer,
    Policy as Policy,
    Rule as Rule,
    Transform as Transform,
)
from rcjax.policy.policy_files import load_policy as load_policy
from rcjax.policy.reference import Reference as Reference
from rcjax.policy.rules import Action as Action, Agreement as Agreement
from rcjax.policy.scores import Scores as Scores
from rcjax.policy.spec import Spec as Spec
