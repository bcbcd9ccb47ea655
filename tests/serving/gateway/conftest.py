"""A gateway before models that act as those of OpenAI, which the tests of a module share."""

import pytest
from acting_models import ActingModels
from gateway_service import gateway


@pytest.fixture(scope="module")
def running():
    with gateway(behave=ActingModels(), limits={"retries": 0}) as service:
        yield service


@pytest.fixture
def service(running):
    running.server.behave = ActingModels()
    return running
