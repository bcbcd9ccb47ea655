"""The public names: `rcjax/__init__.py` imports each when it is first used."""

from rcjax import (
    bayes as bayes,
    copulas as copulas,
    logs as logs,
    model as model,
    policy as policy,
    report as report,
    serving as serving,
    solving as solving,
    testing as testing,
    tuning as tuning,
)
from rcjax.logs.errors import LogError as LogError
from rcjax.logs.log import Log as Log
from rcjax.logs.reading import read_log as read_log
from rcjax.model.cascade_model import CascadeModel as CascadeModel, demo_model as demo_model, sample_log as sample_log
from rcjax.model.fitting import fit as fit
from rcjax.policy.ladder import Ladder as Ladder, load_policy as load_policy
from rcjax.policy.policy import Policy as Policy
from rcjax.policy.spec import Spec as Spec
from rcjax.report.page import make_report as make_report
from rcjax.serving.call_log import CallLog as CallLog, CascadeError as CascadeError
from rcjax.serving.cascade import Cascade as Cascade
from rcjax.solving.frontier.frontier import (
    Frontier as Frontier,
    InfeasibleError as InfeasibleError,
    load_frontier as load_frontier,
)
from rcjax.solving.tradeoff import solve_frontier as solve_frontier
from rcjax.tuning.certify import certify as certify
from rcjax.tuning.diagnostics.diagnosis import diagnose as diagnose
from rcjax.tuning.diagnostics.policy_check import check_policy as check_policy
from rcjax.tuning.replaying.replay import replay as replay
from rcjax.tuning.tune import Tuned as Tuned, retune as retune, tune as tune

__version__: str
