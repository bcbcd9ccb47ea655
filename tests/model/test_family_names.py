"""Families of copulas by name."""

import json
import subprocess
import sys

import pytest

import rcjax
from rcjax.copulas import SurvivalGumbel
from rcjax.copulas.families import FAMILIES, NAMED_FAMILIES, as_family

pytestmark = pytest.mark.usefixtures("float64")


def test_what_does_not_exist_is_said(tmp_path):
    log = rcjax.sample_log(300, seed=0)
    with pytest.raises(ValueError, match=r"unknown copula 'gumble'; the families are .*clayton.*which must have been"):
        rcjax.fit(log, copula="gumble")
    with pytest.raises(ValueError, match="method is 'mle'; it is 'tau' or 'likelihood'"):
        rcjax.fit(log, method="mle")  # type: ignore[arg-type]
    assert as_family("survival-gumbel") is as_family("Survival_Gumbel") is SurvivalGumbel
    path = tmp_path / "model.json"
    path.write_text(json.dumps(rcjax.demo_model().to_json() | {"copula": "Nowhere"}))
    with pytest.raises(ValueError, match="unknown copula 'Nowhere'"):
        rcjax.model.load_model(path)


_NAMED = """
from rcjax import copulas
from rcjax.copulas.families import FAMILIES, NAMED_FAMILIES, as_family

class Plackett(copulas.Copula):
    theta: float = copulas.param(1.0, support=(0.5, 2.0))

print(*(as_family(name).__module__ for name in ("bb1", "Tawn", "negative-clayton", "plackett")))
"""


@pytest.mark.thorough
def test_every_family_has_its_name_before_it_is_imported_and_ones_own_comes_first():
    result = subprocess.run([sys.executable, "-c", _NAMED], capture_output=True, text=True, check=True).stdout
    assert result.split() == [
        "rcjax.copulas.several_parameters",
        "rcjax.copulas.several_parameters",
        "rcjax.copulas.archimedean",
        "__main__",
    ]


def test_every_public_family_is_known_by_name():
    public = {getattr(rcjax.copulas, name) for name in rcjax.copulas.__all__}
    families = {one for one in public if isinstance(one, type) and issubclass(one, rcjax.copulas.Copula)}
    assert {*FAMILIES, *NAMED_FAMILIES} == families - {rcjax.copulas.Copula, rcjax.copulas.Rotation}
