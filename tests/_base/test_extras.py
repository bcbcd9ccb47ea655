"""What to type for a library that is missing."""

import os
import subprocess
import sys
from pathlib import Path

from rcjax._base import extras


def test_the_error_for_a_missing_library_says_how_to_install_it(tmp_path):
    program = "import sys; sys.modules['openai'] = None\nimport rcjax.serving.cascade"
    environment = {**os.environ, "PYTHONPATH": str(Path(extras.__file__).parents[2])}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert ended.stderr.strip().endswith("pip install 'rcjax[run]'")
