"""Make rcjax/model/demo.json: the parameters of a model fitted to a log of five LLMs, without the log itself.

    python -m benchmarks.make_demo LOG.csv PRICES.toml

LOG.csv has the columns of `rcjax.read_log`, token counts included; the model in the package was fitted to the
training split of MMLU with five Llama models that the authors of the paper published with their experiments.
"""

import argparse
import json
from pathlib import Path

import jax
import polars as pl

import rcjax
from rcjax._base.files import write_atomically
from rcjax.logs import read_log
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.fitting import fit

DIGITS = 6  # significant: a log of a few hundred queries does not tell more


def describe_queries(table: pl.DataFrame, models: tuple[str, ...]) -> dict:
    """Mean input tokens by model, and the coefficient of variation of a query's length, its models' mean."""
    mean = dict(table.group_by("model").agg(pl.col("input_tokens").mean()).iter_rows())
    length = table.group_by("query").agg(pl.col("input_tokens").mean())["input_tokens"].to_numpy()
    return {
        "mean_input_tokens": {name: mean[name] for name in models},
        "length_variation": float(length.std(ddof=1) / length.mean()),
    }


def rounded(value: object) -> object:
    """The JSON value with every float to `DIGITS` significant digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def to_demo(model: CascadeModel, queries: dict) -> dict:
    """The content of demo.json."""
    content = rounded(model.to_json() | {"demo": queries})
    # Rounding must not cost the mixtures their total of one.
    for marginal in content["marginals"]:
        first, _ = marginal["proportion"]
        marginal["proportion"] = [first, round(1 - first, 12)]
    content["record"]["provenance"]["note"] = (
        "Fitted parameters only, rounded; the package holds no row of the log that they were fitted on."
    )
    return content


def main() -> None:
    """Read, fit, round, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("prices", type=Path)
    parser.add_argument("--out", type=Path, default=Path(rcjax.__file__).parent / "model" / "demo.json")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    model = fit(read_log(arguments.log, prices=arguments.prices, task="choice"))
    content = to_demo(model, describe_queries(pl.read_csv(arguments.log), model.models))
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    write_atomically(arguments.out, f"{{\n{lines}\n}}\n")
    print(f"wrote {arguments.out.name}, {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
