"""The public names: each is imported when it is first used."""

from rcjax.policy.comparison import Comparison as Comparison, Rival as Rival, UnsupportedGain as UnsupportedGain
from rcjax.policy.decisions import (
    Action as Action,
    Agreement as Agreement,
    Calibration as Calibration,
    Rule as Rule,
    Transform as Transform,
)
from rcjax.policy.error_kind import Reference as Reference, Scores as Scores
from rcjax.policy.ladder import Ladder as Ladder, Period as Period, Queries as Queries, load_policy as load_policy
from rcjax.policy.policy import (
    Abstain as Abstain,
    AbstractPolicy as AbstractPolicy,
    Answer as Answer,
    Decision as Decision,
    Defer as Defer,
    Policy as Policy,
)
from rcjax.policy.spec import Spec as Spec, Target as Target
