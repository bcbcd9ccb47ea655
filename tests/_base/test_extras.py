"""What to type for a library that is missing."""

import os
import subprocess
import sys
from pathlib import Path

from rcjax._base import extras


def test_what_a_missing_library_needs_is_said_where_it_is_missing(tmp_path):
    program = "import sys; sys.modules['openai'] = None\nimport rcjax.serving.cascade"
    environment = {**os.environ, "PYTHONPATH": str(Path(extras.__file__).parents[2])}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert ended.stderr.strip().endswith("pip install 'rcjax[run]'")
