"""A gateway whose models reply as OpenAI's do; the tests of a session share it."""

import pytest
from helpers.acting_models import ActingModels
from helpers.gateway_service import gateway

#: Of requests, which a service passes on where its operator permits it.
FIELDS = frozenset(
    {"extra_body", "options", "self", "service_tier", "session", "timeout", "web_search_options", "ünknown field"}
) | frozenset({"api_base", "api_key", "biases", "large", "s3cret"})


@pytest.fixture(scope="session")
def running():
    with gateway(behave=ActingModels(), limits={"retries": 0, "allowed_fields": FIELDS}) as service:
        yield service


@pytest.fixture
def service(running):
    running.server.behave = ActingModels()
    running.forget()
    return running
