"""The logs of a folder, and what was published about them."""

import dataclasses
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

import rcjax

#: Benchmarks of multiple choice; the others are generation.
CHOICE = ("mmlu", "medmcqa")


@dataclasses.dataclass(frozen=True)
class Source:
    """One benchmark answered by one family of models: training and test log, in the order of the training file."""

    benchmark: str
    family: str
    train: rcjax.Log
    test: rcjax.Log

    @cached_property
    def model(self) -> rcjax.CascadeModel:
        """The model as `fit` makes it by default."""
        return rcjax.fit(self.train)

    @property
    def names(self) -> dict[str, str]:
        """What the rows of a table begin with."""
        return {"benchmark": self.benchmark, "family": self.family}


def read_folder(folder: Path, choice: tuple[str, ...] = CHOICE) -> Iterator[Source]:
    """Every {benchmark}_{family}_train.csv that has a _test.csv beside it; prices from prices.toml if there is one."""
    prices = folder / "prices.toml"
    for path in sorted(folder.glob("*_train.csv")):
        other = path.with_name(path.name.removesuffix("_train.csv") + "_test.csv")
        if not other.exists():
            continue
        benchmark, family = path.name.removesuffix("_train.csv").split("_", 1)
        read = {
            "prices": prices if prices.exists() else None,
            "task": "choice" if benchmark in choice else "generation",
            "models": pl.read_csv(path)["model"].unique(maintain_order=True).to_list(),
        }
        yield Source(benchmark, family, rcjax.read_log(path, **read), rcjax.read_log(other, **read))


def pooled(folder: Path, name: str) -> list[rcjax.Log]:
    """{name}_train.csv and {name}_test.csv of a folder, priced by prices.toml, as one log, followed by each alone.

    Where there is no test file, nothing follows. Queries are renamed by the file that they come from.
    """
    files = [path for part in ("train", "test") if (path := folder / f"{name}_{part}.csv").exists()]
    frames = [pl.read_csv(path).with_columns(query=pl.format(f"{i}-{{}}", "query")) for i, path in enumerate(files)]
    task = "choice" if name.split("_")[0] in CHOICE else "generation"
    whole = rcjax.read_log(pl.concat(frames, how="diagonal"), prices=folder / "prices.toml", task=task)
    parts = np.repeat(np.arange(len(frames)), [frame["query"].n_unique() for frame in frames])
    return [whole, *(whole.take(np.flatnonzero(parts == i)) for i in range(len(frames)) if len(frames) > 1)]


def resplit(log: rcjax.Log, size: int, split: int) -> tuple[rcjax.Log, rcjax.Log]:
    """`size` random queries of a log to tune on and the others to judge by: the same ones for the same `split` ≥ 0."""
    order = np.random.default_rng((size, split)).permutation(log.n_queries)
    return log.take(np.sort(order[:size])), log.take(np.sort(order[size:]))


@dataclasses.dataclass(frozen=True)
class Published:
    """The paper's printed figures and the authors' curves, where they are at hand."""

    tables: dict
    curves: pl.DataFrame | None
    run_times: pl.DataFrame | None

    @classmethod
    def read(cls, folder: Path | None) -> "Published":
        """From a folder with published_tables.json, authors_curves.csv and authors_runtime.csv; each may be missing."""

        def table(name):
            path = folder / name if folder else None
            return pl.read_csv(path) if path and path.exists() else None

        path = folder / "published_tables.json" if folder else None
        tables = json.loads(path.read_text("utf-8")) if path and path.exists() else {}
        return cls(tables, table("authors_curves.csv"), table("authors_runtime.csv"))

    def by_model(self, table: str, benchmark: str, model: str) -> float | None:
        """A printed figure of one model; None where there is none."""
        values, models = self.tables.get(table, {}).get(benchmark), self.tables.get("models", [])
        return float(values[models.index(model)]) if values and model in models else None

    def markov(self, benchmark: str, target: str, ancestor: str) -> float | None:
        """A printed log10 p of the Markov test."""
        short = [name.removesuffix("-instruct").rsplit("-", 1)[-1] for name in (target, ancestor)]
        table = self.tables.get("markov_log10_p", {})
        row = table.get(benchmark, {}).get(short[0], [])
        place = table["columns"].index(short[1]) if row and short[1] in table["columns"] else len(row)
        return float(row[place]) if place < len(row) else None

    def copula(self, benchmark: str, family: str) -> float | None:
        """The printed mean of √n·CvM over pairs."""
        return self.tables.get("copula_sqrt_n_cvm_mean", {}).get(benchmark, {}).get(family)

    def curve(self, benchmark: str, cascade: tuple[int, ...], method: str) -> tuple | None:
        """The authors' (cost per query, error) on the test split of a cascade, by positions of its models."""
        if self.curves is None:
            return None
        name = "-".join(map(str, cascade))
        same = (pl.col("benchmark") == benchmark) & (pl.col("cascade") == name) & (pl.col("method") == method)
        rows = self.curves.filter(same)
        if rows.is_empty():
            return None
        return rows["cost_per_million_queries"].to_numpy() / 1e6, 1 - rows["accuracy"].to_numpy()
