"""Arrays laid out over four devices, by meshes that are explicit and automatic: figures and layout."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "helpers" / "on_four_devices.py"


@pytest.mark.thorough
@pytest.mark.parametrize("what", [(), ("solve",)], ids=["quick", "solve"])
@pytest.mark.parametrize("kind", ["explicit", "auto"])
def test_meshes_of_four_devices_give_the_figures_of_one(kind, what):
    run = subprocess.run([sys.executable, SCRIPT, kind, *what], capture_output=True, text=True, timeout=900)
    assert run.stdout.splitlines()[-1:] == ["all alike"], run.stderr[-3000:]
