"""What tuning the segments of a log came to, and what there is to say of it."""

import dataclasses
from typing import Any

from rcjax._base.wording import choose_unit, percent
from rcjax.logs.listing import listed
from rcjax.logs.log import Log
from rcjax.policy.agreement import tell_need
from rcjax.policy.policy import Policy
from rcjax.policy.segmented import SegmentedPolicy
from rcjax.policy.targets import Target
from rcjax.replaying.beside_reference import in_words_of
from rcjax.tuning.segment_frontiers import Traffic
from rcjax.tuning.segment_promise import SegmentsCertificate
from rcjax.tuning.segment_trials import FEWEST, Trials
from rcjax.tuning.tune import Tuned

__all__ = ["SegmentFigures", "TunedSegments"]


@dataclasses.dataclass(frozen=True)
class SegmentFigures:
    """One segment: what it has, and what that gains."""

    name: str
    queries: int
    """Of the log."""
    share: float
    """Of the traffic."""
    own: bool
    """Whether it has a policy of its own; else it shares the common one."""
    weight: float | None
    """Of everyone's labels, at which a policy of its own does best; None where it has too few queries."""
    gain: float
    """By how much error + λ·cost is lower by a policy of its own, as a share of that, averaged over all prices, on
    queries left out."""
    gain_se: float
    error: float
    """Expected of its policy."""
    cost: float
    """Expected of its policy, in money per query."""


@dataclasses.dataclass(frozen=True)
class TunedSegments:
    """What tuning the segments of a log came to."""

    whole: Tuned
    """What tuning one policy for all came to, without its policy."""
    trials: Trials
    """What cross-validation says of each segment."""
    policy: SegmentedPolicy
    """The policies to deploy."""
    one_policy: Policy | None
    """One policy for all at the same target; None where that is out of its reach."""
    figures: tuple[SegmentFigures, ...]
    """Of each segment, by first appearance in the log."""
    gain: float
    """By how much error + λ·cost of the whole traffic is below that of one policy for all, as a share of that,
    averaged over all prices, on queries left out. What segments gain that share a policy is not in it."""
    gain_se: float
    certificate: SegmentsCertificate | None = None
    """What is guaranteed."""
    held_out: Log | None = None
    """The queries that the guarantee was tested on."""
    traffics: tuple[Traffic, ...] = dataclasses.field(default=(), repr=False)
    """The kinds of traffic, with what there was to choose from."""

    @property
    def log(self) -> Log:
        """The log tuned on."""
        return self.whole.log

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the segments gain, who shares a policy and why, what is guaranteed and what is needed, in words."""
        few = [one.name for one in self.figures if one.weight is None]
        promise = () if self.certificate is None else self.certificate.describe()
        scant = f"fewer than {FEWEST} queries with all answers, too few for a policy of its own: {', '.join(few)}"
        need = tell_need(self.policy.policies)
        remarks = (_verdict(self), *_instead(self), *([scant] if few else []), *promise, *need)
        return in_words_of(self.whole.log, remarks)

    def to_json(self) -> dict[str, Any]:
        """The document of `rcjax tune --by … --json`."""
        gain = {"gain": self.gain, "gain_se": self.gain_se}
        one = None if self.one_policy is None else {name: self.one_policy.expected[name] for name in ("error", "cost")}
        return {
            "models": list(self.whole.model.models),
            "model_summary": self.whole.to_json()["model_summary"],
            "by": self.policy.by,
            "segments": [dataclasses.asdict(one) for one in self.figures],
            "against_one_policy": gain | {"one_policy": one},
            "policy": self.policy.to_json(),
            "remarks": list(self.remarks),
            **({} if self.certificate is None else {"guarantee": self.certificate.to_json()}),
        }


def _verdict(tuned: TunedSegments) -> str:
    separate, sharing = tuned.policy.own, tuned.policy.sharing
    if not separate:
        return "one policy for all: no segment is shown to gain by a policy of its own (cross-validated)"
    shown = f"gains {percent(tuned.gain)} ± {percent(tuned.gain_se)} of error + λ·cost"
    rest = f"; {listed(sharing)} {'share' if len(sharing) > 1 else 'has'} the common policy" if sharing else ""
    whose = f"a policy of its own for {'each of ' if len(separate) > 1 else ''}{listed(separate)}"
    return f"{whose} {shown} on one policy for all, over the whole traffic, on queries left out{rest}"


def _instead(tuned: TunedSegments) -> tuple[str, ...]:
    """What one policy for all would do at the same target, where that is another."""
    if not tuned.policy.own:
        return ()
    one, target = tuned.one_policy, Target.of(**tuned.whole.target)
    if one is None:
        return ("one policy for all could not meet the target",)
    error, cost = (float(one.expected[name] or 0.0) for name in ("error", "cost"))
    return (f"one policy for all, for {target}: {percent(error)} wrong, at {choose_unit([cost]).full(cost)}",)
