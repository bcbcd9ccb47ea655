"""Tables of results for people."""

import polars as pl


def markdown(frame: pl.DataFrame) -> str:
    """A table in Markdown; numbers with four significant digits, "–" where there is none."""

    def cell(value):
        if value is None or value != value:
            return "–"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = [frame.columns, ["--:" if kind.is_numeric() else "---" for kind in frame.dtypes]]
    lines += [[cell(value) for value in row] for row in frame.iter_rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
