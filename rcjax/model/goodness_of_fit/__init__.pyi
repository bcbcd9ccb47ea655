"""The public names: each is imported when it is first used."""

from rcjax.model.goodness_of_fit.comparison import CopulaResult as CopulaResult, compare_copulas as compare_copulas
from rcjax.model.goodness_of_fit.copula_fit import CopulaTest as CopulaTest, copula_test as copula_test
from rcjax.model.goodness_of_fit.dependence import MarkovTest as MarkovTest, conditional_test as conditional_test
from rcjax.model.goodness_of_fit.marginal_fit import MarginalTest as MarginalTest, marginal_test as marginal_test
from rcjax.model.goodness_of_fit.reliability import (
    CalibrationTest as CalibrationTest,
    calibration_test as calibration_test,
    reliability_curve as reliability_curve,
)
