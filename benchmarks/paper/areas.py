"""Table 7 and figure 5: the area under the error–cost curve on the test split, for every cascade and every method."""

import itertools
from collections.abc import Iterator

import numpy as np
from scipy.stats import t as student, wilcoxon

import rcjax
from benchmarks.methods import (
    Curve,
    areas,
    best_single_or_pair,
    change,
    grid_search,
    mixture_of_two,
    rational_tuning,
    replayed,
)
from benchmarks.paper import factorisation
from benchmarks.paper.inputs import Published, Source
from benchmarks.peers.bayesian import bayesian_optimization

Rows = list[dict]


def fixed_cascades(source: Source, published: Published, bayesian: bool) -> Iterator[dict]:
    """For each cascade of two models or more: areas over the costs that the methods share, and the authors' own.

    The authors' areas are over the costs that their two methods share, ours beside them over what all four share.
    """
    model, names = source.model, source.model.models
    for size in range(2, len(names) + 1):
        for members in itertools.combinations(range(len(names)), size):
            cascade = tuple(names[j] for j in members)
            curves = {
                "rational tuning": rational_tuning(model, source.test, [cascade]),
                "paper's factorisation": replayed(factorisation.solve_frontier(model, [cascade]), source.test),
                "grid search": grid_search(model, source.train, source.test, cascade),
            }
            if bayesian:
                curves["Bayesian optimisation"] = bayesian_optimization(model, source.train, source.test, cascade)
            billed = curves["rational tuning"].billed / curves["rational tuning"].cost
            row = source.names | {"cascade": "-".join(map(str, members)), "models": size} | areas(curves)
            row["billed over mean costs, at most, %"] = 100 * float(billed.max() - 1)
            yield row | (_authors(curves, published, source.benchmark, members) if source.family == "llama" else {})


def _authors(curves, published, benchmark, members):
    theirs = {}
    for method in ("rational_tuning", "grid_search"):
        curve = published.curve(benchmark, members, method)
        if curve is None:
            return {}
        theirs[method.replace("_", " ")] = Curve(*curve)
    row = {f"authors' {name}": area for name, area in areas(theirs).items()}
    for name in ("rational tuning", "paper's factorisation"):
        both = areas({"ours": curves[name], "theirs": theirs["rational tuning"]})
        row[f"{name} against the authors', %"] = change(both["ours"], both["theirs"])
    return row


def free_cascades(source: Source, published: Published) -> Rows:
    """Where the method chooses the models too: areas over the costs that all methods share.

    Beside them the authors' own thresholds for every model in turn, where they are at hand.
    """
    model, train, test = source.model, source.train, source.test
    curves = {
        "rational tuning, all subcascades": rational_tuning(model, test),
        "rational tuning, adaptive": rational_tuning(model, test, "adaptive"),
        "rational tuning, every model in turn": rational_tuning(model, test, "full"),
        "grid search, every model in turn": grid_search(model, train, test, model.models),
        "best single or pair, by the labels": best_single_or_pair(model, train, test),
        "random mixing of two models": mixture_of_two(model, train, test),
    }
    if source.family == "llama":
        theirs = published.curve(source.benchmark, tuple(range(len(model.models))), "rational_tuning")
        curves |= {"the authors', every model in turn": Curve(*theirs)} if theirs else {}
    found = areas(curves)
    base = found["best single or pair, by the labels"]
    return [
        source.names | {"method": name, "area": area, "against the best single or pair, %": change(area, base)}
        for name, area in found.items()
    ]


def by_length(rows: Rows, method: str, baseline: str) -> Rows:
    """Mean change of area of one method against another, per cent, by benchmark and length, with intervals.

    The 95 % interval is Student's over cascades, and p Wilcoxon's signed-rank test paired by cascade; cascades share
    models and queries, so both are more certain than they ought to be. Where the rows hold the change itself ("…
    against the authors', %"), that is taken.
    """
    summary = []
    for names in dict.fromkeys((row["benchmark"], row["family"]) for row in rows):
        group = [row for row in rows if (row["benchmark"], row["family"]) == names]
        for length in (*sorted({row["models"] for row in group}), "all"):
            chosen = [row for row in group if length in ("all", row["models"])]
            direct = f"{method} against {baseline}, %"
            changes = [row.get(direct, change(row.get(method), row.get(baseline))) for row in chosen]
            known = np.array([value for value in changes if value is not None])
            if known.size:
                head = {"benchmark": names[0], "family": names[1], "method": method, "against": baseline}
                summary.append(head | {"models": length, "cascades": known.size} | _interval(known))
    return summary


def _interval(changes: np.ndarray) -> dict:
    mean, n = float(changes.mean()), changes.size
    if n < 3:
        return {"change of area, %": mean, "95 % from": None, "to": None, "p (Wilcoxon)": None}
    reach = float(student.ppf(0.975, n - 1) * changes.std(ddof=1) / np.sqrt(n))
    p = float(wilcoxon(changes).pvalue) if np.any(changes) else 1.0
    return {"change of area, %": mean, "95 % from": mean - reach, "to": mean + reach, "p (Wilcoxon)": p}


def low_sample(source: Source, size: int, seeds: range) -> Iterator[dict]:
    """Table 8 and figure 6: the same with few labels: areas of all cascades, a row for each seed and method.

    Each seed draws `size` training queries; a model that is then always right or always wrong stays in play.
    """
    names = source.model.models
    cascades = [c for m in range(2, len(names) + 1) for c in itertools.combinations(names, m)]
    for seed in seeds:
        rows = np.sort(np.random.default_rng(seed).permutation(source.train.n_queries)[:size])
        train = source.train.take(rows)
        model = rcjax.fit(train)
        changes = []
        for cascade in cascades:
            curves = {
                "rational tuning": rational_tuning(model, source.test, [cascade]),
                "grid search": grid_search(model, train, source.test, cascade),
            }
            found = areas(curves)
            changes.append(change(found["rational tuning"], found["grid search"]))
        known = [value for value in changes if value is not None]
        free = areas(
            {"all": rational_tuning(model, source.test), "pair": best_single_or_pair(model, train, source.test)}
        )
        yield source.names | {
            "queries": size,
            "seed": seed,
            "cascades": len(known),
            "fixed cascades: rational tuning against grid search, %": float(np.mean(known)),
            "all subcascades against the best single or pair by the labels, %": change(free["all"], free["pair"]),
        }


def over_seeds(rows: Rows) -> Rows:
    """Means over the seeds of `low_sample`, with Student's 95 % intervals: of the draw of labels, not of benchmarks."""
    summary = []
    columns = [name for name in rows[0] if name.endswith("%")]
    for names in dict.fromkeys((row["benchmark"], row["family"]) for row in rows):
        group = [row for row in rows if (row["benchmark"], row["family"]) == names]
        for column in columns:
            values = np.array([row[column] for row in group if row[column] is not None])
            head = {"benchmark": names[0], "family": names[1], "what": column.removesuffix(", %")}
            summary.append(head | {"queries": group[0]["queries"], "seeds": values.size} | _interval(values))
    return summary
