"""A solver that was exported solves what `solve_frontier` does, for any model of its kind."""

import numpy as np
import pytest

import rcjax

MODELS = ("llama3.2-1b", "llama3.1-8b")


@pytest.fixture(scope="module")
def models(float64):
    return [rcjax.fit(rcjax.sample_log(n, seed=n).select(MODELS)) for n in (60, 80)]


@pytest.fixture(scope="module")
def lam(models):
    return np.geomspace(1e-3, 1.0, 4) / float(models[0].cost[-1])


@pytest.mark.parametrize("cascades", ["all", "adaptive"])
def test_it_solves_what_solve_frontier_does(models, lam, cascades, tmp_path):
    rcjax.export_solver(models[0], tmp_path / "solver", lam=lam, cascades=cascades)
    solver = rcjax.load_solver(tmp_path / "solver")
    assert solver.models == MODELS
    for model in models:
        ours, theirs = solver(model), rcjax.solve_frontier(model, lam=lam, cascades=cascades)
        loss = [np.asarray(each.error + each.lam * each.cost) for each in (ours, theirs)]
        np.testing.assert_allclose(*loss, rtol=0, atol=1e-9)
        assert ours.search == theirs.search
        assert (ours.thresholds is None) == (theirs.thresholds is None)
    assert ours.policy(lam=float(lam[1])).models == ours.models


def test_it_says_what_it_is_not_for(models, lam, tmp_path):
    file = tmp_path / "solver"
    rcjax.export_solver(models[0], file, lam=lam)
    solver = rcjax.load_solver(file)
    with pytest.raises(ValueError, match="3 λ were given, and the solver is for 4"):
        solver(models[0], lam[:3])
    other = rcjax.fit(rcjax.sample_log(60, seed=0).select(MODELS), copula="frank")
    with pytest.raises(ValueError, match="copula of this model is Frank, and the solver is for Gumbel"):
        solver(other)
    for content in (
        b"",
        b"{}\n",
        file.read_bytes()[:-100],
        file.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 9'),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read as a solver"):
            rcjax.load_solver(file)
