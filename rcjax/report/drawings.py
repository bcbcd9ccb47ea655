"""The figures of a report's checks, as SVG."""

from typing import Any

from markupsafe import Markup

from rcjax.diagnostics import Diagnosis
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.plots import diagnosis_figures
from rcjax.report.svg import style, to_svg

_PIXELS = 84  # of an inch of figures with several panels, on a wide screen


#: Inches of a figure with one panel, and the pixels of one: a phone is as wide, with text as large as in the page.
_ONE, _ONE_PIXELS = (4.6, 3.6), 120


_CAPTIONS = {
    "reliability": "{success} against calibrated confidence, held out: on the diagonal, it is as the confidence says.",
    "accuracy_above": "{success} of the most confident answers: a line that does not rise towards few answers is of a "
    "model whose confidence tells little.",
    "marginals": "Calibrated confidences of each model, and the distribution fitted to them.",
    "copulas": "How the confidences of neighbouring models go together: above in the log, below in the fitted model. "
    "They should look alike.",
    "correlations": "Rank correlations of the confidences.",
    "frontier": "{noun} and cost of the policies as promised when they were tuned, and as seen on queries that the "
    "tuning left out.",
}


_FOLDED = ("marginals", "copulas", "correlations")  # what statisticians look at


def draw_checks(diagnosis: Diagnosis, model: CascadeModel, log: Log) -> list[dict[str, Any]]:
    """The figures of a diagnosis of a model on a log, as the template takes them."""
    with style():
        drawn = diagnosis_figures(diagnosis, model, log)
    words = {"noun": diagnosis.counted.noun.capitalize(), "success": diagnosis.counted.success.capitalize()}
    captions = {name: caption.format(**words) for name, caption in _CAPTIONS.items()}
    single = {name for name, figure in drawn.items() if len(figure.axes) == 1}
    for name in single:
        drawn[name].set_size_inches(*_ONE)
    return [
        {
            "name": name,
            "caption": caption,
            "folded": name in _FOLDED,
            "svg": Markup(to_svg(drawn[name], name, caption)),
            "width": f"{drawn[name].get_size_inches()[0] * (_ONE_PIXELS if name in single else _PIXELS):.0f}",
            "single": name in single,
        }
        for name, caption in captions.items()
        if name in drawn
    ]
