"""What a service says on its standard error while it runs: one line for each change, and no traceback."""

import os

from chat_server import Response, sure
from gateway_service import SURE, gateway, make_policy, write_models
from test_faults import until


def answers(request, headers):
    return Response(sure("A", SURE))


def test_every_change_of_a_file_is_a_line(caplog):
    caplog.set_level("INFO", "rcjax.serving")

    def lines():
        return [record.getMessage() for record in caplog.records if record.name == "rcjax.serving"]

    with gateway({"a\x1bb": make_policy()}, answers) as service:
        assert lines() == []
        os.utime(service.folder / "a\x1bb.json")
        until(lambda: lines() == ["the files are read again: what they say is as before"])
        make_policy(cost={"small": 2e-5, "middle": 5e-5, "large": 3e-4}).save(service.folder / "a\x1bb.json")
        until(lambda: len(lines()) == 2)
        assert lines()[1].startswith("policy a\\x1bb is ")
        assert lines()[1].endswith(" from now on: small → middle → large")
        base_url = service.app.state.gateway.catalog.models["small"].base_url
        write_models(
            service.folder / "models.toml", base_url, tables={"other": "", "small": "", "middle": "", "large": ""}
        )
        until(lambda: len(lines()) == 3)
        assert lines()[2] == "models.toml is taken up: small, middle, large, other"
        (service.folder / "models.toml").write_text("")
        until(lambda: len(lines()) == 4)
        assert lines()[3].startswith("a new file is refused, the old policies stay: models.toml: no models")
