"""The public names: each is imported when it is first used."""

from rcjax.serving.call_log import CallLog as CallLog, CascadeError as CascadeError
from rcjax.serving.cascade import Cascade as Cascade, ServiceOptions as ServiceOptions
from rcjax.serving.models_file import ServedModel as ServedModel
from rcjax.serving.shadow import ShadowRate as ShadowRate
from rcjax.serving.totals import Ledger as Ledger
