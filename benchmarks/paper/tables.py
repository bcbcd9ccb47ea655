"""Tables 1 to 6 and the appendices on confidence: one list of rows each, the paper's figure beside ours."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import rcjax
from benchmarks.paper.inputs import Published, Source
from benchmarks.paper.statistics import accuracy_above, logistic_test, paper_statistic, rank_correlations
from rcjax._core.batching import list_pairs
from rcjax._core.numerics import kendall_tau
from rcjax.model.calibration import expected_calibration_error
from rcjax.model.goodness_of_fit.bootstrap import marginal_test
from rcjax.model.goodness_of_fit.dependence import copula_test
from rcjax.model.marginals import cramer_von_mises

Rows = list[dict]
LEVEL = 0.05
MAX_QUERIES = 500  # of a test log, for the bootstraps


def performance(source: Source, published: Published, replicates: int) -> Rows:
    """Table 1: accuracy, calibration error and certain answers on the test split, per cent."""
    confidence, test = source.model.calibrate(source.test.logprob), source.test
    rows = []
    for j, name in enumerate(test.models):
        seen = np.asarray(test.answered)[:, j]
        figures = {
            "accuracy": 100 * float(np.asarray(test.correct)[seen, j].mean()),
            "ece": 100 * expected_calibration_error(confidence[seen, j], test.correct[seen, j]),
            "certain": 100 * float((np.asarray(test.logprob)[seen, j] == 0).mean()),
        }
        row = source.names | {"model": name}
        for key, value in figures.items():
            row |= {key: value, f"{key} (paper)": published.by_model(f"{key}_percent", source.benchmark, name)}
        rows.append(row)
    return rows


def ablation(source: Source, published: Published, replicates: int) -> Rows:
    """Table 2: the calibration error where the regression is on the log-probability itself, per cent."""
    rows, test = [], source.test
    confidences = {kind: rcjax.fit(source.train, transform=kind).calibrate(test.logprob) for kind in ("auto", "none")}
    for j, name in enumerate(test.models):
        seen = np.asarray(test.answered)[:, j]
        errors = {
            kind: 100 * expected_calibration_error(confidence[seen, j], test.correct[seen, j])
            for kind, confidence in confidences.items()
        }
        printed = published.by_model("ece_percent_without_transform", source.benchmark, name)
        figures = {"with": errors["auto"], "without": errors["none"], "without (paper)": printed}
        rows.append(source.names | {"model": name} | figures)
    return rows


def markov(source: Source, published: Published, replicates: int) -> Rows:
    """Table 3: log10 p of each ancestor's confidence, and of the Markov predictor's, for a model's correctness."""
    test, rows = source.test.take(source.test.complete), []
    table = np.asarray(logistic_test(source.model.calibrate(test.logprob), test.correct, test.answered))
    for j, i in zip(*np.nonzero(np.isfinite(table)), strict=True):
        target, ancestor = test.models[j], test.models[i]
        kind = "Markov predictor" if i == j - 1 else "ancestor"
        figures = {"log10 p": table[j, i], "log10 p (paper)": published.markov(source.benchmark, target, ancestor)}
        rows.append(source.names | {"model": target, "given": ancestor, "kind": kind} | figures)
    return rows


def copulas(source: Source, published: Published, replicates: int) -> Rows:
    """Table 4: the paper's √n·CvM of the Gumbel copula fitted to the test split, with p-values that can reject."""
    test = source.test.take(source.test.complete)
    confidence = source.model.calibrate(test.logprob).T
    left, right = np.triu_indices(len(test.models), 1)
    keys = jax.random.split(jax.random.key(0), len(left))

    def statistic(x, y, key):
        return paper_statistic(rcjax.copulas.Gumbel.from_tau(kendall_tau(x, y, jnp.ones(x.shape, bool))), x, y, key)

    figures = np.asarray(jax.jit(jax.vmap(statistic))(confidence[left], confidence[right], keys))
    some = confidence[:, np.random.default_rng(0).permutation(test.n_queries)[:MAX_QUERIES]]
    x, y = some[left], some[right]
    seen = copula_test(rcjax.copulas.Gumbel, x, y, jnp.ones(x.shape, bool), jax.random.key(1), replicates)
    printed = published.copula(source.benchmark, source.family)
    row = source.names | {"√n·CvM": float(figures.mean()), "√n·CvM (paper)": printed, "pairs": len(left)}
    return [row | {"rejected by S_n at 5 %": int((seen.process_p < LEVEL).sum())}]


def marginals(source: Source, published: Published, replicates: int) -> Rows:
    """Tables 5 and 6: √CvM of the marginals on the test split, as trained and refitted, with p-values."""
    test = source.test.take(source.test.complete)
    confidence = source.model.calibrate(test.logprob).T
    fitted, key = source.model.marginals, jax.random.key(0)
    whole = marginal_test(fitted, confidence, 0, key, 1)
    trained = jax.jit(jax.vmap(cramer_von_mises))(fitted, confidence)
    some = confidence[:, np.random.default_rng(0).permutation(test.n_queries)[:MAX_QUERIES]]
    on = (source.train.n_queries, 0)
    p_trained, p_refitted = (marginal_test(fitted, some, n, key, replicates).trained_p for n in on)
    rows = []
    for j, name in enumerate(test.models):
        row = source.names | {"model": name}
        for kind, ours, p in (("trained", trained, p_trained), ("refitted", whole.refitted, p_refitted)):
            printed = published.by_model(f"marginal_sqrt_cvm_{kind}", source.benchmark, name)
            row |= {kind: float(ours[j]), f"{kind} (paper)": printed, f"{kind} p": float(p[j])}
        rows.append(row)
    return rows


def correlations(source: Source, published: Published, replicates: int) -> Rows:
    """Appendix F: Kendall's τ of the confidences on the test split; none under 50 queries."""
    test = source.test.take(source.test.complete)
    tau = np.asarray(rank_correlations(source.model.calibrate(test.logprob), test.correct, test.answered))
    return [
        source.names
        | {"pair": f"{test.models[i]} & {test.models[j]}"}
        | {what: tau[number, i, j] for number, what in enumerate(("all", "both right", "both wrong"))}
        for i, j in list_pairs(len(test.models))
    ]


def confident(source: Source, published: Published, replicates: int) -> Rows:
    """Appendix E: accuracy of the most confident shares of the answers, test split, per cent."""
    test = source.test.take(source.test.complete)
    confidence, correct = np.asarray(source.model.calibrate(test.logprob)), np.asarray(test.correct)
    rows = []
    for j, name in enumerate(test.models):
        curve = accuracy_above(confidence[:, j], correct[:, j])
        row = source.names | {"model": name}
        for share in (1.0, 0.8, 0.6, 0.4, 0.2):
            place = int(np.flatnonzero(curve["share"] >= share)[-1])
            row[f"top {100 * share:.0f} %"] = 100 * curve["accuracy"][place]
        rows.append(row)
    return rows


#: name → (title, function).
TABLES: dict[str, tuple[str, Callable[[Source, Published, int], Rows]]] = {
    "table1_performance": ("Table 1: performance on the test split, per cent", performance),
    "table2_ablation": ("Table 2: calibration error without the transforms, per cent", ablation),
    "table3_markov": ("Table 3: the Markov test, log10 p", markov),
    "table4_copulas": ("Table 4: goodness of fit of the Gumbel copula", copulas),
    "table5_6_marginals": ("Tables 5 and 6: √CvM of the marginals", marginals),
    "appendix_e_confident": ("Appendix E: accuracy of the most confident answers, per cent", confident),
    "appendix_f_correlations": ("Appendix F: rank correlations", correlations),
}
