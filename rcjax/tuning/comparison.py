"""What was compared in cross-validation: cascades of each length, and their rivals, by cross-validated figures."""

import dataclasses
from typing import Any

import numpy as np

from rcjax.solving.lambda_grid import log_lam

__all__ = ["LEAST_SHOWN", "Comparison", "Rival", "VotesGain", "over_neighbours"]


_WINDOW = 9  # prices that luck is averaged over


_LEAST_GAIN = 0.002  # of error + λ·cost, for comparing answers to earn its place


#: The same for them to stand in the place of policies without answers.
LEAST_SHOWN = 0.004


_LEAST_GAIN_OF_VOTES = 0.008  # the same for several samples of a model


_CONTRADICTION = 3.0  # standard errors


@dataclasses.dataclass(frozen=True)
class Rival:
    """Cross-validated figures of the best policies that may compare answers; G prices λ, numpy's arrays.

    At each price that is a single model, a pair, or one by agreement (`agreement_candidates`), whichever the labels of
    the other folds make the best. Gains are of expected errors on the queries left out: by their confidences and by
    which of their answers are equal, as the labels of the other folds tell. Counted by the labels of 300 queries, a
    gain of 7 % has a standard error of 5 %, and two of three would be missed.
    """

    error: np.ndarray  # (G,) on queries that the policies were not tuned on; a refusal counts at its price
    cost: np.ndarray  # (G,)
    gain: np.ndarray  # (G,) by how much error + λ·cost is below that of the pair
    gain_se: np.ndarray  # (G,) its standard error, over queries
    overall: float  # the gain as a share of the pair's error + λ·cost, averaged over the prices
    overall_se: float
    counted: float  # the same by the labels of the queries left out themselves
    counted_se: float

    @property
    def earned(self) -> bool:
        """Whether comparing answers gains enough over all prices together.

        That is 0.2 %, and the labels left out must not contradict by three standard errors. The frontier keeps the
        policies without answers (`select_frontier`), so that a gain which is not there costs little, and one that is
        missed much.
        """
        return self.overall > _LEAST_GAIN and self.counted > -_CONTRADICTION * self.counted_se

    @property
    def shown(self) -> bool:
        """Whether it gains enough to stand in the place of policies without answers, which then do not stay beside.

        That is 0.4 % and more than one standard error, and the labels left out must not contradict by three.
        """
        return self.earned and self.overall > max(self.overall_se, LEAST_SHOWN)


@dataclasses.dataclass(frozen=True)
class VotesGain:
    """What several samples of a model gain: the best pair of all variants against the best of one sample each.

    On queries that neither was tuned on, with errors as they are expected there, as those of `Rival` are: counted by
    the labels of 300 queries, gains of 12 % of area would be missed in two of three logs. G prices λ, numpy's arrays.
    """

    models: tuple[str, ...]  # of which several samples vote
    gain: np.ndarray  # (G,) by how much error + λ·cost is lower with several samples
    gain_se: np.ndarray  # (G,) its standard error, over queries
    overall: float  # the gain as a share of error + λ·cost, averaged over the prices
    overall_se: float
    counted: float  # the same by the labels of the queries left out themselves
    counted_se: float

    @property
    def earned(self) -> bool:
        """Whether several samples gain enough over all prices together for any to be used.

        That is more than one standard error and 0.8 %, and the labels left out must not contradict by three standard
        errors: with four variants of each model to choose from, one or another looks better by luck.
        """
        enough = max(self.overall_se, _LEAST_GAIN_OF_VOTES)
        return self.overall > enough and self.counted > -_CONTRADICTION * self.counted_se


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Cross-validated figures of the best policies with so many models; S lengths, G prices λ, numpy's arrays.

    Length 1 is the best single model, 2 the best pair (or single model) by the labels; from 3 on, the best cascade of
    exactly so many models under the Markov-copula model. A policy that is best for one λ may be another for the next.
    """

    lengths: np.ndarray  # (S,)
    lam: np.ndarray  # (G,) increasing
    error: np.ndarray  # (S, G) on queries that the policies were not tuned on; a refusal counts at its price
    cost: np.ndarray  # (S, G)
    gain: np.ndarray  # (S, G) by how much error + λ·cost is below that of the pair
    gain_se: np.ndarray  # (S, G) its standard error, over queries
    overall: np.ndarray  # (S,) the gain as a share of the pair's error + λ·cost, averaged over the prices
    overall_se: np.ndarray  # (S,)
    agreement: Rival | None = None  # policies that compare answers, where the log tells answers
    votes: VotesGain | None = None  # several samples against one, where the log has variants of models

    @property
    def chosen(self) -> np.ndarray:
        """(G,) the length that earns its place at each price: 2, or a longer one.

        That must gain more than one standard error over all prices together, and at the price itself: of forty prices,
        one or another always looks better by luck.
        """
        short = np.full(len(self.lam), min(2, self.lengths[-1]))
        best = self._longer
        if best is None:
            return short
        earned = (self.gain[best] > self.gain_se[best]) & ~self.agreeing
        return np.where(earned, self.lengths[best], short)

    @property
    def agreeing(self) -> np.ndarray:
        """(G,) bool: the prices where comparing answers earns its place: it gains over all together, and at the price.

        Where a longer cascade earns it too, the one that gains more over all prices has it.
        """
        rival, best = self.agreement, self._longer
        if rival is None or not rival.earned:
            return np.zeros(len(self.lam), bool)
        earned = rival.gain > 0
        if best is not None and self.overall[best] > rival.overall:
            earned &= ~(self.gain[best] > self.gain_se[best])
        return earned

    @property
    def _longer(self) -> int | None:
        """The place of the longer cascades that gain most, of those that gain enough over all prices together."""
        earned = (self.lengths > 2) & (self.overall > self.overall_se)
        return int(np.argmax(np.where(earned, self.overall, -np.inf))) if earned.any() else None

    def nearest(self, lam: Any) -> np.ndarray:
        """(…) the place of the price nearest to each λ, on the logarithmic scale."""
        return np.abs(log_lam(self.lam) - log_lam(lam)[..., None]).argmin(-1)


def over_neighbours(luck: np.ndarray) -> np.ndarray:
    """(G,) luck at each price, averaged over the prices next to it.

    >>> over_neighbours(np.array([0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0, 0.0])).round(6).tolist()
    [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    """
    padded = np.pad(luck, _WINDOW // 2, "edge")
    return np.convolve(padded, np.full(_WINDOW, 1 / _WINDOW), "valid")
