"""What a solver says of each point that it found."""

from rcjax._core.statuses import Status


class PointStatus(Status):
    """What became of a λ: `Frontier.status`, and the status of a sweep's points."""

    CONVERGED = 0, "converged"
    AT_BOUND = 1, "converged, with a threshold at the end of a model's range (it always or never answers)"
    NOT_CONVERGED = (
        2,
        "the iterations ran out while the loss was still falling: the thresholds may be slightly off",
    )
    INTERPOLATED = 3, "thresholds between those of two neighbouring optima: a point that no λ leads to"
    NO_DATA = 4, "not solved: in this draw a model has no answer, or two models share no query"
    NOT_FINITE = 5, "failed: error or cost came out as no finite number"
