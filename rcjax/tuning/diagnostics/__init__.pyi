"""The public names: each is imported when it is first used."""

from rcjax.tuning.diagnostics.checks import KINDS as KINDS, CheckResult as CheckResult
from rcjax.tuning.diagnostics.diagnosis import Diagnosis as Diagnosis, diagnose as diagnose
from rcjax.tuning.diagnostics.policy_check import PolicyCheck as PolicyCheck, check_policy as check_policy
