"""The public names: each is imported when it is first used."""

from rcjax.tuning.replaying.comparing import compare_policy as compare_policy
from rcjax.tuning.replaying.replay import Replay as Replay
