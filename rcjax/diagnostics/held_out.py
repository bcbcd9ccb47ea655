"""Models, and queries that they were not fitted to: a fresh log, or the five folds of their own."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rcjax._core.threads import side_by_side
from rcjax.copulas import OneOf
from rcjax.logs.log import Log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit_near, refit
from rcjax.model.label_outcomes import expected_log
from rcjax.model.provenance import Details
from rcjax.tuning.resampling import deal_folds, without

FOLDS = 5


class HeldOut(NamedTuple):
    """A model, and queries that it was not fitted to."""

    model: CascadeModel
    log: Log
    rest: Log | None = None
    """What it was fitted to, where that is of the same log."""


def held_out(model: CascadeModel, log: Log, *, folds: bool, seed: int = 0) -> list[HeldOut]:
    """Models and logs that they were not fitted to, which together hold every query of a log once.

    Args:
        model: the fitted model.
        log: the log to judge it by.
        folds: False for the model itself and the whole log; True for five models, each fitted as the model was to four
            fifths of the queries, and the fifth that each has not seen.
        seed: of the folds.
    """
    if not folds:
        return [HeldOut(model, log)]
    fold = deal_folds(log.complete, FOLDS, seed)

    def without_fold(number: int) -> HeldOut:
        rest = without(log, fold == number)
        return HeldOut(_fitted_near(model, rest), log.take(fold == number), rest)

    return side_by_side(without_fold, range(FOLDS), n=log.n_queries)


def _fitted_near(model: CascadeModel, log: Log) -> CascadeModel:
    """`refit`, with mixtures that are sought around those of the model, where its copulas come from Kendall's τ."""
    if isinstance(model.copulas, OneOf) or model.options.get("method", "tau") != "tau":
        return refit(model, log)
    outcomes = expected_log(log)
    fitted = fit_near(model, log.logprob, outcomes.correct, log.answered, log.cost)
    return dataclasses.replace(fitted, details=Details.of_log(log, fit=model.options))


def is_training_log(model: CascadeModel, log: Log) -> bool:
    """Whether the model was fitted to this log, by the hash of its content."""
    return model.provenance.get("digest") == log.digest


def held_out_confidence(held: Sequence[HeldOut]) -> tuple[np.ndarray, np.ndarray]:
    """(calibrated confidences, correctness), each (n, k), of the queries that all models answered, held out.

    Of a log some of whose answers have no label, correctness is a number, NaN for those.
    """
    confidence = [np.asarray(fold.model.calibrate(fold.log.logprob))[fold.log.complete] for fold in held]
    return np.concatenate(confidence), np.concatenate([_labels(fold.log)[fold.log.complete] for fold in held])


def _labels(log: Log) -> np.ndarray:
    correct = np.asarray(log.correct)
    labelled = log.labelled
    return correct if labelled[np.asarray(log.answered)].all() else np.where(labelled, correct, np.nan)
