"""Servers of tests need no patience."""

import pytest

from rcjax.collecting import respondent


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(respondent, "_BACKOFF", (0.01, 0.05))
