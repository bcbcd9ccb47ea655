"""Choosing a family for each pair, and models whose pairs are of different families."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rcjax
from rcjax._core.batching import part
from rcjax.copulas import (
    Frank,
    Gaussian,
    Gumbel,
    Independence,
    OneOf,
    SurvivalClayton,
    SurvivalGumbel,
)
from rcjax.copulas.families import FAMILIES, NAMED_FAMILIES, as_family
from rcjax.model.calibrated import pairs
from rcjax.model.fitting import select_copulas

pytestmark = pytest.mark.usefixtures("float64")

CANDIDATES = (Frank, Gaussian, SurvivalClayton)  # no one of them suits all pairs of the demo


@pytest.fixture(scope="module")
def log():
    return rcjax.sample_log(600, seed=5)


@pytest.fixture(scope="module")
def model(log):
    return rcjax.fit(log, copula=CANDIDATES)


def table_of(model):
    table = model.copula_table
    assert table is not None
    return table


@pytest.mark.thorough
def test_every_family_is_fitted_to_every_pair_and_one_is_chosen(model, log):
    table = table_of(model)
    assert len(table) == 10 * 4  # Independence always competes
    assert {row["family"] for row in table} == {"Independence", "Frank", "Gaussian", "SurvivalClayton"}
    for place, (i, j) in enumerate(pairs(5)):
        rows = [row for row in table if row["pair"] == [log.models[i], log.models[j]]]
        (chosen,) = [row for row in rows if row["chosen"]]
        assert chosen["aic"] == min(row["aic"] for row in rows)
        assert chosen["delta_aic"] == 0
        for row in rows:
            free = 0 if row["family"] == "Independence" else 1
            assert row["aic"] == pytest.approx(2 * free - 2 * row["log_likelihood"])
        members = model.copulas.members
        kept = members[int(model.copulas.index[place])]
        assert type(kept).__name__ == chosen["family"]
        assert float(model.copulas.tau()[place]) == pytest.approx(chosen["tau"], abs=1e-12)


@pytest.mark.thorough
def test_the_true_family_is_found():
    """The demo's pairs of neighbours are Gumbel copulas; 4,000 queries are enough to tell."""
    found = rcjax.fit(rcjax.sample_log(4000, seed=1), copula=(Gumbel, SurvivalGumbel, Gaussian))
    chosen = {tuple(row["pair"]): row["family"] for row in table_of(found) if row["chosen"]}
    neighbours = list(zip(found.models, found.models[1:], strict=False))
    assert [chosen[pair] for pair in neighbours] == ["Gumbel"] * 4


@pytest.mark.thorough
def test_a_mixed_model_solves_samples_and_survives_a_file(model, log, tmp_path):
    assert isinstance(model.copulas, OneOf)
    frontier = rcjax.solve_frontier(model, lam=[10.0, 1000.0, 5000.0])
    assert np.all((np.asarray(frontier.error) > 0) & (np.asarray(frontier.error) < 1))
    error, cost = rcjax.solving.error_and_cost(model, np.full(4, 0.6))
    assert 0 < float(error) < 1
    assert float(cost) > 0
    draws = model.sample(jax.random.key(0), (500,))
    assert np.isfinite(draws).all()
    path = tmp_path / "model.json"
    model.save(path)
    again = rcjax.model.load_model(path)
    assert again.copula_table == model.copula_table
    for ours, theirs in zip(jax.tree.leaves(model), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert again.copulas.members == () or [type(m) for m in again.copulas.members] == [
        type(m) for m in model.copulas.members
    ]


def test_what_does_not_exist_is_said(log, tmp_path):
    with pytest.raises(ValueError, match=r"unknown copula 'gumble'; the families are .*clayton.*which must have been"):
        rcjax.fit(log, copula="gumble")
    with pytest.raises(ValueError, match="method is 'mle'; it is 'tau' or 'likelihood'"):
        rcjax.fit(log, method="mle")  # type: ignore[arg-type]
    assert as_family("survival-gumbel") is as_family("Survival_Gumbel") is SurvivalGumbel
    path = tmp_path / "model.json"
    rcjax.fit(log, copula=Independence).save(path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"copula": "Nowhere"}))
    with pytest.raises(ValueError, match="unknown copula 'Nowhere'"):
        rcjax.model.load_model(path)


_NAMED = """
from rcjax import copulas
from rcjax.copulas.families import FAMILIES, NAMED_FAMILIES, as_family

class Plackett(copulas.Copula):
    theta: float = copulas.param(1.0, support=(0.5, 2.0))

print(*(as_family(name).__module__ for name in ("bb1", "Tawn", "negative-joe", "plackett")))
"""


@pytest.mark.thorough
def test_every_family_has_its_name_before_it_is_imported_and_ones_own_comes_first():
    found = subprocess.run([sys.executable, "-c", _NAMED], capture_output=True, text=True, check=True).stdout
    assert found.split() == [
        "rcjax.copulas.several_parameters",
        "rcjax.copulas.several_parameters",
        "rcjax.copulas.archimedean",
        "__main__",
    ]


def test_every_public_family_is_known_by_name():
    public = {getattr(rcjax.copulas, name) for name in rcjax.copulas.__all__}
    families = {one for one in public if isinstance(one, type) and issubclass(one, rcjax.copulas.Copula)}
    assert {*FAMILIES, *NAMED_FAMILIES} == families - {rcjax.copulas.Copula, rcjax.copulas.Rotation, OneOf}


def test_a_pair_without_common_answers_stays_finite(log):
    # Weight 0 throughout: no family can be told from another, and nothing turns into NaN.
    model = rcjax.fit(log)
    confidence = model.calibrate(log.logprob)[:, :2]
    answered = log.answered.at[:, 0].set(False)[:, :2]
    copulas, table = select_copulas(part(model.marginals, slice(2)), confidence, answered, jnp.zeros(1), (Gumbel,))
    assert type(copulas) is Independence
    assert all(np.isfinite(row["log_likelihood"]) for row in table)
