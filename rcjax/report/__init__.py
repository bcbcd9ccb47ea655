"""One page for a team: the frontier of a log, what it is worth, how far to trust it, and how to deploy it.

`make_report` gathers the figures, `Report.save` writes them as one self-contained HTML file. Needs matplotlib and
Jinja2 (`pip install 'rcjax[report]'`).
"""

from rcjax.report.contents import Report, make_report
from rcjax.report.findings import Against

__all__ = ["Against", "Report", "make_report"]
