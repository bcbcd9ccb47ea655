"""A page for a team: the frontier of a log, its value, the checks of its promise, and the commands to deploy it.

`make_report` computes the figures, `Report.save` writes them as one self-contained HTML file. Needs matplotlib and
Jinja2 (`pip install 'rcjax[report]'`).
"""

from rcjax._base.extras import lazy_exports as _lazy_exports

__getattr__, __dir__, __all__ = _lazy_exports(__name__, __file__)
