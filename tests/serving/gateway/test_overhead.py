"""What would make a gateway slow, or turn clients away, without any answer being wrong."""

import http.client
import json
import socket

from chat_server import Response, sure
from gateway_service import SURE, gateway

from rcjax.serving.clients import DirectClient
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
        for _ in range(300):
            connection.request("POST", "/v1/chat/completions", BODY)
            response = connection.getresponse()
            response.read()
            statuses.add(response.status)
        connection.close()
    assert statuses == {200}


def test_policies_and_models_are_asked_by_direct_clients_that_share_connections():
    with gateway(behave=answer) as service:
        lineup = service.app.state.gateway.lineup
        callers = lineup.caller, lineup.policies["policy"].cascade._caller
        asked = [endpoint.client for caller in callers for endpoint in caller.endpoints.values()]
    assert {type(client) for client in asked} == {DirectClient}
    assert len({id(client._client) for client in asked}) == 1
