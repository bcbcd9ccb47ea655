"""What would make a gateway slow, or turn clients away, without any answer being wrong."""

import gc
import http.client
import json
import os
import socket
import subprocess
import sys

import pytest
from chat_server import Response, sure
from gateway_service import SURE, gateway, make_policy, write_models

from rcjax.serving.endpoint import DirectClient
from rcjax.serving.gateway.processes import Address, _listening

BODY = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "A or B?"}]})


def answer(request, headers):
    return Response(sure("B", SURE))


def test_answers_are_not_held_back_until_their_head_is_acknowledged():
    with (
        _listening(Address("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as taken,
    ):
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_client_has_its_place_again_as_soon_as_it_has_its_answer():
    with gateway(behave=answer, limits={"concurrency": 1}) as service:
        connection = http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=30)
        statuses = set()
        for _ in range(60):
            connection.request("POST", "/v1/chat/completions", BODY)
            response = connection.getresponse()
            response.read()
            statuses.add(response.status)
        connection.close()
    assert statuses == {200}


def test_policies_and_models_are_asked_by_direct_clients_that_share_connections():
    with gateway(behave=answer) as service:
        catalog = service.app.state.gateway.catalog
        callers = catalog.caller, catalog.policies["policy"].cascade._caller
        asked = [endpoint.client for caller in callers for endpoint in caller.endpoints.values()]
    assert {type(client) for client in asked} == {DirectClient}
    assert len({id(client._client) for client in asked}) == 1


SCRIPT = """
import gc
from pathlib import Path
from rcjax.serving.gateway import processes, settings

processes._start(settings.Settings({"policy": Path("policy.json")}, Path("models.toml")))
print(gc.get_freeze_count())
"""


@pytest.mark.thorough
def test_what_is_there_at_the_start_is_not_looked_through_for_garbage(tmp_path):
    """A collection of all generations kept requests waiting for 60 to 120 ms."""
    make_policy().save(tmp_path / "policy.json")
    write_models(tmp_path / "models.toml", "http://127.0.0.1:9")
    environment = {**os.environ, "KEY_OF_THE_TEST": "none", "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10_000 > gc.get_freeze_count()
