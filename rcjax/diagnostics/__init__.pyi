"""The public names: each is imported when it is first used."""

from rcjax.diagnostics.checks import KINDS as KINDS, CheckResult as CheckResult
from rcjax.diagnostics.diagnosis import Diagnosis as Diagnosis, diagnose as diagnose
from rcjax.diagnostics.policy_check import PolicyCheck as PolicyCheck, check_policy as check_policy
