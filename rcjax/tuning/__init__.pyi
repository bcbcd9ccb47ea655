"""The public names: each is imported when it is first used."""

from rcjax.tuning.bootstrapping import bootstrap as bootstrap
from rcjax.tuning.certify import Certificate as Certificate, OverlapWarning as OverlapWarning
from rcjax.tuning.cross_validation import CrossValidation as CrossValidation
from rcjax.tuning.search import Selection as Selection, select_frontier as select_frontier
from rcjax.tuning.tune import Tuned as Tuned
