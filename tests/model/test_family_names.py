"""Families of copulas by name."""

import json

import pytest

import rcjax
from rcjax.copulas import Copula, SurvivalGumbel
from rcjax.copulas.families import FAMILIES, NAMED_FAMILIES, as_family

pytestmark = pytest.mark.usefixtures("float64")


def test_unknown_families_and_methods_are_refused(tmp_path):
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


def test_a_class_cannot_take_the_name_of_a_family_of_rcjax(tmp_path):
    """A model's file holds the name of its family: it must be read as the family that was fitted."""
    log = rcjax.sample_log(300, seed=0)
    rcjax.fit(log, copula="frank").save(tmp_path / "model.json")

    class Frank(Copula):
        theta: float = rcjax.copulas.param(1.0, support=(0.5, 2.0))

    assert as_family("frank") is rcjax.copulas.Frank
    assert type(rcjax.model.load_model(tmp_path / "model.json").copulas) is rcjax.copulas.Frank
    with pytest.raises(ValueError, match=r"Frank is the name of a family of rcjax.* give your class another name"):
        rcjax.fit(log, copula=Frank)


def test_every_public_family_is_known_by_name():
    public = {getattr(rcjax.copulas, name) for name in rcjax.copulas.__all__}
    families = {one for one in public if isinstance(one, type) and issubclass(one, rcjax.copulas.Copula)}
    assert {*FAMILIES, *NAMED_FAMILIES} == families - {rcjax.copulas.Copula, rcjax.copulas.Rotation}
