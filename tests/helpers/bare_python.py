"""Programs that run with nothing but the standard library and rcjax."""

import subprocess
import sys
from pathlib import Path

import rcjax


def run_bare(program, *arguments):
    """Run a program where nothing but the standard library and rcjax itself can be imported; its output."""
    folder = str(Path(rcjax.__file__).parents[1])
    start = f"import sys; sys.path.append({folder!r})\n"
    command = [sys.executable, "-I", "-S", "-c", start + program, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()
