"""A sweep in a process of its own: `python tests/helpers/sweep_worker.py FOLDER SETTINGS`, settings as JSON."""

import json
import sys

import jax

MODELS = ("llama3.2-1b", "llama3.1-8b", "llama3.1-70b")
SIZES = 40, 45, 50, 60  # of one shape
SETTINGS = {"cascades": ["all", "labels"], "lam": 4, "replicates": 2, "batch": 3}


def logs():
    """Small logs by name."""
    import rcjax

    return {f"log{n}": rcjax.sample_log(n, seed=n).select(MODELS) for n in SIZES}


def main(folder, cache, devices=1):
    """Run the sweep into a folder, on so many CPU devices."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    import rcjax

    rcjax.tuning.sweeps.sweep(logs(), folder, progress=lambda *done: print(*done, flush=True), **SETTINGS)


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2]))
