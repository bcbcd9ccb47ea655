"""The public names: each is imported when it is first used."""

from rcjax.serving.call_log import CallLog as CallLog, ShadowRate as ShadowRate
from rcjax.serving.cascade import Cascade as Cascade, CascadeError as CascadeError
from rcjax.serving.ledger import Ledger as Ledger
from rcjax.serving.models_file import ServedModel as ServedModel
