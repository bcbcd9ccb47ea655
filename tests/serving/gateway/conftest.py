"""A gateway before models that act as those of OpenAI, which the tests of the session share."""

import pytest
from acting_models import ActingModels
from gateway_service import gateway


@pytest.fixture(scope="session")
def running():
    with gateway(behave=ActingModels(), limits={"retries": 0}) as service:
        yield service


@pytest.fixture
def service(running):
    running.server.behave = ActingModels()
    running.forget()
    return running
