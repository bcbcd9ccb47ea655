"""/v1/models and /metrics, with a key and without."""

import re

import pytest
from helpers.gateway_service import MODELS, gateway, make_policy

KEY = {"authorization": "Bearer key-of-a-client"}


@pytest.fixture
def _key(monkeypatch):
    monkeypatch.setenv("KEYS_OF_CLIENTS", "key-of-another, key-of-a-client")


@pytest.mark.usefixtures("_key")
def test_the_configuration_is_hidden_without_a_key():
    with gateway({"secret-name": make_policy()}, key_env="KEYS_OF_CLIENTS") as service:
        for path in ("/v1/models", "/v1/models/secret-name", "/metrics"):
            assert service.get(path).status == 401
            assert service.get(path, authorization="Bearer key").status == 401
            assert service.get(path, **KEY).status == 200
        assert [service.get(path).status for path in ("/health", "/ready", "/")] == [200, 200, 404]
        assert service.get("/v1/models/none", **KEY).status == 404
        page = service.get("/metrics", **KEY).body.decode()
    counted = re.findall(r'rcjax_refused_requests_total\{reason="(\w+)",status="(\d+)"\} ([\d.]+)', page)
    assert sorted(counted) == [
        ("invalid_api_key", "401", "6.0"),
        ("model_not_found", "404", "1.0"),
        ("unknown_path", "404", "1.0"),
    ]


def test_the_list_of_models_has_policies_first_and_each_alone():
    policy = make_policy(expected={"error": 0.1, "cost": 1e-4})
    with gateway({"support": policy}) as service:
        entries = service.get("/v1/models").json["data"]
        assert [entry["id"] for entry in entries] == ["support", *MODELS]
        assert {entry["object"] for entry in entries} == {"model"}
        about = entries[0]["rcjax"]
        assert (about["models"], about["expected"]) == (list(MODELS), {"error": 0.1, "cost": 1e-4})
        assert service.get("/v1/models/support").json == entries[0]
        assert service.get("/v1/models/large").json == entries[-1]
        assert service.get("/v1/models/huge").json["error"]["code"] == "model_not_found"
