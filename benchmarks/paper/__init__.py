"""The paper's tables and figures, from a folder of logs; see `benchmarks.paper.__main__`."""
