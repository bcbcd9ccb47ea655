"""The public names: each is imported when it is first used."""

from rcjax.report.page import Report as Report, make_report as make_report
