"""The public names: each is imported when it is first used."""

from rcjax.tuning.certify import Certificate as Certificate, OverlapWarning as OverlapWarning
from rcjax.tuning.comparison import Comparison as Comparison, Selection as Selection
from rcjax.tuning.searches import bootstrap as bootstrap
from rcjax.tuning.select import select_frontier as select_frontier
from rcjax.tuning.tune import Tuned as Tuned
