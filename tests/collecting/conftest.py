"""What tests of collecting share: impatience, and a folder with the keys of the models in its environment."""

import pytest
from helpers.sample_models import ENVIRONMENT

from rcjax.serving import openai_client


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Servers of tests need no patience."""
    monkeypatch.setattr(openai_client, "BACKOFF_SECONDS", (0.01, 0.05))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of its own, and the keys that models of a test ask for."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return tmp_path
