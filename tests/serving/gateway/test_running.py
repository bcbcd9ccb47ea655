"""What a process of the service does before it takes requests."""

import gc
import os
import subprocess
import sys

from gateway_service import make_policy, write_models

SCRIPT = """
import gc
from pathlib import Path
from rcjax.serving.gateway import processes, settings

processes._start(settings.Settings({"policy": Path("policy.json")}, Path("models.toml")))
print(gc.get_freeze_count())
"""


def test_what_is_there_at_the_start_is_not_looked_through_for_garbage(tmp_path):
    """A collection of all generations kept requests waiting for 60 to 120 ms."""
    make_policy().save(tmp_path / "policy.json")
    write_models(tmp_path / "models.toml", "http://127.0.0.1:9")
    environment = {**os.environ, "KEY_OF_THE_TEST": "none", "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10_000 > gc.get_freeze_count()
