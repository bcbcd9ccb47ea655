"""The public names: each is imported when it is first used."""

from rcjax.model.goodness_of_fit.bootstrap import MarginalTest as MarginalTest, marginal_test as marginal_test
from rcjax.model.goodness_of_fit.dependence import (
    CopulaResult as CopulaResult,
    CopulaTest as CopulaTest,
    MarkovTest as MarkovTest,
    compare_copulas as compare_copulas,
    conditional_test as conditional_test,
    copula_test as copula_test,
)
from rcjax.model.goodness_of_fit.reliability import (
    CalibrationTest as CalibrationTest,
    calibration_test as calibration_test,
    reliability_curve as reliability_curve,
)
