"""The public names: each is imported when it is first used."""

from rcjax.report.contents import Report as Report, make_report as make_report
from rcjax.report.findings import Against as Against
