"""The public names: each is imported when it is first used."""

from rcjax.replaying.comparing import compare_policy as compare_policy
from rcjax.replaying.figures import area_under_curve as area_under_curve
from rcjax.replaying.replay import Replay as Replay
