"""The public names: each is imported when it is first used."""

from rcjax.tuning.diagnostics.diagnosis import Diagnosis as Diagnosis, diagnose as diagnose
from rcjax.tuning.diagnostics.findings import FINDING_KINDS as FINDING_KINDS, Finding as Finding
from rcjax.tuning.diagnostics.policy_check import PolicyCheck as PolicyCheck, check_policy as check_policy
