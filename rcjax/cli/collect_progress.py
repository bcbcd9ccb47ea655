"""How far a run of `rcjax collect` is, on standard error: model by model on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rcjax.cli.console import Screen, duration, pulse, share_done
from rcjax.cli.printing import escaped

if TYPE_CHECKING:
    from rcjax.collecting.run import Run, Tally


def _how_far(run: Run, seconds: float) -> str:
    """Of all answers of a run, how many there are, how many calls failed, and how long the rest takes."""
    tallies = run.tallies.values()
    done, whole, failed = (sum(getattr(tally, name) for tally in tallies) for name in ("done", "to_do", "failed"))
    left = [_left(tally, seconds) for tally in tallies]
    time = "" if None in left or not done else f", about {duration(max(filter(None, left), default=0.0))} left"
    return f"{share_done(done, whole)}{time}{f', {failed:,} failed' if failed else ''}"


def _left(tally: Tally, seconds: float) -> float | None:
    """How long a model, asked beside the others, takes for its rest; None where it has not replied yet."""
    ended = tally.done + tally.failed
    if tally.stopped is not None or ended >= tally.to_do:
        return 0.0
    return seconds * (tally.to_do - ended) / ended if ended else None


@contextmanager
def progress(run: Run) -> Iterator[None]:
    """A line for each model while a run lasts: answered, failed, money, seconds to go; in a pipe one for all."""
    screen = Screen(stderr=True)
    if not screen.is_terminal:
        started = time.monotonic()
        with pulse("asking", lambda: _how_far(run, time.monotonic() - started)):
            yield
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}"),
        TextColumn("{task.fields[money]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=screen, refresh_per_second=5, speed_estimate_period=60) as bars:
        tasks = {
            name: bars.add_task(
                escaped(name), total=tally.to_do + tally.before, completed=tally.before, failed="", money=""
            )
            for name, tally in run.tallies.items()
        }

        def update() -> None:
            for name, tally in run.tallies.items():
                failed = f"{tally.failed} failed" if tally.failed else ""
                whole = "" if tally.forecast is None else f" of about ${float(tally.forecast):.3g}"
                spent = f"${float(tally.spent):.3g}{whole}"
                bars.update(tasks[name], completed=tally.before + tally.done, failed=failed, money=spent)

        run.on_change = update
        yield
